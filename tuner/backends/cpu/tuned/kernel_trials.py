"""Trials of our own kernels as records, what the draft model learns of them, and what they choose.

A trial is a record of role `task`: its workload is named by the kernel, its settings are the decisions, none
for the kernel's own rule, and how many weights were read before the same ones again, where those of a network
were (`weight_bytes`). Kernels of several networks, sessions and machines so share one store, and
`tessel records export` and `import` carry them. Which decisions a kernel is built with follows from records
alone: candidates that were measured at least twice on this processor with these kernels, of which the last
time was in turn with the rule; the fastest of those that were clearly faster round by round, or else the
rule. Checked in tests/tuner/backends/cpu/tuned/test_kernel_trials.py.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from cost_model.draft.draft_model import DraftTrials
from cost_model.draft.packed_families import PackedFamily
from records import Environment, Measurement, Operator, Record, RecordStore, Status, Tensor, Workload
from records.workload import describe
from tuner.backends.cpu.tuned.chosen_tiles import ChosenTiles
from tuner.backends.cpu.tuned.families import BACKEND_BY_FAMILY, Decisions, OwnKernel, family_of, space_of
from tuner.targets.target import Target

OPERATOR = "own_kernel.task"

_OPAQUE = 8
_KERNEL = "kernel"
_WEIGHT_BYTES = "weight_bytes"
_MESSAGE_CHARACTERS = 300

_MIN_TIMES = 2
"""Measurements of a candidate before it may be chosen: one alone may be a lucky one."""

_MAX_RATIO = 0.97
"""Of a candidate's time over the rule's, the median of rounds in turn; measurements scatter by less."""

_MIN_SHARE = 0.75
"""Rounds in which a candidate is faster than the rule."""


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """One measurement of a kernel with some decisions.

    Attributes:
        kernel: its name.
        decisions: as they were measured; those of its rule if empty.
        samples_us: of one run; none where it failed.
        message: why it failed.
        weight_bytes: weights that were read before the same ones again (`KernelProcess.time`).
    """

    kernel: str
    decisions: Decisions
    samples_us: tuple[float, ...] = ()
    message: str = ""
    weight_bytes: int = 0

    @property
    def settings(self) -> str:
        """Its decisions and conditions, as its record has them."""
        conditions = {_WEIGHT_BYTES: self.weight_bytes} if self.weight_bytes else {}
        return msgspec.json.encode({**self.decisions, **conditions}, order="sorted").decode()

    @property
    def latency_us(self) -> float:
        """The median; infinite where it failed."""
        return statistics.median(self.samples_us) if self.samples_us else math.inf


def workload_of_kernel(kernel: OwnKernel) -> Workload:
    """Return the workload under which the trials of a kernel are kept."""
    shape = tuple(int(each) for each in kernel.name.partition(":")[2].partition(",")[0].split("x"))
    result = Tensor(shape[:1], "float32")
    operator = Operator(
        name=OPERATOR,
        kind=_OPAQUE,
        inputs=(0,),
        outputs=(result,),
        attributes=((_KERNEL, kernel.name),),
        flops=kernel.operations,
    )
    return describe("task", [result], [operator], [1])


def keep_trials(
    store: RecordStore,
    kernel: OwnKernel,
    trials: Iterable[KernelTrial],
    *,
    target: Target,
    environment: Environment,
) -> None:
    """Append measurements of one kernel to the records.

    Args:
        store: the records.
        kernel: what was measured.
        trials: of it, failed ones too.
        target: this machine's processor.
        environment: with the version of the kernels of its backend.
    """
    workload = workload_of_kernel(kernel)
    store.append_many(
        [
            (
                workload,
                Measurement(
                    workload_fingerprint=workload.fingerprint,
                    backend=BACKEND_BY_FAMILY[family_of(kernel.name)],
                    target=target.text,
                    environment=environment,
                    status=Status.OK if trial.samples_us else Status.ERROR,
                    samples_us=trial.samples_us,
                    settings=trial.settings,
                    message=trial.message[:_MESSAGE_CHARACTERS],
                    measured_at=time.time(),
                ),
            )
            for trial in trials
        ]
    )


@dataclass(frozen=True, slots=True)
class KeptTrial:
    """A trial in the records.

    Attributes:
        trial: what was measured.
        record_id: of its record.
        measured_at: seconds since 1970.
        versions: of the kernels and of what compiled them.
    """

    trial: KernelTrial
    record_id: int
    measured_at: float
    versions: tuple[tuple[str, str], ...]


def load_kernel_trials(
    store: RecordStore,
    target: Target,
    environment: Environment,
    *,
    kernels: Collection[str] | None = None,
) -> tuple[KeptTrial, ...]:
    """Return the trials of this processor with so many threads, the earliest first; others are left out.

    Args:
        store: the records.
        target: whose records count.
        environment: whose device and threads count.
        kernels: their names; all kernels if None.
    """
    found = []
    for backend in sorted(set(BACKEND_BY_FAMILY.values())):
        for record in store.iterate(backend=backend, target=target.text, role="task"):
            where = record.measurement.environment
            if (where.device_model, where.num_threads) != (environment.device_model, environment.num_threads):
                continue
            trial = _trial_of(record) if record.measurement.tells_of_program else None
            if trial is not None and (kernels is None or trial.kernel in kernels):
                measured_at = record.measurement.measured_at
                found.append(KeptTrial(trial, record.record_id, measured_at, where.versions))
    return tuple(sorted(found, key=lambda each: (each.measured_at, each.record_id)))


def draft_trials(
    kept: Sequence[KeptTrial], *, families: Collection[PackedFamily] | None = None
) -> tuple[DraftTrials, ...]:
    """Return trials as the draft model learns from them, by kernel; those of a kernel's rule are left out.

    Of a kernel that was measured among weights of several networks, the most trials of one of them count:
    latencies compare within such alone.

    Args:
        kept: of any kernels.
        families: that are wanted; all if None.
    """
    by_kernel: dict[str, dict[int, dict[bytes, tuple[npt.NDArray[np.int64], float, int]]]] = {}
    for each in kept:
        trial = each.trial
        if families is not None and family_of(trial.kernel) not in families:
            continue
        row = space_of(trial.kernel).row_of(trial.decisions) if trial.decisions else None
        if row is not None:
            rows = by_kernel.setdefault(trial.kernel, {}).setdefault(trial.weight_bytes, {})
            rows[row.tobytes()] = row, trial.latency_us, each.record_id
    most = {name: max(found.values(), key=len) for name, found in by_kernel.items()}
    return tuple(
        DraftTrials(
            name,
            space_of(name),
            np.stack([row for row, _, _ in found.values()]),
            tuple(latency for _, latency, _ in found.values()),
            tuple(record_id for _, _, record_id in found.values()),
        )
        for name, found in most.items()
    )


def current_trials(kept: Iterable[KeptTrial], versions: Mapping[str, str]) -> tuple[KeptTrial, ...]:
    """Return the trials that were measured with some versions of the kernels.

    Args:
        kept: trials of this processor.
        versions: of the kernels of each backend, by the name that its records have for them.
    """
    found = []
    for each in kept:
        entry = f"{BACKEND_BY_FAMILY[family_of(each.trial.kernel)]}-kernels"
        if dict(each.versions).get(entry) == versions.get(entry):
            found.append(each)
    return tuple(found)


def choose_tiles(kept: Iterable[KeptTrial], versions: Mapping[str, str]) -> ChosenTiles:
    """Return the decisions that trials say are faster than the kernels' rules.

    Args:
        kept: trials of this processor, the earliest first, of each kernel among the weights of one network.
        versions: of the kernels of each backend, by the name that its records have for them; trials of other
            versions do not count.
    """
    samples: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for each in current_trials(kept, versions):
        if not each.trial.samples_us:
            continue
        settings = msgspec.json.encode(each.trial.decisions, order="sorted").decode()
        found = samples.setdefault(each.trial.kernel, {})
        found.setdefault(settings, []).append(each.trial.samples_us)
    chosen: dict[str, Decisions] = {}
    for kernel, by_settings in samples.items():
        # The last measurement of each is the one in turn with the others.
        latest = {settings: found[-1] for settings, found in by_settings.items() if len(found) >= _MIN_TIMES}
        rule = latest.pop("{}", None)
        if rule is None:
            continue
        ratios = {settings: _clear_ratio(found, rule) for settings, found in latest.items()}
        better = {settings: ratio for settings, ratio in ratios.items() if ratio is not None}
        if not better:
            continue
        best = min(better, key=lambda settings: (better[settings], settings))
        decisions = msgspec.json.decode(best, type=dict[str, int])
        if decisions and space_of(kernel).row_of(decisions) is not None:
            chosen[kernel] = decisions
    return ChosenTiles(chosen)


def _clear_ratio(samples: Sequence[float], rule: Sequence[float]) -> float | None:
    """Return a candidate's time over the rule's, round by round; None where it is not clearly faster."""
    rounds = [one / other for one, other in zip(samples, rule, strict=False)]
    ratio = statistics.median(rounds)
    is_clear = sum(each < 1 for each in rounds) >= _MIN_SHARE * len(rounds)
    return ratio if ratio <= _MAX_RATIO and is_clear else None


def _trial_of(record: Record) -> KernelTrial | None:
    operators = record.workload.operators
    if [operator.name for operator in operators] != [OPERATOR]:
        return None
    try:
        name = dict(operators[0].attributes)[_KERNEL]
        family = family_of(name)
        decisions = msgspec.json.decode(record.measurement.settings, type=dict[str, int])
    except (KeyError, ValueError):  # records may be a stranger's
        return None
    if BACKEND_BY_FAMILY[family] != record.measurement.backend:
        return None
    weight_bytes = decisions.pop(_WEIGHT_BYTES, 0)
    measured = record.measurement
    return KernelTrial(name, decisions, measured.samples_us, measured.message, weight_bytes)
