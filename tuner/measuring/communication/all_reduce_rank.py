"""One of the processes that `communication.all_reduce` starts: reduce, and write the slowest times.

Checked in tests/tuner/measuring/communication/test_all_reduce.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

_NUM_SAMPLES = 15
_NUM_WARM_UP = 3
_TIMEOUT = timedelta(seconds=120)


def run_rank(folder: Path, num_ranks: int, rank: int, counts: Sequence[int]) -> None:
    """Reduce float32 tensors of these sizes some times; the first rank writes the slowest rank's times.

    Args:
        folder: where the ranks meet, and where `samples.json` is written.
        counts: elements of each tensor.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=num_ranks,
        timeout=_TIMEOUT,
    )
    samples = []
    for count in counts:
        tensor = torch.zeros(count)
        times = []
        for _ in range(_NUM_WARM_UP + _NUM_SAMPLES):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            times.append((time.perf_counter() - start) * 1e6)
        slowest = torch.tensor(times[_NUM_WARM_UP:], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        samples.append(slowest.tolist())
    dist.barrier()
    if rank == 0:
        (folder / "samples.json").write_bytes(msgspec.json.encode(samples))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [int(text) for text in sys.argv[4:]])
