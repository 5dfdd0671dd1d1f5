"""What a killed process started ends with it, also where the parent was gone before the watch began."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.harness.local_fleet import wait_until
from tests.harness.processes import has_ended

CHILD = (
    "import sys, time; from tuner.parent_watch import end_with_parent; "
    "end_with_parent(int(sys.argv[1])); time.sleep(600)"
)

PARENT = f"""import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid())])
print(child.pid, flush=True)
child.wait()
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: has_ended(child))


def test_a_child_whose_parent_had_gone_before_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], timeout=500, check=False)
    assert done.returncode == -9
