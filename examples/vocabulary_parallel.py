"""A language model whose embedding and head are spread over all ranks: blocks on several devices, for real.

    tessel schedule mshape --devices 4 --micro-batches 8 --memory 8 --save m.json
    tessel run m.json --stages examples/vocabulary_parallel.py:stages

A stage that its placement puts on several ranks is vocabulary-parallel: an embedding at the beginning or in
the middle of the chain (m, nn), a head with its loss at the end (mllm). A stage on one rank is a transformer
layer; behind an embedding in the middle, layers are a decoder's and read what the encoder made. All
embeddings and the head are one tied weight, whose gradients `tessel run` sums over their stages. The weights
are the same on every rank, and `reference` gives the whole model's losses and gradients to compare with.

Source: Shoeybi et al., Megatron-LM (2019, section 3), for vocabulary-parallel embedding and logits.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tuner.plan import TensorInfo
from tuner.programs.autograd_stage import AutogradStage
from tuner.programs.step_results import Tensors

WORDS, WIDTH, LENGTH, ROWS = 1000, 64, 32, 2
TIED = "embedding.weight"


class ToRanks(torch.autograd.Function):
    """Hands on what it is given; the gradients of all ranks are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class FromRanks(torch.autograd.Function):
    """Sums what all ranks give; each gets the whole gradient."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Share(nn.Module):
    """A rank's rows of the tied weight."""

    def __init__(self) -> None:
        super().__init__()
        share = -(-WORDS // dist.get_world_size())
        self.first = dist.get_rank() * share
        self.weight = nn.Parameter(draw_embedding()[self.first : self.first + share].clone())

    def find(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which words are among these rows, and the rows' numbers, 0 where they are not."""
        here = (words >= self.first) & (words < self.first + len(self.weight))
        return here, torch.where(here, words - self.first, 0)

    def look_up(self, words: torch.Tensor) -> torch.Tensor:
        here, row = self.find(words)
        return FromRanks.apply(self.weight[row] * here[..., None])

    def loss(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy; no rank ever holds all logits."""
        logits = ToRanks.apply(x) @ self.weight.T
        here, row = self.find(words)
        picked = FromRanks.apply(logits.gather(-1, row[..., None])[..., 0] * here)
        return (FromRanks.apply(logits.exp().sum(-1)).log() - picked).mean()


class Layer(nn.Module):
    """A transformer layer, of an encoder or of a decoder that reads `memory`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.layer = nn.TransformerDecoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        # Without an encoder a layer reads its own input.
        return self.layer(x, x if memory is None else memory)


@dataclass(frozen=True)
class Stage:
    """What `AutogradStage` asks of a stage."""

    module: nn.Module
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    received: tuple[TensorInfo, ...]
    sent: tuple[TensorInfo, ...]
    relayed: tuple[str, ...]


class Piece(nn.Module):
    """One stage: its kind says which of its parts it calls."""

    def __init__(self, number: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.part = Layer(number) if kind in ("layer", "end") else Share()
        self.embedding = nn.Parameter(draw_embedding()) if kind == "end" else None

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if isinstance(self.part, Share):
            if self.kind == "embedding":
                return (self.part.look_up(given[-1]),)
            return (self.part.loss(given[0], given[-1]),)
        if self.embedding is None:
            return (self.part(*given),)
        *tensors, words = given
        logits = self.part(*tensors) @ self.embedding.T
        return (nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten()),)


class Program(AutogradStage):
    """A stage whose weights go by the whole model's names, and whose shares are gathered."""

    def __init__(self, number: int, kind: str, stage: Stage, device: str) -> None:
        borders = frozenset(info.name for info in (*stage.received, *stage.sent))
        is_last = kind in ("head", "end")
        loss = (lambda micro_batch, known: known["loss"]) if is_last else None
        inputs = functools.partial(draw_words, device=device)
        super().__init__(stage, inputs=inputs, loss=loss, differentiable=borders)
        self._number, self._kind = number, kind

    def gradients(self) -> Tensors:
        found = {}
        for name, gradient in super().gradients().items():
            if name == "part.weight":
                found[TIED] = gathered(gradient)
            elif name == "embedding":
                found[TIED] = gradient
            else:
                found[f"{self._number}.{name}"] = gradient
        return found


def gathered(share: torch.Tensor) -> torch.Tensor:
    """Return the whole gradient of a weight that is split by rows; the last ranks may have fewer."""
    rows = -(-WORDS // dist.get_world_size())
    padded = nn.functional.pad(share, (0, 0, 0, rows - len(share)))
    parts = [torch.zeros_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded)
    return torch.cat(parts)[:WORDS]


def kinds_of(ranks: Sequence[Sequence[int]]) -> list[str]:
    """Return what each stage is, from the ranks that it is on."""
    if len(ranks[0]) < 2:
        raise ValueError("stage 0 is on one rank; use a shape that begins on all: mshape, nnshape, mllm")
    last = len(ranks) - 1
    kinds = []
    for number, own in enumerate(ranks):
        is_shared = len(own) > 1
        if number == last:
            kinds.append("head" if is_shared else "end")
        else:
            kinds.append("embedding" if is_shared else "layer")
    return kinds


def stages(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, Program]:
    """Build stages as `tessel run` asks for them; the specification says which ranks each is on.

    It also says what they compute on; a rank's GPU is torch's current one.
    """
    spec = json.loads(spec_json)
    kinds, device = kinds_of(spec["ranks"]), spec.get("device", "cpu")
    return {
        number: Program(number, kinds[number], make_stage(number, kinds, device), device)
        for number in stage_numbers
    }


def make_stage(number: int, kinds: Sequence[str], device: str) -> Stage:
    kind = kinds[number]
    middle = next((index for index in range(1, len(kinds)) if kinds[index] == "embedding"), len(kinds))
    hidden, memory = tensor(f"h{number}"), tensor(f"h{middle}")
    made = tensor("loss") if kind in ("head", "end") else tensor(f"h{number + 1}")
    words = TensorInfo(name="source" if number == 0 else "target", shape=(), dtype="int64", num_bytes=0)
    # From the embedding in the middle on, what the encoder made travels along.
    relayed = (memory,) if number >= middle else ()
    received = () if number == 0 else (hidden,) if number <= middle else (hidden, memory)
    inputs = {
        "embedding": (words,),
        "layer": received,
        "head": (hidden, words),
        "end": (*received, words),
    }[kind]
    is_last = number == len(kinds) - 1
    return Stage(
        module=Piece(number, kind).to(device),
        inputs=inputs,
        outputs=(made,),
        received=received,
        sent=() if is_last else (made, *relayed),
        relayed=() if is_last else tuple(info.name for info in relayed),
    )


def tensor(name: str) -> TensorInfo:
    return TensorInfo(
        name=name, shape=(ROWS, LENGTH, WIDTH), dtype="float32", num_bytes=4 * ROWS * LENGTH * WIDTH
    )


@functools.cache
def draw_embedding() -> torch.Tensor:
    values = np.random.default_rng(0).standard_normal((WORDS, WIDTH)) / WIDTH**0.5
    return torch.from_numpy(values.astype(np.float32))


@functools.cache
def draw_words(micro_batch: int, device: str = "cpu") -> Tensors:
    """Return the words that go in, and those that should come out."""
    rng = np.random.default_rng([1, micro_batch])
    return {
        name: torch.from_numpy(rng.integers(0, WORDS, (ROWS, LENGTH))).to(device)
        for name in ("source", "target")
    }


def reference(spec_json: str, num_micro_batches: int) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses by micro-batch and mean gradients of the whole model in one process."""
    kinds = kinds_of(json.loads(spec_json)["ranks"])
    embedding = draw_embedding().clone().requires_grad_()
    layers = {number: Layer(number) for number, kind in enumerate(kinds) if kind in ("layer", "end")}
    losses = {}
    for micro_batch in range(num_micro_batches):
        words = draw_words(micro_batch)
        x, memory = embedding[words["source"]], None
        for number, kind in enumerate(kinds):
            if kind == "embedding" and number:
                x, memory = embedding[words["target"]], x
            elif number in layers:
                x = layers[number](x, memory)
        logits = x @ embedding.T
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words["target"].flatten())
        losses[micro_batch] = loss.item()
        (loss / num_micro_batches).backward()
    weights = {TIED: embedding}
    for number, layer in layers.items():
        weights |= {f"{number}.part.{name}": weight for name, weight in layer.named_parameters()}
    gradients = {name: weight.grad for name, weight in weights.items()}
    return losses, {name: grad.numpy() for name, grad in gradients.items() if grad is not None}
