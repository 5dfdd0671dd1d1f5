"""The benchmark of the fleet leaves nothing behind when a time limit ends it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import has_ended_by_id
from tests.records.postgres_server import find_binaries

ROOT = Path(__file__).parents[2]

SLEEPS_WITH_A_DATABASE = """
import sys, tempfile, time
from benchmarks import fleet

def sleep(candidates):
    with tempfile.TemporaryDirectory() as folder, fleet.Database(folder) as database:
        print(folder, database.server.folder, flush=True)
        time.sleep(300)

fleet.share_work = sleep
sys.argv = ["fleet", "--only", "tuners"]
fleet.main()
"""


@pytest.mark.slow
@pytest.mark.tvm
@pytest.mark.postgres
@pytest.mark.skipif(find_binaries() is None, reason="PostgreSQL is not installed")
def test_sigterm_takes_the_database_down_with_the_benchmark() -> None:
    command = [sys.executable, "-c", SLEEPS_WITH_A_DATABASE]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folders = [Path(each) for each in process.stdout.readline().split()]
        assert len(folders) == 2
        assert all(each.exists() for each in folders)
        pid = int((folders[1] / "data/postmaster.pid").read_text().splitlines()[0])
        assert not has_ended_by_id(pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not any(each.exists() for each in folders)
    assert has_ended_by_id(pid)
