"""Files of sends and receives pass as torch derives them, and are refused with one fault in them."""

from __future__ import annotations

import random

import pytest

from tessel.checking.communication import check_communication
from tessel.engine.actions import actions_of, actions_to_csv
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.shapes import interleaved, vshape, zbv

RIGHT = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
)


def with_sends(text: str) -> list[list[str]]:
    """The program of orders: what is made is sent at once, and received where it is sent, as torch does."""
    left = [line.split(",") for line in text.splitlines()]
    rank_of = {int(cell[0]): rank for rank, row in enumerate(left) for cell in row}
    made: list[list[str]] = [[] for _ in left]
    have: set[str] = set()
    while any(left):
        for rank, row in enumerate(left):
            if not row:
                continue
            cell = row[0]
            stage, kind, number = int(cell[0]), cell[1], cell[2:]
            before = stage - 1 if kind == "F" else stage + 1
            if kind != "W" and before in rank_of:
                makers = ("F",) if kind == "F" else ("B", "I")
                if not any(f"{before}{maker}{number}" in have for maker in makers):
                    continue
            row.pop(0)
            have.add(cell)
            made[rank].append(cell)
            after = stage + 1 if kind == "F" else stage - 1
            if kind != "W" and rank_of.get(after, rank) != rank:
                letter = "F" if kind == "F" else "B"
                made[rank].append(f"{stage}SEND_{letter}{number}")
                made[rank_of[after]].append(f"{after}RECV_{letter}{number}")
    return made


def programs() -> list[list[list[str]]]:
    found = []
    for placement in (vshape(2), vshape(3), interleaved(2), zbv(2)):
        for rule in HANDWRITTEN:
            if rule.why_not(placement, 4) is None and not getattr(rule, "needs_limit", False):
                found.append(with_sends(actions_to_csv(actions_of(rule.build(placement, micro_batches=4)))))
    return found


def text_of(rows: list[list[str]]) -> str:
    return "\n".join(map(",".join, rows)) + "\n"


def test_programs_pass_and_each_with_one_fault_is_refused() -> None:
    rng, made = random.Random(5), programs()
    assert len(made) > 4
    for rows in made:
        check_communication(text_of(rows))
        for _ in range(30):
            faulty = [list(row) for row in rows]
            row = rng.choice([row for row in faulty if any("_" in cell for cell in row)])
            one = rng.choice([place for place, cell in enumerate(row) if "_" in cell])
            later = [place for place in range(one + 1, len(row)) if row[place][:7] == row[one][:7]]
            fault = rng.choice(("missing", "late", "swapped", "twice") if later else ("missing", "twice"))
            if fault == "missing":
                del row[one]
            elif fault == "twice":
                row.insert(one, row[one])
            elif fault == "late":
                row.append(row.pop(one))
            else:
                other = rng.choice(later)
                row[one], row[other] = row[other], row[one]
            with pytest.raises(ScheduleError, match=r"cell \d+\w+ of rank \d"):
                check_communication(text_of(faulty))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("0SEND_F1,", "", "0F1 of rank 0"),
        ("1RECV_F1,", "", "1F1 of rank 1"),
        ("0F0,0SEND_F0", "0SEND_F0,0F0", "0SEND_F0 of rank 0"),
        ("0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0", "0F1,0RECV_B0,0B0,0SEND_F0,0SEND_F1", "0B0 of rank 0"),
        ("0SEND_F0,0F1,0SEND_F1", "0F1,0SEND_F1,0SEND_F0", "0SEND_F1 of rank 0"),
    ],
)
def test_the_fault_is_named(old: str, new: str, named: str) -> None:
    check_communication(RIGHT)
    text = RIGHT.replace(old, new)
    assert text != RIGHT
    with pytest.raises(ScheduleError, match=named):
        check_communication(text)
