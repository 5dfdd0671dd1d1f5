"""Train torchtitan's debug model by an exported file under torchtitan's own profiler, on one rank of several.

The profiler writes its folder of traces beside the file; stopwatches are around what runs a stage.

Usage: RANK=0 WORLD_SIZE=2 python record_titan.py STORE STEPS FILE
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchtitan_job
from one_process import random_tokens, run_job
from stopwatches import Stopwatches
from torch.distributed.pipelining import PipelineStage


def main() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    run_job(lambda file, steps: _record(Path(file), steps))


def _record(path: Path, steps: int) -> dict[str, Any]:
    job = torchtitan_job.load_python(path, dist.get_world_size())
    profiler_type = importlib.import_module("torchtitan.tools.profiler").Profiler
    schedule, parts, first, last = job.split()
    watches = Stopwatches()
    for method, letter in (("forward_one_chunk", "F"), ("backward_one_chunk", "B")):
        timed = watches.around(
            getattr(PipelineStage, method),
            lambda stage, chunk, *_, letter=letter, **__: f"{stage.stage_index}{letter}{chunk}",
        )
        setattr(PipelineStage, method, timed)
    options = profiler_type.Config(
        enable_profiling=True, profile_freq=steps, profiler_warmup=1, profiler_active=1, profiler_repeat=1
    )
    with options.build(global_step=0, base_folder=str(path.parent)) as profiler:
        for step in range(steps):
            tokens = random_tokens(step, (job.micro_batches, *job.shape), torchtitan_job.VOCABULARY)
            own = tokens.flatten(0, 1)
            watches.taken_ms.clear()
            losses: list[torch.Tensor] = []
            schedule.step(
                *([own] if first else []), target=own if last else None, losses=losses if last else None
            )
            for value in (value for part in parts for value in part.parameters()):
                value.grad = None
            profiler.step()
    return {"taken_ms": watches.taken_ms}


if __name__ == "__main__":
    main()
