"""Documents of `tessel check`."""

from __future__ import annotations

import msgspec

from tessel.checking.assessment import PathShare


class PrintedAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A change and what it saves, found by running the whole step again with that change alone.

    Attributes:
        change: what to do.
        kind: `move`, `order`, `split`, `recompute`, `keep`, `micro-batch` or `groups`.
        saves_ms: milliseconds of the training step; null where a step has no length. Negative where the
            change only makes it fit.
        saves_steps: the same in steps; null where a step has a length.
        saves_ratio: part of the step.
        fits: whether it keeps the memory limit.
    """

    change: str
    kind: str
    saves_ms: float | None
    saves_steps: int | None
    saves_ratio: float
    fits: bool


class PrintedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a micro-batch."""

    block: str
    micro_batch: int


class PrintedOverlap(msgspec.Struct, frozen=True, kw_only=True):
    """What the order takes where a forward and a backward of a cell run together.

    Attributes:
        factor: share of their sum that a pair takes.
        pairs: that run together.
        pairs_apart: whose backward waits for their forward.
        length_ms: milliseconds of the training step, or of the pipeline where no more is known; null where a
            step has no length.
        length_steps: the same in steps; null where a step has a length.
    """

    factor: float
    pairs: int
    pairs_apart: int
    length_ms: float | None
    length_steps: int | None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A second opinion.

    Attributes:
        file: what was checked.
        devices: ranks of the pipeline.
        stages: of the pipeline; null where blocks form no stages.
        micro_batches: how many are run.
        deadlock: whether tasks wait for each other.
        cycle: who waits for whom, a sentence a task; empty where nobody does.
        fits: whether every device keeps its memory limit; false where it deadlocks.
        memory: most that each device holds: bytes with a profile or a plan, units else; null where it
            deadlocks.
        limits: the same that each may hold; null where there is no limit.
        makespan: steps of the pipeline; null where it deadlocks.
        lower_bound: steps that no order on these stages can beat.
        makespan_ms: null where a step has no length; the same holds for
        lower_bound_ms: the bound, and
        step_ms: the training step with synchronisation and optimizer, which is known with a profile only.
        best: steps of the best order found on these stages; null where none fits.
        best_found_by: what found it.
        ratio_to_best: makespan over that.
        critical_path: blocks that follow each other without a pause, from the first to the last.
        shares: what devices and hops have of it, the largest first.
        advice: the changes worth most, the best first.
        overlap: what --overlap-factor gives; null without it. All else is of blocks one after the other.
    """

    file: str
    devices: int
    stages: int | None
    micro_batches: int
    deadlock: bool
    cycle: tuple[str, ...]
    fits: bool
    memory: tuple[int, ...] | None
    limits: tuple[int, ...] | None
    makespan: int | None
    lower_bound: int
    makespan_ms: float | None
    lower_bound_ms: float | None
    step_ms: float | None
    best: int | None
    best_found_by: str | None
    ratio_to_best: float | None
    critical_path: tuple[PrintedTask, ...]
    shares: tuple[PathShare, ...]
    advice: tuple[PrintedAdvice, ...]
    overlap: PrintedOverlap | None = None
