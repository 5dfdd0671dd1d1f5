"""Whether the sends and receives of a CSV of orders end, and bring each stage what it takes.

Simulated as torch's runtime runs them: sends and receives are posted in the order of the cells without
waiting, those from one rank to another are matched one after the other, and an action waits for its own
receive. Checked in tests/tessel/checking/test_communication.py.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from itertools import zip_longest
from typing import NamedTuple

from tessel.errors import ScheduleError

_CELL = re.compile(r"([0-9]{1,6})(SEND_F|SEND_B|RECV_F|RECV_B|[FBIW])([0-9]{1,6})")


class _Cell(NamedTuple):
    rank: int
    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch} of rank {self.rank}"


def check_communication(text: str) -> None:
    """Refuse a CSV whose sends and receives never end or bring other tensors; one without any is derived.

    Raises:
        ScheduleError: a send or receive is missing, too late, twice, or meets another one; names its cell.
    """
    ranks = [
        [
            _Cell(rank, int(found[1]), found[2], int(found[3]))
            for cell in row
            for found in _CELL.finditer(cell)
        ]
        for rank, row in enumerate(csv.reader(io.StringIO(text, newline="")))
    ]
    if not any("_" in cell.kind for own in ranks for cell in own):
        return
    rank_of = {cell.stage: cell.rank for own in ranks for cell in own if "_" not in cell.kind}
    sent: dict[tuple[int, int], list[_Cell]] = defaultdict(list)
    received: dict[tuple[int, int], list[_Cell]] = defaultdict(list)
    for own in ranks:
        _check_rank(own, rank_of)
        for cell in own:
            if "SEND" in cell.kind:
                sent[cell.rank, rank_of[_peer(cell)]].append(cell)
            elif "RECV" in cell.kind:
                received[rank_of[_peer(cell)], cell.rank].append(cell)
    for pair in sent.keys() | received.keys():
        _check_pair(sent[pair], received[pair])
    _check_end(ranks, rank_of)


def _peer(cell: _Cell) -> int:
    """Return the stage at the other end of a send or receive."""
    return cell.stage + (1 if cell.kind in ("SEND_F", "RECV_B") else -1)


def _mirror(cell: _Cell, rank: int) -> _Cell:
    kind = cell.kind.replace("SEND", "RECV") if "SEND" in cell.kind else cell.kind.replace("RECV", "SEND")
    return _Cell(rank, _peer(cell), kind, cell.micro_batch)


def _check_rank(own: list[_Cell], rank_of: dict[int, int]) -> None:
    """Refuse an action without its receive before it, a result not sent, and a send before its action."""
    done: set[_Cell] = set()
    for cell in own:
        if "_" in cell.kind:
            if rank_of.get(cell.stage) != cell.rank or rank_of.get(_peer(cell), cell.rank) == cell.rank:
                raise ScheduleError(
                    f"cell {cell} has no other rank at its end, or is not on its stage's; leave it out"
                )
            if cell in done:
                raise ScheduleError(f"cell {cell} stands twice; leave one out")
            makers = ("F",) if cell.kind == "SEND_F" else ("B", "I")
            if "SEND" in cell.kind and not any(cell._replace(kind=kind) in done for kind in makers):
                raise ScheduleError(f"cell {cell} sends what is computed after it; move it behind its action")
        needed = _receive_of(cell, rank_of)
        if needed is not None and needed not in done:
            raise ScheduleError(f"cell {cell} has no {needed} before it; receive what it takes first")
        done.add(cell)
    for cell in own:
        sent = _send_of(cell, rank_of)
        if sent is not None and sent not in done:
            raise ScheduleError(
                f"cell {cell} has no {sent}, so that rank {rank_of[_peer(sent)]} waits for ever; send it"
            )
        if "RECV" in cell.kind:
            takers = ("F",) if cell.kind == "RECV_F" else ("B", "I")
            if not any(cell._replace(kind=kind) in done for kind in takers):
                raise ScheduleError(f"cell {cell} receives what no action takes; leave it out")


def _receive_of(cell: _Cell, rank_of: dict[int, int]) -> _Cell | None:
    kind = {"F": "RECV_F", "B": "RECV_B", "I": "RECV_B"}.get(cell.kind)
    return None if kind is None else _across(cell._replace(kind=kind), rank_of)


def _send_of(cell: _Cell, rank_of: dict[int, int]) -> _Cell | None:
    kind = {"F": "SEND_F", "B": "SEND_B", "I": "SEND_B"}.get(cell.kind)
    return None if kind is None else _across(cell._replace(kind=kind), rank_of)


def _across(cell: _Cell, rank_of: dict[int, int]) -> _Cell | None:
    """Return a send or receive if it has another rank at its end."""
    return cell if rank_of.get(_peer(cell), cell.rank) != cell.rank else None


def _check_pair(sent: list[_Cell], received: list[_Cell]) -> None:
    """Refuse a send from one rank to another that meets no receive, or another's, and the reverse."""
    for send, receive in zip_longest(sent, received):
        if send is None or receive is None or receive != _mirror(send, receive.rank):
            raise ScheduleError(
                f"cell {send or receive} meets {receive if send and receive else 'nothing'}, so that a rank "
                "waits for ever or takes wrong tensors; give sends and receives of two ranks in the "
                "same order"
            )


def _check_end(ranks: list[list[_Cell]], rank_of: dict[int, int]) -> None:
    """Refuse ranks that wait for each other: an action goes on once its receive has met its send."""
    at = [0] * len(ranks)
    posted: set[_Cell] = set()
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(ranks):
            while at[rank] < len(own):
                cell = own[at[rank]]
                needed = _receive_of(cell, rank_of)
                if needed is not None and _mirror(needed, rank_of[_peer(needed)]) not in posted:
                    break
                posted.add(cell)
                at[rank] += 1
                moved = True
    stuck = next((own[place] for place, own in zip(at, ranks, strict=True) if place < len(own)), None)
    if stuck is not None:
        raise ScheduleError(
            f"cell {stuck} waits for a send that stands behind what waits for it; correct the order"
        )
