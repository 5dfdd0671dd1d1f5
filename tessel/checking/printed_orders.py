"""Orders as frameworks print them, read as the CSV of torch.distributed.pipelining.

    [0F0, 0F1, None, 0B0, …]                            torch, a list a rank
    [[RecvActivation(buffer_id=0), ForwardPass(…)], …]  DeepSpeed, `list(TrainSchedule(…).steps())` a rank
    [1, 1, 2, 2, -2, 1, …]                              Megatron's order of chunks, a list a rank
    [(0, 0), (1, 0), (0, 1), …]                         Megatron's `get_schedule_table`, one for all ranks

DeepSpeed names buffers: its n-th forward is of micro-batch n, and a backward of the one whose forward filled
its buffer. Megatron runs the micro-batches of a chunk in ascending order, and chunk c of rank r is stage
`c x ranks + r`; its table has forwards alone, and the backwards follow as its schedule runs them. What the
texts say beside that (loads, sends, reductions) follows from the order and is left out. Checked in
tests/tessel/checking/test_printed_orders.py, against what the frameworks themselves make.

Source: torch.distributed.pipelining; DeepSpeed, `runtime/pipe/schedule.py`; Megatron-Core,
`pipeline_parallel/schedules.py`.
"""

from __future__ import annotations

import re
from collections import Counter

from tessel.engine.actions import Action, ActionKind, RankActions, actions_to_csv
from tessel.errors import ScheduleError
from tessel.exports.megatron import orders_of_turns

_PRINTED = re.compile(r"\s*\[[\[\s]*(?:None\b|[\"']?[0-9(]|[A-Z][A-Za-z]+\()")
_ROW = re.compile(r"\[([^\[\]]*)\]")
_PASS = re.compile(r"\b(Forward|Backward)Pass\((?:buffer_id=)?([0-9]{1,7})")
_STEPS = re.compile(r"\[\s*\[(.*?)\]\s*\](?=\s*(?:\[|,|\]|$))", re.DOTALL)
_TABLE = re.compile(r"\s*\[\s*(\(\s*[0-9]{1,7}\s*,\s*[0-9]{1,5}\s*\)[\s,]*)+\]\s*")
_PAIR = re.compile(r"\(\s*([0-9]+)\s*,\s*([0-9]+)\s*\)")
_CHUNKS = re.compile(r"[+-]?[1-9][0-9]{0,4}")


def is_printed(text: str) -> bool:
    """Return whether a text is orders as Python prints lists of them."""
    return _PRINTED.match(text) is not None


def is_table(text: str) -> bool:
    """Return whether a text is Megatron's table, which does not say how many ranks there are."""
    return _TABLE.fullmatch(text) is not None


def csv_of_printed(text: str, *, devices: int | None = None) -> str:
    """Return printed orders as a CSV; other texts as they are.

    Args:
        text: of a file.
        devices: ranks, which Megatron's table does not say.

    Raises:
        ScheduleError: a backward's buffer holds nothing, or a table is none of Megatron's.
    """
    if not is_printed(text):
        return text
    if is_table(text):
        if devices is None:
            raise ScheduleError("Megatron's table does not say how many ranks run it; add --devices")
        return actions_to_csv(_of_table(text, devices))
    if _PASS.search(text):
        return actions_to_csv(_of_instructions(text))
    rows = [[cell.strip().strip("\"'") for cell in row.split(",")] for row in _ROW.findall(text)]
    rows = [[cell for cell in row if cell] for row in rows]
    if all(_CHUNKS.fullmatch(cell) for row in rows for cell in row):
        return actions_to_csv(_of_chunks(rows))
    return "".join(",".join("" if cell == "None" else cell for cell in row) + "\n" for row in rows)


def _of_instructions(text: str) -> RankActions:
    """Return the actions of DeepSpeed's instructions, the steps of a rank being a list of lists."""
    ranks = []
    for rank, steps in enumerate(_STEPS.findall(text)):
        held: dict[str, int] = {}
        own = []
        forwards = 0
        for kind, buffer in _PASS.findall(steps):
            if kind == "Forward":
                held[buffer] = forwards
                own.append(Action(rank, ActionKind.FORWARD, forwards))
                forwards += 1
            elif buffer in held:
                own.append(Action(rank, ActionKind.BACKWARD, held[buffer]))
            else:
                raise ScheduleError(
                    f"rank {rank} has BackwardPass(buffer_id={buffer}) before any forward into that buffer; "
                    "print the steps of a whole batch, those of each rank in a line"
                )
        ranks.append(tuple(own))
    return tuple(ranks)


def _of_chunks(rows: list[list[str]]) -> RankActions:
    """Return the actions of Megatron's order: chunks from 1, negative for backwards."""
    ranks = []
    for rank, row in enumerate(rows):
        seen: Counter[str] = Counter()
        own = []
        for cell in row:
            stage = (abs(int(cell)) - 1) * len(rows) + rank
            kind = ActionKind.BACKWARD if cell.startswith("-") else ActionKind.FORWARD
            own.append(Action(stage, kind, seen[cell.lstrip("+")]))
            seen[cell.lstrip("+")] += 1
        ranks.append(tuple(own))
    return tuple(ranks)


def _of_table(text: str, devices: int) -> RankActions:
    """Return the actions of Megatron's table on each rank."""
    turns = [(int(chunk), int(micro_batch)) for micro_batch, chunk in _PAIR.findall(text)]
    chunks, micro_batches = 1 + max(turns)[0], 1 + max(turn[1] for turn in turns)
    if sorted(turns) != [(chunk, number) for chunk in range(chunks) for number in range(micro_batches)]:
        raise ScheduleError(
            f"the table has {len(turns)} pairs, and {chunks} chunks of {micro_batches} micro-batches have "
            "each of theirs once; print what get_schedule_table returns"
        )
    group = next((place for place, turn in enumerate(turns) if turn[0]), micro_batches)
    return tuple(
        orders_of_turns(turns, rank, pipeline=devices, chunks=chunks, group_size=group)
        for rank in range(devices)
    )
