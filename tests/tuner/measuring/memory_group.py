"""A memory control group (Linux, version 1 or 2) below the one that this process is in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

MOUNTED = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A group with a limit.

    Attributes:
        folder: of the group; who writes a process's number to `cgroup.procs` there moves it into the group.
        counts: the file that says how many processes the kernel has killed there.
    """

    folder: Path
    counts: Path

    @property
    def num_killed(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        lines = (line.split() for line in self.counts.read_text().splitlines())
        return next(int(count) for name, count in lines if name == "oom_kill")


@contextlib.contextmanager
def limited_memory(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group, which must be empty at the end; skip the test, saying why, where none can be made."""
    found = _own_group()
    if found is None:
        pytest.skip("this process is in no memory control group below which one can be made")
    parent, limit, counts = found
    folder = parent / f"tessel-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made below {parent}: {error}")
    try:
        (folder / limit).write_text(str(limit_bytes))
        yield MemoryGroup(folder, folder / counts)
    finally:
        folder.rmdir()


def _own_group() -> tuple[Path, str, str] | None:
    """Return this process's group, and the names of its files for the limit and for what was killed."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controller, group = line.split(":", 2)
        own = PurePosixPath(group).relative_to("/")
        if controller == "memory" and (MOUNTED / "memory" / own).is_dir():
            return MOUNTED / "memory" / own, "memory.limit_in_bytes", "memory.oom_control"
        handed_down = MOUNTED / own / "cgroup.subtree_control"
        if controller == "" and handed_down.exists() and "memory" in handed_down.read_text().split():
            return MOUNTED / own, "memory.max", "memory.events"
    return None
