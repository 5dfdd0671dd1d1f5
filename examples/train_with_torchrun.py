"""Train a small transformer with a schedule of Tessel's, in a loop of one's own under torchrun.

Run it: `torchrun --nproc-per-node 2 examples/train_with_torchrun.py [SCHEDULE.json]`. Each process holds one
stage. Without a file the schedule is ZB-H1, which splits the backward; any that `tessel schedule` saved for a
chain of two stages runs as well. The first step's gradients are checked against the whole model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tessel.documents import load_schedule
from tessel.engine import build_schedule
from tessel.handwritten import HANDWRITTEN
from tessel.schedule import Schedule
from tessel.shapes import vshape

WORDS, WIDTH, LENGTH, ROWS = 32, 32, 16, 4
MICRO_BATCHES = 8
STEPS = 30
TOLERANCE = 1e-5
"""What another order of float32 sums explains, of gradients whose values are around one."""


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.words(words) + self.places


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)


def make_stages() -> list[nn.Sequential]:
    """Return both stages; the seed makes them alike in every process."""
    torch.manual_seed(0)
    return [
        nn.Sequential(Embedding(), layer()),
        nn.Sequential(layer(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)),
    ]


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def draw_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return words and what should come out, the one after each; a whole batch of micro-batches."""
    rng = torch.Generator().manual_seed(step)
    words = torch.randint(0, WORDS, (MICRO_BATCHES * ROWS, LENGTH), generator=rng)
    return words, (words + 1) % WORDS


def choose_schedule() -> Schedule:
    if len(sys.argv) > 1:
        return load_schedule(Path(sys.argv[1]))
    zb_h1 = next(rule for rule in HANDWRITTEN if rule.name == "zb-h1")
    return zb_h1.build(vshape(2, split_backward=True), micro_batches=MICRO_BATCHES)


def gradient_error(stage: nn.Module, rank: int) -> float:
    """Return the largest difference to the whole model's gradients on the first batch, over all ranks."""
    words, target = draw_batch(0)
    stages = make_stages()
    torch.autograd.backward(loss_fn(nn.Sequential(*stages)(words), target))
    mine, whole = (
        [weight.grad for weight in each.parameters() if weight.grad is not None]
        for each in (stage, stages[rank])
    )
    error = torch.stack([(a - b).abs().max() for a, b in zip(mine, whole, strict=True)]).max()
    errors = [torch.zeros_like(error) for _ in range(dist.get_world_size())]
    dist.all_gather(errors, error)  # A reduction by MAX may lose what is not a number; torch's max keeps it.
    return float(torch.stack(errors).max())


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = make_stages()[rank]
    schedule = build_schedule(choose_schedule(), {rank: stage}, loss_fn)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2)
    for step in range(STEPS):
        words, target = draw_batch(step)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(words)
        else:
            schedule.step(target=target, losses=losses)
        if step == 0:
            error = gradient_error(stage, rank)
            if losses:
                print(f"gradients differ from the whole model's by at most {error:.1e}")
            if not error <= TOLERANCE:
                sys.exit(f"rank {rank}: gradients are wrong by {error:.1e}; the schedule is not used")
        optimizer.step()
        if losses and step % 10 in (0, 9):
            print(f"step {step}: loss {torch.stack(losses).mean():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
