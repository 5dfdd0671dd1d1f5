"""A perceptron of several layers: the smallest model that has everything a pipeline needs.

For training the loss is the cross-entropy with integer `labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit_model
from tuner.frontend.layers import CrossEntropy, Linear
from tuner.frontend.model import InputSpec, Model
from tuner.frontend.shapes import input_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    num_layers: int
    width: int
    num_classes: int


_SIZES = {
    "tiny": _Size(num_layers=4, width=32, num_classes=8),
    "small": _Size(num_layers=8, width=512, num_classes=64),
    "large": _Size(num_layers=8, width=2048, num_classes=256),
}
SIZES = tuple(_SIZES)
DEFAULT_SIZE = "small"


def load(size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool) -> Model:
    """Return the perceptron over `x`, shape (batch, width), and over `labels` (batch,) for training."""
    size = _SIZES[size_name]
    name = f"mlp:{size_name}"
    shape = input_shapes(name, {"x": (batch, size.width)}, shapes)["x"]
    if shape[1] != size.width:
        raise ValueError(f"x has {shape[1]} features, but {name} takes {size.width}; change only the batch")
    inputs = [InputSpec(name="x", shape=shape, dtype="float32")]
    if training:
        inputs.append(InputSpec(name="labels", shape=shape[:1], dtype="int64", high=size.num_classes))
    return emit_model(name, _Perceptron(size), inputs, training=training)


class _Hidden(Linear):
    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return nn.op.relu(super().forward(x))


class _Perceptron(Layer):
    def __init__(self, size: _Size) -> None:
        self.layers = nn.ModuleList([_Hidden(size.width, size.width) for _ in range(size.num_layers - 1)])
        self.head = Linear(size.width, size.num_classes)
        self.loss = CrossEntropy()

    def forward(self, x: nn.Tensor, labels: nn.Tensor | None = None) -> nn.Tensor:
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        return logits if labels is None else self.loss(logits, labels)
