"""ResNet with bottleneck blocks (He et al., 2015), the stride in the 3×3 convolution as torchvision has it.

For training, the loss is the cross-entropy with integer `labels`, and batch normalisation uses the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit_model
from tuner.frontend.layers import CrossEntropy, Linear, NormedConvolution, average, max_pool
from tuner.frontend.model import Model
from tuner.frontend.shapes import image_inputs

_EXPANSION = 4
"""Channels that leave a block, over those inside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    num_blocks: tuple[int, ...]
    num_channels: int = 64
    num_classes: int = 1000
    image: int = 224


_SIZES = {
    "tiny": _Size(num_blocks=(1, 2), num_channels=8, num_classes=16, image=32),
    "50": _Size(num_blocks=(3, 4, 6, 3)),
    "101": _Size(num_blocks=(3, 4, 23, 3)),
}
SIZES = tuple(_SIZES)
DEFAULT_SIZE = "50"


def load(size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool) -> Model:
    """Return the network over `image` (batch, 3, height, width), and over `labels` (batch,) for training."""
    size = _SIZES[size_name]
    name = f"resnet:{size_name}"
    shape = (batch, 3, size.image, size.image)
    inputs = image_inputs(name, shape, shapes, num_classes=size.num_classes, training=training)
    return emit_model(name, _ResNet(size, training=training), inputs, training=training)


class _ResNet(Layer):
    def __init__(self, size: _Size, *, training: bool) -> None:
        self.stem = NormedConvolution(3, size.num_channels, kernel=7, stride=2, training=training)
        self.stages = nn.ModuleList([])
        width = size.num_channels
        for index, num_blocks in enumerate(size.num_blocks):
            inner = size.num_channels * 2**index
            self.stages.append(_Stage(width, inner, num_blocks, stride=2 if index else 1, training=training))
            width = inner * _EXPANSION
        self.fc = Linear(width, size.num_classes)
        self.loss = CrossEntropy()

    def forward(self, image: nn.Tensor, labels: nn.Tensor | None = None) -> nn.Tensor:
        x = max_pool(self.stem(image), kernel=3, stride=2)
        for stage in self.stages:
            x = stage(x)
        logits = self.fc(average(x))
        return logits if labels is None else self.loss(logits, labels)


class _Stage(Layer):
    def __init__(self, width: int, inner: int, num_blocks: int, *, stride: int, training: bool) -> None:
        first = _Block(width, inner, stride=stride, training=training)
        rest = [_Block(inner * _EXPANSION, inner, stride=1, training=training) for _ in range(num_blocks - 1)]
        self.blocks = nn.ModuleList([first, *rest])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class _Block(Layer):
    """Narrow, filter, widen, and add what came in, projected where its shape differs."""

    def __init__(self, width: int, inner: int, *, stride: int, training: bool) -> None:
        outer = inner * _EXPANSION
        self.narrow = NormedConvolution(width, inner, kernel=1, training=training)
        self.filter = NormedConvolution(inner, inner, kernel=3, stride=stride, training=training)
        self.widen = NormedConvolution(inner, outer, kernel=1, activation=None, training=training)
        self.shortcut = (
            None
            if stride == 1 and width == outer
            else NormedConvolution(width, outer, kernel=1, stride=stride, activation=None, training=training)
        )

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return nn.op.relu(nn.op.add(self.widen(self.filter(self.narrow(x))), shortcut))
