"""What `tessel language` prints."""

from __future__ import annotations

import msgspec

from cost_model.language.model_files import Manifest


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel language train` made."""

    model: str
    manifest: Manifest


class SchedulesCollected(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel language collect` measured.

    Attributes:
        kernels: of the collection.
        trials: of them in the records now.
        new_trials: measured now.
        mean_quality: by round, the mean over its trials of the kernel's best latency over theirs; the first
            is of random schedules; null where nothing was measured now.
    """

    kernels: int
    trials: int
    new_trials: int
    mean_quality: tuple[float | None, ...]


class PrintedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule of a kernel.

    Attributes:
        sketch: its number.
        decisions: in the order of TVM's instructions.
        repaired: whether TVM changed where a block is computed.
        relative_speed: predicted, of the kernel's best; null where the records hold too few trials.
        latency_us: measured; null where it was not, or failed.
    """

    sketch: int
    decisions: tuple[int | tuple[int, ...], ...]
    repaired: bool
    relative_speed: float | None
    latency_us: float | None


class SchedulesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel language generate` wrote, the most promising first.

    Attributes:
        kernel: its name.
        schedules: as many as were asked for.
        written: schedules in all.
        distinct: of those.
        legal_ratio: share that TVM took as they were written.
    """

    kernel: str
    schedules: tuple[PrintedSchedule, ...]
    written: int
    distinct: int
    legal_ratio: float


class PrintedTrials(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of one kernel by one proposer with one seed; null where a trial failed."""

    kernel: str
    proposer: str
    seed: int
    latencies_us: tuple[float | None, ...]


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Best latency after so many trials, by who proposed them.

    Attributes:
        trials: numbers of trials.
        best_us: by proposer, after each number of trials: the median over seeds, in geometric mean over
            kernels; null where none had succeeded.
        runs: every trial.
    """

    trials: tuple[int, ...]
    best_us: dict[str, tuple[float | None, ...]]
    runs: tuple[PrintedTrials, ...]
