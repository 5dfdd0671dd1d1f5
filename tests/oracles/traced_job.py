"""A training job of two ranks over gloo that traces itself, and keeps time beside the profiler.

Its stages compute for a known time in both directions, so that what a reader makes of the trace can be held
against stopwatches that it does not share a line with.

Usage: RANK=0 WORLD_SIZE=2 python traced_job.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

ORDERS = "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0B2\n1F0,1I0,1W0,1F1,1I1,1W1,1F2,1B2\n"
SLEEP_MS = ((30.0, 10.0), (5.0, 40.0))
"""Of each stage, forward and backward: the second rank waits for each of its inputs."""

STEPS = 6
"""A busy machine may disturb an operation in some of them, not in all."""


class _Pause(torch.autograd.Function):
    """Takes a known time in both directions, between two operations."""

    @staticmethod
    def forward(ctx, x: Tensor, pause: Pause) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.pause = pause
        return pause.waited(x, "forward", pause.forward_ms)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        return ctx.pause.waited(gradient, "backward", ctx.pause.backward_ms), None


class Pause(nn.Module):
    """A linear layer that takes a known time, and keeps a stopwatch.

    Attributes:
        taken: microseconds by direction, in order.
    """

    def __init__(self, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.forward_ms, self.backward_ms = forward_ms, backward_ms
        self.taken: dict[str, list[float]] = {"forward": [], "backward": []}

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Pause.apply(self.linear(x), self)  # type: ignore[no-untyped-call]
        return found

    def waited(self, x: Tensor, direction: str, milliseconds: float) -> Tensor:
        began = time.perf_counter()
        x = x.clone()
        time.sleep(milliseconds / 1e3)
        x = x * 1.0
        self.taken[direction].append((time.perf_counter() - began) * 1e6)
        return x


def main() -> None:
    """Train by the orders, and write trace and times."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    orders = folder / "orders.csv"
    if rank == 0:
        orders.write_text(ORDERS)
    dist.barrier()
    pause = Pause(*SLEEP_MS[rank])
    stage = PipelineStage(pause, rank, 2, torch.device("cpu"))
    schedule = _PipelineScheduleRuntime([stage], 3, loss_fn=nn.MSELoss())
    schedule._load_csv(str(orders))

    def step() -> None:
        batch = torch.zeros(6, 8)
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == 1 else None)

    step()
    pause.taken = {"forward": [], "backward": []}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            step()
            profiler.step()
    traces = folder / "traces"
    traces.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(traces / f"rank{rank}_trace.json.gz"))
    (folder / f"taken{rank}.json").write_text(json.dumps(pause.taken))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
