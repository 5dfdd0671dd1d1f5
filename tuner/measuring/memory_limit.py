"""Limit of memory of processes here: the machine's, or less where a container or batch job is limited.

Checked in tests/tuner/measuring/test_memory_limit.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_MOUNT_AND_FILE = {
    "": ("", "memory.max"),
    "memory": ("memory", "memory.limit_in_bytes"),
}
"""By what a line of `/proc/self/cgroup` names between its colons: of control groups version 2, and 1."""


def memory_limit_bytes(
    *, own_groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the bytes of the machine, or of the smallest control group that this process is in.

    Args:
        own_groups: where the system says which groups these are.
        mounted: where they are.
    """
    limits = [psutil.virtual_memory().total]
    for path in _limit_files(own_groups, mounted):
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says `max`
            limits.append(int(path.read_text()))
    return min(limits)


def _limit_files(own_groups: Path, mounted: Path) -> Iterator[Path]:
    """Yield the files of the groups of this process and of those around them; some may not exist."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controller, group = line.split(":", 2)
        if controller in _MOUNT_AND_FILE:
            mount, name = _MOUNT_AND_FILE[controller]
            path = PurePosixPath(group)
            for each in (path, *path.parents):
                yield mounted / mount / str(each).lstrip("/") / name
