"""Measured samples as a training set, and unbiased ways to hold some of it out.

One sample is one key (workload, backend, settings, environment): repeated measurements of a key are merged
into their median, so that duplicates never fall on both sides of a split. A held-out group is a workload, a
shape of the most expensive operator with everything around it, a combination of operators, or a network.
Checked in tests/cost_model/test_dataset.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cost_model.errors import CostModelError
from cost_model.features import Query, anchor_key, anchor_of, shape_key
from cost_model.roofline import DeviceSpeed, device_speed, reached_speed, supported_speed
from records import Environment, Record, Status, Workload

GENERIC_PREFIX = "generic:"
"""What the name of a collection of operators begins with that is no network."""

MIN_SAMPLES = 50
"""Below this a model would be noise; a tuned GPT-2 alone gives a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One key with its latency.

    Attributes:
        query: what was run, by whom, where.
        latency_us: median over all samples of all its measurements.
        relative_spread: interquartile range over the median, of the newest measurement: the noise floor.
        record_ids: the measurements it rests on.
        role: the workload's role: kernel, stage or model.
    """

    query: Query
    latency_us: float
    relative_spread: float
    record_ids: tuple[int, ...]
    role: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples in a fixed order."""

    samples: tuple[Sample, ...]
    latencies_us: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = np.array([sample.latency_us for sample in self.samples], dtype=np.float64)
        object.__setattr__(self, "latencies_us", values)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The samples' queries, in order."""
        return tuple(sample.query for sample in self.samples)

    def subset(self, indices: Iterable[int]) -> Dataset:
        """Return the samples at the indices."""
        return Dataset(tuple(self.samples[index] for index in indices))


def load_dataset(found: Iterable[Record]) -> Dataset:
    """Return one sample for each successful key of a kernel, ordered by its first record.

    Records of devices without a probe are left out: their speed is unknown.

    Raises:
        CostModelError: no device has its probes measured.
    """
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    probes: dict[str, list[Record]] = {}
    kernels: dict[str, list[Record]] = {}
    for record in found:
        if record.measurement.status is not Status.OK:
            continue
        environment = device_key(record.measurement.environment)
        if record.workload.role == "device":
            probes.setdefault(environment, []).append(record)
            continue
        if record.workload.role == "kernel":
            kernels.setdefault(environment, []).append(record)
            measurement = record.measurement
            key = (
                measurement.workload_fingerprint,
                measurement.backend,
                measurement.settings,
                measurement.environment.fingerprint,
            )
            groups.setdefault(key, []).append(record)
    speeds = device_speeds(probes, kernels)
    return Dataset(
        tuple(
            _sample(group, speeds[device])
            for group in groups.values()
            if (device := device_key(group[0].measurement.environment)) in speeds
        )
    )


def split_folds(groups: Sequence[str], *, num_folds: int, rng: np.random.Generator) -> np.ndarray:
    """Return the fold of each sample, shape (num_samples,), such that no group is in two folds.

    Groups are dealt out largest first to the emptiest fold, in an order shuffled by `rng` among equals.
    """
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group] = sizes.get(group, 0) + 1
    names = sorted(sizes)
    rng.shuffle(names)
    fold_sizes = [0] * num_folds
    fold_by_group = {}
    for name in sorted(names, key=lambda name: -sizes[name]):
        fold = fold_sizes.index(min(fold_sizes))
        fold_by_group[name] = fold
        fold_sizes[fold] += sizes[name]
    return np.array([fold_by_group[group] for group in groups], dtype=np.int64)


def workload_groups(dataset: Dataset) -> list[str]:
    """Group samples by workload: a held-out group is new, but its operators may be known at its shapes."""
    return [sample.query.workload.fingerprint for sample in dataset.samples]


def shape_groups(dataset: Dataset) -> list[str]:
    """Group samples by their most expensive operator and its shapes: a held-out group is a shape never seen.

    Sub-graphs that differ only in what is fused around one matrix product stand on the same side, because
    their latencies hardly differ.
    """
    return [anchor_key(sample.query.workload) for sample in dataset.samples]


def combination_groups(dataset: Dataset) -> list[str]:
    """Group samples by their operators and wiring: a held-out group is a combination never seen."""
    return [shape_key(sample.query.workload) for sample in dataset.samples]


def extent_groups(dataset: Dataset) -> list[str]:
    """Group samples by their most expensive operator and its largest extent.

    A network brings few widths, and runs each of them in many kernels: what a new network draws anew is
    such a group rather than a kernel.
    """
    return [_largest_extent(sample.query.workload) for sample in dataset.samples]


def network_groups(dataset: Dataset, networks: Mapping[str, Sequence[str]]) -> list[str]:
    """Group samples by the network they come from; those of several networks are named `shared`.

    Sizes of one network, such as `gpt2:tiny` and `gpt2:small`, are one network. What a generic collection of
    operators holds too is the network's all the same, and is held out with it; what only such a collection
    holds belongs to no network, and is `shared`.

    Args:
        networks: fingerprints of each network's workloads.
    """
    members: dict[str, set[str]] = {}
    for name, fingerprints in networks.items():
        for fingerprint in fingerprints if not name.startswith(GENERIC_PREFIX) else ():
            members.setdefault(fingerprint, set()).add(name.partition(":")[0])
    return [
        min(found) if len(found := members.get(sample.query.workload.fingerprint, ())) == 1 else "shared"
        for sample in dataset.samples
    ]


def device_key(environment: Environment) -> str:
    """Name a device with the threads used of it."""
    return f"{environment.device_kind}/{environment.device_model}/{environment.num_threads}"


def device_speeds(
    probes: Mapping[str, Sequence[Record]], kernels: Mapping[str, Sequence[Record]]
) -> dict[str, DeviceSpeed]:
    """Return the speed of each device, by `device_key`, that has all its probes.

    Args:
        probes: records of role `device` by device.
        kernels: records of kernels by device, which no probe may contradict.

    Raises:
        CostModelError: none has.
    """
    speeds, last_error = {}, None
    for device, found in probes.items():
        try:
            probed = device_speed(record.measurement for record in found)
            speeds[device] = supported_speed(probed, reached_speed(kernels.get(device, ())))
        except CostModelError as error:
            last_error = error
    if not speeds:
        raise last_error or CostModelError(
            "the records hold no device probe, which every prediction starts from; run `tessel tune` once"
        )
    return speeds


def _largest_extent(workload: Workload) -> str:
    anchor = anchor_of(workload)
    if anchor is None:
        return "none"
    values = workload.values
    tensors = (*(values[number] for number in anchor.inputs), *anchor.outputs)
    return f"{anchor.name}:{max((extent for tensor in tensors for extent in tensor.shape), default=1)}"


def _sample(group: Sequence[Record], speed: DeviceSpeed) -> Sample:
    newest = max(group, key=lambda record: record.record_id)
    samples_us = [sample for record in group for sample in record.measurement.samples_us]
    first, third = newest.measurement.quartiles_us
    return Sample(
        query=Query(
            workload=newest.workload,
            backend=newest.measurement.backend,
            settings=newest.measurement.settings,
            num_threads=newest.measurement.environment.num_threads,
            speed=speed,
        ),
        latency_us=statistics.median(samples_us),
        relative_spread=(third - first) / newest.measurement.latency_us,
        record_ids=tuple(record.record_id for record in group),
        role=newest.workload.role,
    )
