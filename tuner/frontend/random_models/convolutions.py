"""Random chains of convolutions: dense, grouped and depthwise filters over many shapes, for the cost model.

The zoo's networks hold few kinds of convolutions, at few shapes. What a cost model learns from them alone
fails on the next network's. A chain is no network that anybody runs; its layers are drawn one by one, and its
loss makes the gradients of all of them part of it. Checked in
tests/tuner/frontend/random_models/test_random_chains.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit_model
from tuner.frontend.layers import CrossEntropy, Linear, NormedConvolution, average
from tuner.frontend.model import InputSpec, Model

_MAX_GFLOPS = 0.6
"""Largest layer: without tuning, TVM's kernels run at a few GFLOP/s."""

_MAX_ELEMENTS = 1 << 20
"""Largest image between two layers, 4 MiB."""

_NUM_LAYERS = 3
_CHANNELS = (8, 16, 20, 24, 36, 40, 48, 56, 72, 80, 112, 128, 168, 192, 256, 336)
_EXTENTS = (7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)
_KERNELS = (1, 1, 3, 3, 5, 7)
_BATCHES = (1, 1, 2, 4, 8, 16)
_SHARE_OF_STEMS = 0.25
"""Chains that begin with an image of three colours, as networks do."""

_NUM_CLASSES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filter:
    num_outputs: int
    kernel: int
    stride: int
    groups: int
    activation: str | None


def random_convolutions(seed: int, *, training: bool) -> Model:
    """Return a classifier of three random convolutions, with its loss for training; a seed is one chain."""
    rng = np.random.default_rng(seed)
    while True:
        batch, width = int(rng.choice(_BATCHES)), int(rng.choice(_CHANNELS))
        extent = int(rng.choice(_EXTENTS))
        if rng.random() < _SHARE_OF_STEMS:
            width, extent = 3, 2 * extent
        filters = tuple(_draw_chain(rng, width))
        if _fits(batch, width, extent, filters):
            break
    inputs = [InputSpec(name="image", shape=(batch, width, extent, extent), dtype="float32")]
    if training:
        inputs.append(InputSpec(name="labels", shape=(batch,), dtype="int64", high=_NUM_CLASSES))
    return emit_model(
        f"convolutions:{seed}", _Chain(width, filters, training=training), inputs, training=training
    )


class _Chain(Layer):
    def __init__(self, width: int, filters: tuple[_Filter, ...], *, training: bool) -> None:
        self.layers = nn.ModuleList([])
        for each in filters:
            self.layers.append(
                NormedConvolution(
                    width,
                    each.num_outputs,
                    kernel=each.kernel,
                    stride=each.stride,
                    groups=each.groups,
                    activation=each.activation,
                    training=training,
                )
            )
            width = each.num_outputs
        self.classifier = Linear(width, _NUM_CLASSES)
        self.loss = CrossEntropy()

    def forward(self, image: nn.Tensor, labels: nn.Tensor | None = None) -> nn.Tensor:
        x = image
        for layer in self.layers:
            x = layer(x)
        logits = self.classifier(average(x))
        return logits if labels is None else self.loss(logits, labels)


def _draw_chain(rng: np.random.Generator, width: int) -> list[_Filter]:
    filters = []
    for _ in range(_NUM_LAYERS):
        groups = _draw_groups(rng, width)
        is_depthwise = groups == width
        num_outputs = width if is_depthwise else int(rng.choice([c for c in _CHANNELS if c % groups == 0]))
        filters.append(
            _Filter(
                num_outputs=num_outputs,
                # A depthwise filter of one pixel would only scale.
                kernel=int(rng.choice((3, 3, 5) if is_depthwise else (3, 5, 7) if width == 3 else _KERNELS)),
                stride=int(rng.choice((1, 1, 1, 2))),
                groups=groups,
                activation=(None, "relu", "relu6")[int(rng.integers(3))],
            )
        )
        width = num_outputs
    return filters


def _draw_groups(rng: np.random.Generator, width: int) -> int:
    """Return one group, a group a channel, or a few groups, in a ratio of 2 : 2 : 1."""
    kind = int(rng.integers(5))
    if kind < 2 or width == 3:
        return 1
    if kind < 4:
        return width
    return int(rng.choice([groups for groups in (2, 4, 8) if width % groups == 0]))


def _fits(batch: int, width: int, extent: int, filters: tuple[_Filter, ...]) -> bool:
    """Say whether each layer can be measured in reasonable time and memory."""
    for each in filters:
        if batch * width * extent**2 > _MAX_ELEMENTS:
            return False
        extent = -(-extent // each.stride)
        elements = batch * each.num_outputs * extent**2
        if elements > _MAX_ELEMENTS or extent < each.kernel:
            return False
        if 2 * elements * (width // each.groups) * each.kernel**2 > _MAX_GFLOPS * 1e9:
            return False
        width = each.num_outputs
    return True
