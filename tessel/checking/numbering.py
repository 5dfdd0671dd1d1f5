"""Whether every stage runs the same micro-batches, told where one does not.

Without a majority nothing is said here. A number that one stage alone has, or lacks, is the fault of that
stage's rank, and not of the others, which would have to run as many. Checked in
tests/tessel/checking/test_numbering.py.
"""

from __future__ import annotations

from collections import Counter

from tessel.engine.actions import Action, ActionKind, RankActions
from tessel.errors import ScheduleError

MAX_NAMED = 4
"""Actions that a message names."""


def check_numbering(actions: RankActions) -> None:
    """Refuse a stage that runs other micro-batches than most stages do, or numbers that begin elsewhere.

    Raises:
        ScheduleError: there is one; names its rank, and what it runs and lacks.
    """
    forwards: dict[int, Counter[int]] = {}
    rank_of: dict[int, int] = {}
    for rank, own in enumerate(actions):
        for action in own:
            rank_of[action.stage] = rank
            counts = forwards.setdefault(action.stage, Counter())
            if action.kind is ActionKind.FORWARD:
                counts[action.micro_batch] += 1
    (usual, holders), *_ = Counter(frozenset(counts) for counts in forwards.values()).most_common(1)
    if 2 * holders <= len(forwards):
        return  # no stage can be said to be the one that differs
    if not usual:
        raise ScheduleError("most stages run no forward; give the whole step")
    count = len(usual)
    if usual != frozenset(range(count)):
        raise ScheduleError(
            f"micro-batches are numbered {min(usual)} to {max(usual)}, and the {count} of a step are 0 to "
            f"{count - 1}; renumber them"
        )
    for stage, counts in sorted(forwards.items()):
        extra = [number for number in sorted(counts) if number >= count]
        missing = [number for number in range(count) if not counts[number]]
        if extra or missing:
            parts = [f"runs {_named(stage, extra)}"] if extra else []
            parts += [f"{'' if extra else 'runs '}no {_named(stage, missing)}"] if missing else []
            raise ScheduleError(
                f"rank {rank_of[stage]} {' and '.join(parts)}, and most stages run micro-batches 0 to "
                f"{count - 1}; correct that rank's order"
            )
    for rank, own in enumerate(actions):
        wrong = next((action for action in own if action.micro_batch >= count), None)
        if wrong is not None:
            raise ScheduleError(
                f"rank {rank} runs {wrong}, and the forwards are of micro-batches 0 to {count - 1}; correct "
                "that rank's order"
            )


def _named(stage: int, numbers: list[int]) -> str:
    listed = [str(Action(stage, ActionKind.FORWARD, number)) for number in numbers[:MAX_NAMED]]
    return ", ".join([*listed, *(["…"] if len(numbers) > MAX_NAMED else [])])
