"""MobileNet V2: inverted residual blocks around depthwise convolutions (Sandler et al., 2018).

For training, the loss is the cross-entropy with integer `labels`, and batch normalisation uses the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit_model
from tuner.frontend.layers import CrossEntropy, Linear, NormedConvolution, average
from tuner.frontend.model import Model
from tuner.frontend.shapes import image_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Blocks in a row that give the same number of channels; the first has the stride."""

    expansion: int
    num_channels: int
    num_blocks: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    groups: tuple[_Group, ...]
    stem_channels: int = 32
    last_channels: int = 1280
    num_classes: int = 1000
    image: int = 224


def _groups(*rows: tuple[int, int, int, int]) -> tuple[_Group, ...]:
    return tuple(
        _Group(expansion=row[0], num_channels=row[1], num_blocks=row[2], stride=row[3]) for row in rows
    )


_SIZES = {
    "tiny": _Size(
        groups=_groups((1, 8, 1, 1), (4, 12, 2, 2), (4, 16, 1, 2)),
        stem_channels=8,
        last_channels=32,
        num_classes=16,
        image=32,
    ),
    # Table 2 of the paper.
    "v2": _Size(
        groups=_groups(
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
    ),
}
SIZES = tuple(_SIZES)
DEFAULT_SIZE = "v2"


def load(size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool) -> Model:
    """Return the network over `image` (batch, 3, height, width), and over `labels` (batch,) for training."""
    size = _SIZES[size_name]
    name = f"mobilenet:{size_name}"
    shape = (batch, 3, size.image, size.image)
    inputs = image_inputs(name, shape, shapes, num_classes=size.num_classes, training=training)
    return emit_model(name, _MobileNet(size, training=training), inputs, training=training)


class _MobileNet(Layer):
    def __init__(self, size: _Size, *, training: bool) -> None:
        self.stem = NormedConvolution(
            3, size.stem_channels, kernel=3, stride=2, activation="relu6", training=training
        )
        width = size.stem_channels
        self.blocks = nn.ModuleList([])
        for group in size.groups:
            for index in range(group.num_blocks):
                stride = group.stride if index == 0 else 1
                self.blocks.append(_Block(width, group, stride=stride, training=training))
                width = group.num_channels
        self.last = NormedConvolution(
            width, size.last_channels, kernel=1, activation="relu6", training=training
        )
        self.classifier = Linear(size.last_channels, size.num_classes)
        self.loss = CrossEntropy()

    def forward(self, image: nn.Tensor, labels: nn.Tensor | None = None) -> nn.Tensor:
        x = self.stem(image)
        for block in self.blocks:
            x = block(x)
        logits = self.classifier(average(self.last(x)))
        return logits if labels is None else self.loss(logits, labels)


class _Block(Layer):
    """Widen, filter each channel by itself, narrow, and add what came in where shapes agree."""

    def __init__(self, width: int, group: _Group, *, stride: int, training: bool) -> None:
        inner = width * group.expansion
        self.widen = (
            None
            if group.expansion == 1
            else NormedConvolution(width, inner, kernel=1, activation="relu6", training=training)
        )
        self.depthwise = NormedConvolution(
            inner, inner, kernel=3, stride=stride, groups=inner, activation="relu6", training=training
        )
        self.narrow = NormedConvolution(
            inner, group.num_channels, kernel=1, activation=None, training=training
        )
        self.is_residual = stride == 1 and width == group.num_channels

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        widened = x if self.widen is None else self.widen(x)
        result = self.narrow(self.depthwise(widened))
        return nn.op.add(x, result) if self.is_residual else result
