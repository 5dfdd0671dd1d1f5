"""Random chains of matrix products: linear layers and attention over many shapes, for the cost model.

Beside `random_convolutions`: widths, lengths and numbers of heads that no network of the zoo has. Checked in
tests/tuner/frontend/random_models/test_random_chains.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit, emit_model
from tuner.frontend.layers import CrossEntropy, LayerNorm, Linear, RMSNorm, attend
from tuner.frontend.model import InputSpec, Model

_MAX_GFLOPS = 0.6
"""Largest layer: without tuning, TVM's kernels run at a few GFLOP/s."""

_MAX_ELEMENTS = 1 << 20
"""Largest tensor between two layers, 4 MiB."""

_BATCHES = (1, 1, 2, 4, 8, 16, 32)
_LENGTHS = (1, 4, 8, 12, 20, 24, 40, 56, 77, 96, 120, 144, 180, 224)
_WIDTHS = (40, 48, 72, 96, 100, 160, 192, 224, 320, 384, 400, 640, 800, 1000, 1152, 1536)
_HEADS = (1, 2, 3, 4, 6, 8, 12, 16)
_DEPTHS = (8, 20, 24, 32, 40, 48, 64, 80, 96)
_NUM_CLASSES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    batch: int
    length: int
    width: int
    heads: int
    depth: int
    outputs: int
    activation: str | None
    norm: str | None
    is_causal: bool


def random_products(seed: int, *, training: bool) -> Model:
    """Return a classifier of sequences, with its loss for training; a seed is one chain."""
    rng = np.random.default_rng(seed)
    while not _fits(shape := _draw(rng)):
        pass
    inputs = [
        InputSpec(name="sequence", shape=(shape.batch, shape.length, shape.width), dtype="float32"),
    ]
    if training:
        inputs.append(InputSpec(name="labels", shape=(shape.batch,), dtype="int64", high=_NUM_CLASSES))
    return emit_model(f"products:{seed}", _Chain(shape), inputs, training=training)


class _Chain(Layer):
    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        inner = shape.heads * shape.depth
        self.norm = {"layer": LayerNorm, "rms": RMSNorm}[shape.norm](shape.width) if shape.norm else None
        self.query, self.key, self.value = (Linear(shape.width, inner) for _ in range(3))
        self.output = Linear(inner, shape.outputs, bias=shape.activation is not None)
        self.classifier = Linear(shape.outputs, _NUM_CLASSES)
        self.loss = CrossEntropy()

    def forward(self, sequence: nn.Tensor, labels: nn.Tensor | None = None) -> nn.Tensor:
        x = sequence if self.norm is None else self.norm(sequence)
        mixed = attend(
            self.query(x),
            self.key(x),
            self.value(x),
            num_heads=self.shape.heads,
            causal=self.shape.is_causal,
        )
        x = _activate(self.output(mixed), self.shape.activation)
        logits = self.classifier(emit(relax.op.mean(x._expr, axis=[1]), "average"))
        return logits if labels is None else self.loss(logits, labels)


def _activate(x: nn.Tensor, activation: str | None) -> nn.Tensor:
    match activation:
        case "relu":
            return nn.op.relu(x)
        case "gelu":
            return nn.op.gelu(x)
        case "tanh":
            return nn.op.tanh(x)
    return x


def _draw(rng: np.random.Generator) -> _Shape:
    return _Shape(
        batch=int(rng.choice(_BATCHES)),
        length=int(rng.choice(_LENGTHS)),
        width=int(rng.choice(_WIDTHS)),
        heads=int(rng.choice(_HEADS)),
        depth=int(rng.choice(_DEPTHS)),
        outputs=int(rng.choice(_WIDTHS)),
        activation=(None, "relu", "gelu", "tanh")[int(rng.integers(4))],
        norm=(None, "layer", "rms")[int(rng.integers(3))],
        is_causal=bool(rng.integers(2)),
    )


def _fits(shape: _Shape) -> bool:
    """Say whether each layer can be measured in reasonable time and memory."""
    rows, inner = shape.batch * shape.length, shape.heads * shape.depth
    elements = max(rows * max(shape.width, shape.outputs, inner), shape.batch * shape.heads * shape.length**2)
    flops = 2 * max(rows * inner * max(shape.width, shape.outputs), shape.batch * shape.length**2 * inner)
    return elements <= _MAX_ELEMENTS and flops <= _MAX_GFLOPS * 1e9
