"""What `tessel targets` and `backends` print."""

from __future__ import annotations

import msgspec

from cost_model.gpu.devices import GpuDevice
from tuner.backends.availability import Availability


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a kind of target can be measured here, and which device that is, or why not."""

    measurable: bool
    detail: str


class TargetsListed(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel targets` lists: what is here, and the names that programs can be built for.

    Attributes:
        here: `cpu` and `cuda`, and whether they can be measured.
        targets: all names.
        gpus: what data sheets say of those that are GPUs with a known one.
    """

    here: dict[str, Device]
    targets: tuple[str, ...]
    gpus: dict[str, GpuDevice]


class BackendsListed(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel backends` lists for a target.

    Attributes:
        target: as it was given.
        measuring_obstacle: why programs for it cannot be measured here; null where they can.
        backends: what each needs, and whether that is here.
    """

    target: str
    measuring_obstacle: str | None
    backends: tuple[Availability, ...]
