"""Train a small model by an exported CSV, or each of a folder, in torch's own pipeline runtime over gloo.

Each rank holds its losses and the weights of its stages against the whole model, trained in this process.
Where a file's name ends with `tied-0-3`, say, those stages hold one weight: ranks that have several of them
share the parameter, and its gradients are summed over the ranks before an update. Gradients are scaled here:
the runtime would divide those of a shared parameter by the micro-batches once for each stage that has it.

Usage: RANK=0 WORLD_SIZE=2 python torch_job.py FILE STORE STEPS
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, RATE = 8, 0.1


def main() -> None:
    """Train and print how far losses and weights are from those of one process."""
    path, store, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    found = [_train(file, rank, steps) for file in files]
    result = {"difference": max(each[0] for each in found), "moved": min(each[1] for each in found)}
    print("RESULT", json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _train(path: Path, rank: int, steps: int) -> tuple[float, float]:
    """Return how far this rank is from the whole model after training by one file, and how far that moved."""
    text = path.read_text()
    held = [{int(found) for found in re.findall(r"(\d+)F", line)} for line in text.splitlines()]
    num_stages = 1 + max(stage for own in held for stage in own)
    micro_batches = 1 + max(int(found) for found in re.findall(r"\d+F(\d+)", text))
    tied = [int(found) for found in re.findall(r"-(\d+)", path.stem.partition("tied")[2])]
    layers, whole, start = (_layers(num_stages, tied) for _ in range(3))
    if len({place for place, own in enumerate(held) if own & set(tied)}) > 1:
        _hold_copies(layers, tied, held[rank])
    stages = [
        PipelineStage(layers[stage], stage, num_stages, torch.device("cpu")) for stage in sorted(held[rank])
    ]
    schedule = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=_loss, scale_grads=False)
    schedule._load_csv(str(path))
    difference, last = 0.0, num_stages - 1 in held[rank]
    for step in range(steps):
        torch.manual_seed(step)
        batch, target = torch.randn(2 * micro_batches, WIDTH), torch.randn(2 * micro_batches, WIDTH)
        losses: list[torch.Tensor] = []
        schedule.step(
            *([batch] if 0 in held[rank] else []),
            target=target if last else None,
            losses=losses if last else None,
        )
        loss = _loss(whole(batch), target)
        loss.backward()
        if last:
            difference = max(difference, abs(float(torch.stack(losses).mean().detach() - loss.detach())))
        for value in layers.parameters():  # each once
            if value.grad is not None:
                value.grad.div_(micro_batches)
        _sum_tied(layers, tied, held)
        for model in (layers, whole):
            _descend(model)
    apart = [_distance(layers[stage], whole[stage]) for stage in held[rank]]
    return max(difference, *apart), _distance(whole, start)


def _layers(count: int, tied: list[int]) -> torch.nn.Sequential:
    """Return stages, the same whenever they are made, of which some hold one weight."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count))
    )
    for stage in tied[1:]:
        _linear(layers, stage).weight = _linear(layers, tied[0]).weight
    return layers


def _linear(layers: torch.nn.Sequential, stage: int) -> torch.nn.Linear:
    found = layers.get_submodule(f"{stage}.0")
    assert isinstance(found, torch.nn.Linear), "see _layers"
    return found


def _hold_copies(layers: torch.nn.Sequential, tied: list[int], own: set[int]) -> None:
    """Give stages of other ranks a parameter of their own; this rank's go on sharing theirs."""
    for stage in tied:
        if stage not in own:
            own_weight = _linear(layers, stage).weight.detach().clone()
            _linear(layers, stage).weight = torch.nn.Parameter(own_weight)


def _sum_tied(layers: torch.nn.Sequential, tied: list[int], held: list[set[int]]) -> None:
    """Sum a tied weight's gradients over the ranks, of which those without it add nothing."""
    own = [stage for stage in tied if stage in held[dist.get_rank()]]
    if not tied:
        return
    total = _linear(layers, own[0]).weight.grad if own else torch.zeros(WIDTH, WIDTH)
    assert total is not None, "the step has just run"
    dist.all_reduce(total)


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def _descend(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for value in model.parameters():
            if value.grad is not None:
                value.sub_(value.grad, alpha=RATE)
                value.grad = None


def _distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


if __name__ == "__main__":
    main()
