"""Train torchtitan's debug model by an exported file under torchtitan's own profiler, on one rank of several.

The profiler writes its folder of traces beside the file. Stopwatches are around what runs a stage, or, where
there is no pipeline, a layer's forward and the whole backward.

Usage: RANK=0 WORLD_SIZE=2 python record_titan.py STORE STEPS FILE
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from benchmarks.frameworks.jobs import torchtitan_job
from benchmarks.frameworks.jobs.one_process import random_tokens, run_job
from benchmarks.frameworks.jobs.stopwatches import Stopwatches


def main() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    run_job(lambda file, steps: _record(Path(file), steps))


def _record(path: Path, steps: int) -> dict[str, Any]:
    job = torchtitan_job.load_python(path, dist.get_world_size())
    profiler_type = importlib.import_module("torchtitan.tools.profiler").Profiler
    schedule, parts, first, last = job.split()
    watches = Stopwatches()
    if schedule is None:
        train = _whole_model(parts[0], watches)
    else:
        train = _pipeline(schedule, watches, first=first, last=last)
    options = profiler_type.Config(
        enable_profiling=True, profile_freq=steps, profiler_warmup=1, profiler_active=1, profiler_repeat=1
    )
    with options.build(global_step=0, base_folder=str(path.parent)) as profiler:
        for step in range(steps):
            watches.taken_ms.clear()
            train(random_tokens(step, (job.micro_batches, *job.shape), torchtitan_job.VOCABULARY))
            for value in (value for part in parts for value in part.parameters()):
                value.grad = None
            profiler.step()
    return {"taken_ms": watches.taken_ms}


def _whole_model(model: torch.nn.Module, watches: Stopwatches) -> Callable[[torch.Tensor], None]:
    names = ["tok_embeddings", *(f"layers.{index}" for index in range(6)), "lm_head"]
    for name in names:
        layer = model.get_submodule(name)
        layer.forward = watches.around(layer.forward, lambda *_, name=name, **__: name)

    def train(batches: torch.Tensor) -> None:
        for tokens in batches:
            loss = torchtitan_job.loss_of_tokens(model(tokens), tokens)
            watches.around(loss.backward, lambda: "backward")()

    return train


def _pipeline(
    schedule: Any, watches: Stopwatches, *, first: bool, last: bool
) -> Callable[[torch.Tensor], None]:
    for method, letter in (("forward_one_chunk", "F"), ("backward_one_chunk", "B")):
        timed = watches.around(
            getattr(PipelineStage, method),
            lambda stage, chunk, *_, letter=letter, **__: f"{stage.stage_index}{letter}{chunk}",
        )
        setattr(PipelineStage, method, timed)
    schedule._maybe_compute_loss = watches.around(  # a last stage's forward has it, too
        schedule._maybe_compute_loss, lambda stage, *others, **_: f"{stage.stage_index}F{others[2]}"
    )

    def train(batches: torch.Tensor) -> None:
        own = batches.flatten(0, 1)
        losses: list[torch.Tensor] = []
        schedule.step(
            *([own] if first else []), target=own if last else None, losses=losses if last else None
        )

    return train


if __name__ == "__main__":
    main()
