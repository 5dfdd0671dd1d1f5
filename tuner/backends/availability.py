"""The available backends for a target, and why the others cannot run.

Checked in tests/scripts/commands/test_backends.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.backends.registry import backend_names, make_backend
from tuner.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether one backend can run on a target.

    Attributes:
        name: the backend's name.
        settings: what changes its results beside its name.
        versions: (distribution, version) pairs of what it brings along.
        reason: why it cannot run, in one sentence; None where it can.
        description: what it is, in one line.
    """

    name: str
    settings: str
    versions: tuple[tuple[str, str], ...]
    reason: str | None
    description: str


def find_availability(target: Target, references: Iterable[str] = ()) -> tuple[Availability, ...]:
    """Return every registered backend's availability, then that of the references.

    Raises:
        UnknownNameError: a reference names no backend.
        ValueError: a reference has a setting that its backend lacks.
    """
    return tuple(_availability(reference, target) for reference in (*backend_names(), *references))


def _availability(reference: str, target: Target) -> Availability:
    backend = make_backend(reference)
    reason = backend.unavailable_reason(target)
    return Availability(
        name=backend.name,
        settings=backend.settings,
        versions=backend.versions() if reason is None else (),
        reason=reason,
        description=(type(backend).__doc__ or "a backend of one's own").strip().splitlines()[0],
    )
