"""Train a small model by exported files in DeepSpeed's engine, one rank of several, over gloo on CPUs.

Each rank holds its loss and the weights of its stage against the whole model, trained in this process.

Usage: RANK=0 WORLD_SIZE=2 python deepspeed_job.py STORE STEPS FILE…
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

WIDTH, LENGTH, VOCABULARY, RATE = 8, 4, 32, 0.1


class Block(torch.nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.tanh(self.inner(hidden))


def main() -> None:
    """Train and print how far losses and weights are from those of one process."""
    store, steps, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    # It would compile collectives over one machine's memory, and wait for a lock of another job's compiler.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo", dist_init_required=False)
    for file in files:
        _train(file, rank, world, steps)
    dist.barrier()


def _train(path: str, rank: int, world: int, steps: int) -> None:
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None
    assert spec.loader is not None
    exported: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    exported.use_plan()
    replicas = world // exported.STAGES
    layers, whole = _layers(len(exported.LAYERS)), _layers(len(exported.LAYERS))
    engine, *_ = deepspeed.initialize(
        model=exported.PlannedPipelineModule(layers, num_stages=exported.STAGES, loss_fn=_loss),
        optimizer=torch.optim.SGD(_stage_of(exported, layers, rank // replicas), lr=RATE),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": exported.MICRO_BATCHES,
            "train_batch_size": exported.MICRO_BATCHES * replicas,
            "zero_optimization": {"stage": 0},
            "gradient_clipping": 0.0,  # which is 1.0 where nothing is said
        },
    )
    difference = 0.0
    for step in range(steps):
        tokens = torch.randint(
            VOCABULARY,
            (replicas * exported.MICRO_BATCHES, LENGTH),
            generator=torch.Generator().manual_seed(step),
        )
        own = tokens.view(replicas, exported.MICRO_BATCHES, 1, LENGTH)[rank % replicas]
        found = float(engine.train_batch(iter([(each, each) for each in own])))
        difference = max(difference, abs(found - _train_whole(whole, tokens)))
    bounds = exported.PARTS[rank // replicas], exported.PARTS[rank // replicas + 1]
    start = _layers(len(exported.LAYERS))
    moved = _distance(whole, start)
    difference = max(difference, _distance(whole[slice(*bounds)], layers[slice(*bounds)]))
    print("RESULT", json.dumps({"difference": difference, "moved": moved}), flush=True)


def _layers(count: int) -> torch.nn.Sequential:
    """Return an embedding, blocks and a head, the same whenever they are made."""
    torch.manual_seed(0)
    blocks = (Block() for _ in range(count - 2))
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH), *blocks, torch.nn.Linear(WIDTH, VOCABULARY)
    )


def _stage_of(exported: Any, layers: torch.nn.Sequential, stage: int) -> Any:
    return layers[exported.PARTS[stage] : exported.PARTS[stage + 1]].parameters()


def _loss(predicted: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predicted.flatten(0, 1), tokens.flatten())


def _train_whole(whole: torch.nn.Sequential, tokens: torch.Tensor) -> float:
    whole.zero_grad()
    loss = _loss(whole(tokens), tokens)
    loss.backward()
    with torch.no_grad():
        for value in whole.parameters():
            assert value.grad is not None
            value.sub_(value.grad, alpha=RATE)
    return float(loss.detach())


def _distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


if __name__ == "__main__":
    main()
