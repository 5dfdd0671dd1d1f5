"""The model of one process that every rank of a job holds itself against, and what jobs do alike.

Imported by the jobs beside it, which a framework's own interpreter runs: torch is all that it needs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

WIDTH, LENGTH = int(os.environ.get("WIDTH", "8")), int(os.environ.get("LENGTH", "4"))
VOCABULARY, RATE = 32, 0.1


class Block(torch.nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.tanh(self.inner(hidden))


def small_model(blocks: int) -> torch.nn.Sequential:
    """Return an embedding, blocks and a head, the same whenever they are made."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        *(Block() for _ in range(blocks)),
        torch.nn.Linear(WIDTH, VOCABULARY),
    )


def loss_of(predicted: torch.Tensor, tokens: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Return how far predictions are from tokens, over all of them."""
    return torch.nn.functional.cross_entropy(
        predicted.flatten(0, -2).float(), tokens.flatten(), reduction=reduction
    )


def random_tokens(step: int, shape: tuple[int, ...], vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Return the tokens of a step, the same on every rank."""
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(step))


def train_whole(whole: torch.nn.Module, loss: torch.Tensor, rate: float) -> float:
    """Take a step of the whole model, whose loss is given, and return that."""
    loss.backward()
    descend(whole.parameters(), rate)
    return float(loss.detach())


def descend(parameters: Iterable[torch.nn.Parameter], rate: float) -> None:
    """Take a step of gradient descent and forget the gradients."""
    with torch.no_grad():
        for value in parameters:
            if value.grad is not None:
                value.sub_(value.grad, alpha=rate)
                value.grad = None


def distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """Return how far a weight is from the same one of another model, at most."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def import_file(path: object) -> Any:
    """Return an exported file as a module."""
    spec = importlib.util.spec_from_file_location("exported", str(path))
    assert spec is not None
    assert spec.loader is not None
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    return exported


def run_job(train: Callable[[str, int], dict[str, Any]], begin: Callable[[], None] = lambda: None) -> None:
    """Train by each file of the command line and print what became of it.

    Args:
        train: of a file and a number of steps; returns how far losses and weights are from those of one
            process, and how far they moved.
        begin: called once the ranks know each other.
    """
    store, steps, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    begin()
    for file in files:
        print("RESULT", json.dumps(train(file, steps)), flush=True)
    dist.barrier()
    dist.destroy_process_group()
