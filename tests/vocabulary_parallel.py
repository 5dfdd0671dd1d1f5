"""An embedding and a head whose words are spread over all ranks, as blocks of their own in the pipeline.

Stage 0 looks words up, the last stage makes logits and the loss; every rank holds a share of the rows of each
and takes part in both. Between them stand the stages of a plain chain.

Source: Shoeybi et al., Megatron-LM (2019, section 3), for splitting the embedding and the logits by words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from pipeline_programs import ROWS, WIDTH, ChainStage, tensor
from torch import nn

from tuner.autograd_stage import AutogradStage, StageAction, Tensors
from tuner.plan import TensorInfo

WORDS = 10


class ParallelSpec(msgspec.Struct, frozen=True):
    """How many stages, the two on all ranks included."""

    num_stages: int


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + torch.tanh(self.linear(x)),)


class Shared:
    """A stage on all ranks: each holds rows `self.rows` of one weight."""

    received: tuple[TensorInfo, ...] = ()
    sent: tuple[TensorInfo, ...] = ()
    received_gradients: tuple[TensorInfo, ...] = ()
    sent_gradients: tuple[TensorInfo, ...] = ()

    def __init__(self, weight: torch.Tensor) -> None:
        share = -(-WORDS // dist.get_world_size())
        self.first = dist.get_rank() * share
        self.weight = weight[self.first : self.first + share]
        self.total = torch.zeros_like(self.weight)
        self.loss_by_micro_batch: dict[int, float] = {}
        self.num_micro_batches = 0

    def start_step(self, num_micro_batches: int) -> None:
        self.total.zero_()
        self.num_micro_batches = num_micro_batches

    def gradients(self) -> Tensors:
        """Return the whole gradient, gathered from all ranks."""
        parts = [torch.zeros_like(self.total) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.total)
        return {"weight": torch.cat(parts)[:WORDS] / self.num_micro_batches}

    def losses(self) -> dict[int, float]:
        return dict(self.loss_by_micro_batch)

    def mine(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which words are among this rank's rows, and the rows' numbers, 0 where they are not."""
        here = (words >= self.first) & (words < self.first + len(self.weight))
        return here, torch.where(here, words - self.first, 0)


class Embedding(Shared):
    sent = (tensor("h1"),)
    received_gradients = (tensor("h1"),)

    def run(self, action: StageAction, given: Mapping[str, torch.Tensor]) -> Tensors:
        here, row = self.mine(draw_words(action.micro_batch)[0])
        if action.kind == "B":
            self.total.index_add_(0, row, given["h1"] * here[:, None])
            return {}
        found = self.weight[row] * here[:, None]
        dist.all_reduce(found)
        return {"h1": found}


class Head(Shared):
    def __init__(self, weight: torch.Tensor, number: int) -> None:
        super().__init__(weight)
        self.received = self.sent_gradients = (tensor(f"h{number}"),)
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def run(self, action: StageAction, given: Mapping[str, torch.Tensor]) -> Tensors:
        (name,) = (info.name for info in self.received)
        if action.kind == "B":
            x, slope = self.kept.pop(action.micro_batch)
            self.total += slope.T @ x
            gradient = slope @ self.weight
            dist.all_reduce(gradient)
            return {name: gradient}
        here, row = self.mine(draw_words(action.micro_batch)[1])
        logits = given[name] @ self.weight.T
        exponentials = logits.exp()
        normalizer = exponentials.sum(1)
        dist.all_reduce(normalizer)
        picked = logits.gather(1, row[:, None])[:, 0] * here
        dist.all_reduce(picked)
        self.loss_by_micro_batch[action.micro_batch] = (normalizer.log() - picked).mean().item()
        slope = exponentials / normalizer[:, None]
        slope[torch.arange(ROWS), row] -= here.float()
        self.kept[action.micro_batch] = (given[name], slope / ROWS)
        return {}


def provide(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, Shared | AutogradStage]:
    """Build stages as the engine's ranks ask for them."""
    last = msgspec.json.decode(spec_json, type=ParallelSpec).num_stages - 1
    return {number: _program(number, last) for number in stage_numbers}


def _program(number: int, last: int) -> Shared | AutogradStage:
    if number == 0:
        return Embedding(draw_weight(0))
    if number == last:
        return Head(draw_weight(1), number)
    received, sent = (tensor(f"h{number}"),), (tensor(f"h{number + 1}"),)
    stage = ChainStage(Layer(number), received, sent, received, sent, ())
    names = frozenset(info.name for info in (*received, *sent))
    return AutogradStage(stage, inputs=lambda m: {}, loss=None, differentiable=names)


def draw_weight(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((WORDS, WIDTH)).astype(np.float32))


def draw_words(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the words that go in and those that should come out."""
    rng = np.random.default_rng([5, micro_batch])
    return tuple(torch.from_numpy(rng.integers(0, WORDS, ROWS)) for _ in range(2))


def reference(num_stages: int, num_micro_batches: int) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses and mean gradients of the whole model on one rank."""
    embedding, head = (draw_weight(seed).requires_grad_() for seed in (0, 1))
    layers = {number: Layer(number) for number in range(1, num_stages - 1)}
    losses = {}
    for m in range(num_micro_batches):
        words, targets = draw_words(m)
        x = embedding[words]
        for layer in layers.values():
            (x,) = layer(x)
        loss = nn.functional.cross_entropy(x @ head.T, targets)
        losses[m] = loss.item()
        (loss / num_micro_batches).backward()
    gradients = {"0/weight": embedding.grad, f"{num_stages - 1}/weight": head.grad}
    for number, layer in layers.items():
        gradients |= {f"{number}/{name}": weight.grad for name, weight in layer.named_parameters()}
    return losses, {name: gradient.numpy() for name, gradient in gradients.items()}
