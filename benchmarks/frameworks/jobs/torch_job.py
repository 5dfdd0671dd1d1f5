"""Train a small model by exported CSVs, one after the other, in torch's own pipeline runtime over gloo.

Each rank holds its losses and the weights of its stages against the whole model, trained in this process.
Where a file's name ends with `tied-0-3`, say, those stages hold one weight, with `frozen-0` that one is not
trained. Stages in a Python file of the
same name are of several copies of one pipeline, each of which has its part of the batch. Gradients are summed
over the ranks and scaled here: the runtime would divide those of a shared parameter by the micro-batches once
for each stage that has it.

Usage: RANK=0 WORLD_SIZE=2 python torch_job.py STORE STEPS FILE…
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from benchmarks.frameworks.jobs.one_process import (
    RATE,
    WIDTH,
    descend,
    distance,
    import_file,
    run_job,
    train_whole,
)


def main() -> None:
    """Train and print how far losses and weights are from those of one process."""
    run_job(lambda file, steps: _train(Path(file), dist.get_rank(), steps))


def _train(path: Path, rank: int, steps: int) -> dict[str, Any]:
    text = path.read_text()
    held = sorted({int(found) for found in re.findall(r"(\d+)F\d", text.splitlines()[rank])})
    count = 1 + max(int(found) for found in re.findall(r"(\d+)F\d", text))
    micro_batches = 1 + max(int(found) for found in re.findall(r"\d+F(\d+)", text))
    planned = _stages_beside(path, count)
    length = count // len(planned.FIRST)
    tied, frozen = (
        [int(found) for found in re.findall(r"-(\d+)", path.stem.partition(what)[2])]
        for what in ("tied", "frozen")
    )
    layers, whole, start = (_layers(length, tied, frozen) for _ in range(3))
    stages = [
        planned.PlannedStage(layers[stage % length], stage, count, torch.device("cpu")) for stage in held
    ]
    schedule = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=_loss, scale_grads=False)
    schedule._load_csv(str(path), format="compute_only" if length == count else "compute_comms")
    difference = 0.0
    for step in range(steps):
        torch.manual_seed(step)
        batches, targets = (torch.randn(count // length, 2 * micro_batches, WIDTH) for _ in range(2))
        losses: list[torch.Tensor] = []
        begun = [copy for copy, stage in enumerate(planned.FIRST) if stage in held]
        ended = [copy for copy, stage in enumerate(planned.LAST) if stage in held]
        schedule.step(
            *(batches[copy] for copy in begun),
            target=targets[ended[0]] if ended else None,
            losses=losses if ended else None,
        )
        parts = [_loss(whole(batch), target) for batch, target in zip(batches, targets, strict=True)]
        train_whole(whole, torch.stack(parts).mean(), RATE)
        for copy in ended:
            difference = max(difference, abs(float((torch.stack(losses).mean() - parts[copy]).detach())))
        for value in layers.parameters():  # each once; those of other ranks' stages have none
            value.grad = torch.zeros_like(value) if value.grad is None else value.grad
            dist.all_reduce(value.grad)
            value.grad.div_(micro_batches * len(planned.FIRST))
        descend(layers.parameters(), RATE)
    apart = [distance(layers[stage % length], whole[stage % length]) for stage in held]
    return {"difference": max(difference, *apart), "moved": distance(whole, start)}


def _stages_beside(path: Path, count: int) -> Any:
    """Return the exported stages, or torch's own of one chain."""
    file = path.with_suffix(".py")
    if not file.exists():
        return SimpleNamespace(PlannedStage=PipelineStage, FIRST=(0,), LAST=(count - 1,))
    return import_file(file)


def _layers(count: int, tied: list[int], frozen: list[int]) -> torch.nn.Sequential:
    """Return stages, the same whenever they are made, of which some hold one weight, some are frozen."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count))
    )
    for stage in tied[1:]:
        _linear(layers, stage).weight = _linear(layers, tied[0]).weight
    for stage in frozen:
        layers[stage].requires_grad_(False)
    return layers


def _linear(layers: torch.nn.Sequential, stage: int) -> torch.nn.Linear:
    found = layers.get_submodule(f"{stage}.0")
    assert isinstance(found, torch.nn.Linear), "see _layers"
    return found


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


if __name__ == "__main__":
    main()
