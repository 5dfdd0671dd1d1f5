"""Files of all ranks come to rank 0, and times of a clock that is an hour ahead to that of rank 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from tessel.engine.job import Event
from tessel.engine.ranks.gathering import ClockReading, on_first_clock

pytestmark = pytest.mark.torch

CODE = """
import sys, time
from pathlib import Path
import torch.distributed as dist
from tessel.engine.ranks.gathering import gather_files, read_first_clock

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
group = dist.new_group(backend="gloo")
reading = read_first_clock(group, lambda: time.perf_counter() + 3600.0 * rank)
print(reading.ahead_s, reading.error_s)
own = folder / str(rank)
own.mkdir()
(own / f"large-{rank}.bin").write_bytes(bytes([rank]) * ((1 << 26) + 3))
(own / f"empty-{rank}.log").touch()
gather_files(own, [f"empty-{rank}.log", f"large-{rank}.bin"], group)
dist.barrier(group)
"""


def test_files_and_times_come_to_rank_0(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(rank), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    readings = [[float(word) for word in rank.communicate(timeout=240)[0].split()] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert readings[0] == [0.0, 0.0]
    ahead_s, error_s = readings[1]
    assert abs(ahead_s + 3600.0) <= error_s < 60.0
    assert (tmp_path / "0" / "large-1.bin").read_bytes() == bytes([1]) * ((1 << 26) + 3)
    assert (tmp_path / "0" / "empty-1.log").read_bytes() == b""
    assert not (tmp_path / "1" / "large-0.bin").exists()


def test_clocks_that_run_apart_are_interpolated() -> None:
    event = Event(action="0F0", ready_s=100.0, start_s=105.0, end_s=110.0)
    ((moved,),) = on_first_clock([[event]], ClockReading(100.0, -50.0, 0.0), ClockReading(110.0, -49.0, 0.0))
    assert (moved.ready_s, moved.start_s, moved.end_s) == (50.0, 55.5, 61.0)
