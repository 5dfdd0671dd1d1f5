"""What `tessel language` prints."""

from __future__ import annotations

import msgspec

from tuner.language.model_files import Manifest


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
        model: folder of the draft model; null where the trials are too few for one.
        interval: half the width of its intervals, in logarithms of relative speed; null likewise.
    """

    kernels: int
    trials: int
    new_trials: int
    mean_quality: tuple[float | None, ...]
    model: str | None
    interval: float | None


class PrintedProposal(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule of a kernel: its sketch, its decisions, whether TVM takes it, and its measured latency."""

    sketch: int
    decisions: tuple[int | tuple[int, ...], ...]
    legal: bool
    latency_us: float | None


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel language generate` wrote: proposals, the likeliest first, and two shares of them."""

    kernel: str
    proposals: tuple[PrintedProposal, ...]
    legal_ratio: float
    distinct_ratio: float


class PrintedTrials(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of one kernel by one proposer with one seed; null where a trial failed."""

    kernel: str
    proposer: str
    seed: int
    latencies_us: tuple[float | None, ...]


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Best latency after so many trials, by who proposed them, in geometric mean over kernels and seeds.

    Attributes:
        trials: numbers of trials.
        language_us: by the language model; null where none had succeeded.
        evolutionary_us: by MetaSchedule's evolutionary search.
        random_us: at random.
        legal_ratio: share of the language model's schedules that TVM takes.
        distinct_ratio: share of them that are distinct.
        runs: every trial.
    """

    trials: tuple[int, ...]
    language_us: tuple[float | None, ...]
    evolutionary_us: tuple[float | None, ...]
    random_us: tuple[float | None, ...]
    legal_ratio: float
    distinct_ratio: float
    runs: tuple[PrintedTrials, ...]
