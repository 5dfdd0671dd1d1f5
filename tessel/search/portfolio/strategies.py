"""Ways to search one problem that are worth trying side by side, and what one of them is told and answers.

The first is the plain search, so that the best of all is never worse than it. The others have another seed;
the last two put their work into schedules alone, each without phases that find none for large or odd problems
(`python -m benchmarks.search_ablation`). Checked in tests/tessel/search/portfolio/test_side_by_side.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.makespan.params import Phase


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to search.

    Attributes:
        seed_offset: added to the seed.
        left_out: phases that are not run.
    """

    seed_offset: int
    left_out: frozenset[Phase] = frozenset()


STRATEGIES = (
    Strategy(0),
    Strategy(1),
    Strategy(2, frozenset({Phase.REPETENDS, Phase.EXACT})),
    Strategy(3, frozenset({Phase.DECISION_DIAGRAMS, Phase.EXACT, Phase.CP_SAT})),
)
"""All of them, whatever the number of processes: the answer must not depend on that."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a process is to search.

    Attributes:
        placement: blocks of one micro-batch.
        micro_batches: how many are run.
        memory: limit in units by device, None for none.
        seed: of what is random.
        left_out: phases that are not run.
        work: units of work, None for no limit.
        seconds: limit on time, None for none.
        start_from: a schedule that is to be improved, None for none.
    """

    placement: Placement
    micro_batches: int
    memory: tuple[int, ...] | None
    seed: int
    left_out: tuple[Phase, ...]
    work: float | None
    seconds: float | None
    start_from: Schedule | None = None


class Told(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A better schedule that a process has found, in numbers."""

    makespan: int
    lower_bound: int
    found_by: str


class Found(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a process has found in the end, and what that took."""

    schedule: Schedule
    operations: int


class Failed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Why a process has found nothing."""

    message: str


Message = Told | Found | Failed
"""A line of what a process writes."""
