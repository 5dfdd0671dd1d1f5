"""What `tessel targets` and `backends` print."""

from __future__ import annotations

import msgspec

from tuner.backends.availability import Availability


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a kind of target can be measured here, and which device that is, or why not."""

    measurable: bool
    detail: str


class TargetsListed(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel targets` lists: what is here, and the names that programs can be built for."""

    here: dict[str, Device]
    targets: tuple[str, ...]


class BackendsListed(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel backends` lists for a target."""

    target: str
    backends: tuple[Availability, ...]
