"""A small language model trained on sequences of unequal length, a stage a rank: measured, ordered, run.

    python examples/unequal_lengths.py measure 2 64,64,512,128,64,384 > out/lengths.json
    tessel schedule vshape --devices 2 --batch out/lengths.json --save out/order.json
    tessel run out/order.json --stages examples/unequal_lengths.py:stages --step 0.001ms

`measure` times each stage on each length, on the processor's clock, and writes the batch with spans in
microseconds. The order of micro-batches is then searched, and run beside 1F1B with the micro-batches as they
are given; all losses and gradients are compared with those of one process. `padded_stages` pads every
micro-batch to the longest, which changes no result, as attention is causal and padding has no loss. Losses
are over the mean length, so that the mean over micro-batches is the mean over all tokens.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from tuner.plan import TensorInfo
from tuner.programs.autograd_stage import AutogradStage
from tuner.programs.step_results import Tensors

WORDS, WIDTH, HEADS, LAYERS = 512, 128, 4, 2
REPEATS = 7
"""Times that a stage is measured on a length; the median counts."""


class Layer(nn.Module):
    """A causal transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            self.qkv(self.first(x)).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-3, -2)
        )
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed.transpose(-3, -2).flatten(-2))
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return out


class Piece(nn.Module):
    """A stage: layers, with the embedding before the first and the head behind the last."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.embedding = nn.Embedding(WORDS, WIDTH) if number == 0 else None
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if number == count - 1 else None

    def forward(self, x: Tensor) -> tuple[Tensor]:
        x = self.layers(x if self.embedding is None else self.embedding(x))
        return (x if self.head is None else self.head(x),)


@dataclass(frozen=True)
class Stage:
    """What `AutogradStage` asks of a stage."""

    module: nn.Module
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    received: tuple[TensorInfo, ...]
    sent: tuple[TensorInfo, ...]
    relayed: tuple[str, ...] = ()


class Program(AutogradStage):
    """A stage whose tensors are as long as the micro-batch, or as the longest one."""

    def __init__(self, number: int, count: int, lengths: Sequence[int], *, is_padded: bool) -> None:
        def infos(name: str) -> tuple[TensorInfo, ...]:
            return (TensorInfo(name=name, shape=(1, 1, WIDTH), dtype="float32", num_bytes=4 * WIDTH),)

        words = TensorInfo(name="words", shape=(1, 1), dtype="int64", num_bytes=8)
        received = infos(f"h{number}") if number else ()
        made = infos(f"h{number + 1}")
        is_last = number == count - 1
        stage = Stage(
            module=Piece(number, count),
            inputs=received or (words,),
            outputs=made,
            received=received,
            sent=() if is_last else made,
        )
        self._lengths = [max(lengths) if is_padded else each for each in lengths]
        mean = sum(lengths) / len(lengths)

        def inputs(micro_batch: int) -> Tensors:
            return draw(lengths[micro_batch], micro_batch, self._lengths[micro_batch])

        def loss(micro_batch: int, known: Tensors) -> Tensor:
            return loss_of(known[made[0].name], known["next"], mean)

        super().__init__(
            stage,
            inputs=inputs,
            loss=loss if is_last else None,
            differentiable=frozenset(info.name for info in (*stage.received, *stage.sent)),
            weight_names={name: f"{number}.{name}" for name, _ in stage.module.named_parameters()},
        )

    def of_micro_batch(self, info: TensorInfo, micro_batch: int) -> TensorInfo:
        """Return a tensor that crosses a border as long as it is in a micro-batch."""
        length = self._lengths[micro_batch]
        return msgspec.structs.replace(info, shape=(1, length, WIDTH), num_bytes=4 * length * WIDTH)


def draw(length: int, micro_batch: int, padded: int) -> Tensors:
    """Return a sequence and the words that follow; padding has the word 0, and no loss."""
    words = torch.zeros(1, padded + 1, dtype=torch.int64)
    drawn = np.random.default_rng(micro_batch).integers(0, WORDS, length + 1)
    words[0, : length + 1] = torch.from_numpy(drawn)
    following = words[:, 1:].clone()
    following[0, length:] = -100
    return {"words": words[:, :-1], "next": following}


def loss_of(logits: Tensor, following: Tensor, mean_length: float) -> Tensor:
    """Return the loss of a micro-batch's tokens, over the mean number of tokens."""
    return (
        nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum") / mean_length
    )


def stages(spec_json: str, numbers: Sequence[int]) -> dict[int, Program]:
    """Build stages whose tensors are as long as each micro-batch, as `tessel run` asks for them."""
    return build(json.loads(spec_json), numbers, is_padded=False)


def padded_stages(spec_json: str, numbers: Sequence[int]) -> dict[int, Program]:
    """Build stages that pad every micro-batch to the longest."""
    return build(json.loads(spec_json), numbers, is_padded=True)


def build(spec: Any, numbers: Sequence[int], *, is_padded: bool) -> dict[int, Program]:
    """Build stages; the classes of micro-batches are named by their lengths."""
    lengths = [int(name) for name in spec["classes"]]
    count = len(spec["ranks"])
    return {number: Program(number, count, lengths, is_padded=is_padded) for number in numbers}


def reference(spec_json: str, num_micro_batches: int) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses by micro-batch and mean gradients of the whole model in one process, unpadded."""
    spec = json.loads(spec_json)
    lengths = [int(name) for name in spec["classes"]]
    pieces = [Piece(number, len(spec["ranks"])) for number in range(len(spec["ranks"]))]
    losses = {}
    for micro_batch in range(num_micro_batches):
        drawn = draw(lengths[micro_batch], micro_batch, lengths[micro_batch])
        x = drawn["words"]
        for piece in pieces:
            (x,) = piece(x)
        losses[micro_batch] = loss_of(x, drawn["next"], sum(lengths) / len(lengths))
    weights = {
        f"{number}.{name}": weight
        for number, piece in enumerate(pieces)
        for name, weight in piece.named_parameters()
    }
    mean = torch.stack(list(losses.values())).mean()
    gradients = torch.autograd.grad(mean, list(weights.values()))
    return {number: loss.item() for number, loss in losses.items()}, {
        name: gradient.numpy() for name, gradient in zip(weights, gradients, strict=True)
    }


def measured_us(piece: Piece, x: Tensor) -> tuple[int, int]:
    """Return the medians of a stage's forward and backward."""
    times = []
    for _ in range(1 + REPEATS):
        x = x.detach().requires_grad_(x.is_floating_point())
        began = time.process_time()
        (out,) = piece(x)
        forward = time.process_time()
        wanted = [*piece.parameters(), *((x,) if x.requires_grad else ())]
        torch.autograd.grad(out, wanted, torch.ones_like(out))
        times.append((forward - began, time.process_time() - forward))
    medians = (statistics.median(each) * 1e6 for each in zip(*times[1:], strict=True))
    forward_us, backward_us = map(round, medians)
    return forward_us, backward_us


def measure(count: int, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the batch of `tessel schedule --batch`: spans in microseconds, a unit of memory a token."""
    torch.set_num_threads(1)
    pieces = [Piece(number, count) for number in range(count)]
    classes = []
    for length in sorted(set(lengths)):
        rows = [torch.zeros(1, length, dtype=torch.int64), *(torch.zeros(1, length, WIDTH),) * (count - 1)]
        taken = [measured_us(piece, x) for piece, x in zip(pieces, rows, strict=True)]
        # The blocks of vshape: forwards down the stages, backwards up.
        spans = [forward for forward, _ in taken] + [backward for _, backward in reversed(taken)]
        memory = [length] * count + [-length] * count
        classes.append({"length": length, "spans": spans, "memory": memory})
    return {"classes": classes, "sequence": list(lengths)}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[2]), [int(each) for each in sys.argv[3].split(",")])))
