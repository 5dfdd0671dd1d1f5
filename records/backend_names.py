"""Backends that got another name, and the name under which records keep them.

A record is named by a hash of what it says, an environment lists the versions of kernels by their backend
(`products-kernels`), and a stage's workload lists the backends of its parts. With a new name in these, no
record of before would be found. So in what is stored and hashed a backend keeps its first name, and
everywhere else it has its current one: a rename changes no digest, and records are found by both names, by
this version and by those before. Checked in tests/records/test_backend_names.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

CURRENT_NAMES: Mapping[str, str] = MappingProxyType({"products": "packed_matmul", "channels_last": "nhwc"})
"""Of each backend that was renamed, the current name by the one that records keep."""

_KEPT_NAMES = {current: kept for kept, current in CURRENT_NAMES.items()}
_KEPT_WORD = re.compile(rf"\b(?:{'|'.join(CURRENT_NAMES)})\b")
_CURRENT_KERNELS = {f"{kept}-kernels": f"{current}-kernels" for kept, current in CURRENT_NAMES.items()}
_KEPT_KERNELS = {current: kept for kept, current in _CURRENT_KERNELS.items()}
_ALONE = "-alone"
"""Ends the name under which the program of a single backend is recorded."""

Versions = tuple[tuple[str, str], ...]


def current_name(backend: str) -> str:
    """Return the current name of a backend, or of its program alone (`nhwc-alone`), given by either name."""
    return _renamed_backend(backend, CURRENT_NAMES)


def kept_name(backend: str) -> str:
    """Return the name under which records keep a backend, or its program alone, given by either name."""
    return _renamed_backend(backend, _KEPT_NAMES)


def current_label(label: str) -> str:
    """Return a text made of names of backends, such as `without products,blas`, with their current names."""
    return _KEPT_WORD.sub(lambda found: CURRENT_NAMES[found[0]], label)


def current_versions(versions: Versions) -> Versions:
    """Return an environment's versions, sorted, with kernels by the current names of their backends."""
    return _renamed(versions, _CURRENT_KERNELS)


def kept_versions(versions: Versions) -> Versions:
    """Return an environment's versions, sorted, with kernels by the names that records keep."""
    return _renamed(versions, _KEPT_KERNELS)


def _renamed_backend(backend: str, names: Mapping[str, str]) -> str:
    name = backend.removesuffix(_ALONE)
    return names.get(name, name) + backend[len(name) :]


def _renamed(versions: Versions, names: Mapping[str, str]) -> Versions:
    if not any(name in names for name, _ in versions):
        return versions
    return tuple(sorted((names.get(name, name), version) for name, version in versions))
