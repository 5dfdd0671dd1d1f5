"""A container's or a batch job's limit on memory counts, in either version of control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tuner.measuring.worker_process import memory_limit_bytes

MACHINE = psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"memory.max": "1000000\n"}, 1_000_000),  # in a container, whose group is the root
        ("0::/job/step", {"job/step/memory.max": "max\n", "job/memory.max": "2000\n"}, 2_000),
        ("0::/job", {"job/memory.max": "max\n"}, MACHINE),
        ("4:memory:/job", {"memory/job/memory.limit_in_bytes": "3000\n"}, 3_000),
        ("4:memory:/job", {"memory/job/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, MACHINE),
        ("4:memory:/outside", {"memory/memory.limit_in_bytes": "4000\n"}, 4_000),  # of a container, version 1
        ("5:cpu:/job", {"job/memory.max": "5000\n"}, MACHINE),
    ],
)
def test_the_smallest_limit_around_this_process_counts(
    line: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    own_groups = tmp_path / "cgroup"
    own_groups.write_text(line + "\n")
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_limit_bytes(own_groups=own_groups, mounted=tmp_path / "mounted") == expected


def test_where_there_are_no_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert memory_limit_bytes(own_groups=tmp_path / "none", mounted=tmp_path) == MACHINE
