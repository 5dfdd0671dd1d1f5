"""A trace: what each rank of a real job computed, when, and for how long.

A range is the work of one stage, or one layer, on one micro-batch: it begins with the first operation, not
where a rank began to wait for what it takes, and waits, sends and receives are in none. Ranks' clocks are
taken to be one, as they are on one machine; across machines starts of two ranks differ by what their clocks
do, and durations do not. Every reader of traces makes this and nothing else. Checked in
tests/tessel/profiles/traces/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tessel.placement import BlockKind


class TraceRange(NamedTuple):
    """One piece of work of one rank.

    Attributes:
        rank: process of the job.
        stage: number of the stage, or of the layer, in model order.
        micro_batch: its number within the step.
        kind: forward, backward, one of its halves, or recomputation.
        start_us: microseconds since the trace's first range began.
        duration_us: microseconds from its first operation to its last.
        step: number of the training step within the trace.
    """

    rank: int
    stage: int
    micro_batch: int
    kind: BlockKind
    start_us: float
    duration_us: float
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The ranges of one or several steps.

    Attributes:
        name: of the file or folder, for titles and messages.
        ranges: by rank, then by start.
        stage_names: of each stage or layer, by its number.
        device: kind of device that ran it, empty if unknown.
        notes: a sentence on each thing that the trace does not show, or that was assumed.
    """

    name: str
    ranges: tuple[TraceRange, ...]
    stage_names: tuple[str, ...]
    device: str = ""
    notes: tuple[str, ...] = ()

    def of_step(self, step: int) -> tuple[TraceRange, ...]:
        """Return the ranges of one step, by rank, then by start."""
        return tuple(each for each in self.ranges if each.step == step)


def in_order(ranges: Iterable[TraceRange]) -> tuple[TraceRange, ...]:
    """Return ranges by rank and start, from the first start on, a repeated one being of the next step.

    A rank that runs a stage's micro-batch again, in the same way, has begun another step.
    """
    listed = sorted(ranges, key=lambda each: (each.rank, each.start_us))
    first = min((each.start_us for each in listed), default=0.0)
    seen: Counter[tuple[int, int, int, BlockKind, int]] = Counter()
    numbered = []
    for each in listed:
        key = (each.rank, each.stage, each.micro_batch, each.kind, each.step)
        numbered.append(each._replace(start_us=each.start_us - first, step=each.step + seen[key]))
        seen[key] += 1
    return tuple(numbered)
