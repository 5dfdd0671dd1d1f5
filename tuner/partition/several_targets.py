"""Candidates of several targets in one search, such as a GPU and the host that feeds it.

A backend that builds for one of several targets is named with it, `cudnn@cuda`; an assignment by operator
(`tuner.partition.assignment`) says which targets may run it, `nn.softmax=*@llvm`: a constraint of devices.
Within a target values pass freely, and between two of them each costs the search's transition. Checked in
tests/tuner/partition/test_several_targets.py.

Source: TVM RFC 62 (a list of targets, each with its fusion spec; candidates keep to an operator's device).
There every operator's device is fixed before the search, and what copies cost decides nothing; here it
chooses among the targets that an operator may run on, copies included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tuner.partition.candidate import FREE
from tuner.partition.partition_spec import PartitionSpec


def specs_of_targets(specs: Mapping[str, Sequence[PartitionSpec]]) -> tuple[PartitionSpec, ...]:
    """Return the specs of several targets for one search; each target has rules of its own.

    Args:
        specs: by the name of the target. What costs nothing runs wherever it is read, on all of them.

    Raises:
        ValueError: the name of a target or a backend has an `@`, or a target has no name.
    """
    found: dict[tuple[str, int], PartitionSpec] = {}
    for target, own in specs.items():
        if not target or any("@" in name for name in (target, *(spec.backend for spec in own))):
            raise ValueError(
                f"target {target!r} or one of its backends {[spec.backend for spec in own]} has no name "
                "that can be joined by an @; name both, without one"
            )
        for index, spec in enumerate(own):
            if spec.backend == FREE:
                found.setdefault((FREE, index), spec)
            else:
                found[target, index] = replace(spec, backend=f"{spec.backend}@{target}")
    return tuple(found.values())


def target_of(backend: str) -> str:
    """Return the target in a backend's name, or the backend where it names none."""
    return backend.rpartition("@")[2]


def numbered_by_target(backends: Iterable[str]) -> dict[str, int]:
    """Return a number for each backend, the same for those of one target; -1 for what costs nothing."""
    names = set(backends)
    targets = sorted({target_of(name) for name in names - {FREE}})
    return {name: -1 if name == FREE else targets.index(target_of(name)) for name in sorted(names | {FREE})}
