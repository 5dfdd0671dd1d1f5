"""A network with its inputs, its weights drawn with a fixed seed."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

Built: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]


def built(make, *inputs: Tensor) -> Built:
    torch.manual_seed(0)
    module = make().eval()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            # Statistics as training leaves them, not 0 and 1, so that leaving them out would show.
            layer.get_buffer("running_mean").uniform_(-0.1, 0.1)
            layer.get_buffer("running_var").uniform_(0.5, 1.5)
    return module.requires_grad_(False), inputs


def image() -> Tensor:
    return images(1)


def images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def tokens(batch: int, count: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (batch, count), generator=torch.Generator().manual_seed(0))
