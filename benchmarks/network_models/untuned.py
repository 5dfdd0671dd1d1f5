"""Three networks that no kernel of this project was tuned for: ResNet-18, a block of Llama and Swin-T.

Swin-T is that of the `transformers` package in its published configuration; the others are written out.
"""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.network_models.construction import Built, built, images


def resnet18(batch: int = 1) -> Built:
    """Return ResNet-18 (He et al., 2016) for images of 224 x 224."""
    return built(ResNet18, images(batch))


def llama_block(batch: int = 1) -> Built:
    """Return a block of Llama (Touvron et al., 2023), 1024 wide with 16 heads, over 64 tokens."""
    return built(
        lambda: LlamaBlock(1024, 16, 2816, 64),
        torch.randn(batch, 64, 1024, generator=torch.Generator().manual_seed(0)),
    )


def swin_t(batch: int = 1) -> Built:
    """Return Swin-T (Liu et al., 2021) for images of 224 x 224."""
    return built(lambda: Logits(transformers.SwinForImageClassification(_swin_t())), images(batch))


class BasicBlock(nn.Module):
    def __init__(self, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_normed(num_inputs, width, 3, stride), nn.ReLU(), *_normed(width, width, 3, 1)
        )
        is_same = num_inputs == width and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*_normed(num_inputs, width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet18(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = [*_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        num_channels = 64
        for width in (64, 128, 256, 512):
            layers += [BasicBlock(num_channels, width, width // num_channels), BasicBlock(width, width, 1)]
            num_channels = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, num_heads: int, inner: int, length: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.widen = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.narrow = nn.Linear(inner, width, bias=False)
        self.norm, self.last_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.num_pairs = width // num_heads // 2
        angles = torch.outer(
            torch.arange(length), 10000.0 ** -(torch.arange(self.num_pairs) / self.num_pairs)
        )
        self.cosine, self.sine = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        query, key, value = (
            layer(normed).unflatten(2, (self.num_heads, 2 * self.num_pairs)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            self._rotated(query), self._rotated(key), value, is_causal=True
        )
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        normed = self.last_norm(x)
        return x + self.narrow(F.silu(self.gate(normed)) * self.widen(normed))

    def _rotated(self, x: Tensor) -> Tensor:
        one, other = x[..., : self.num_pairs], x[..., self.num_pairs :]
        return torch.cat(
            (one * self.cosine - other * self.sine, other * self.cosine + one * self.sine), dim=-1
        )


class Logits(nn.Module):
    """Gives the logits of a classifier of the `transformers` package."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixel_values=pixels, return_dict=False)[0]


def _swin_t() -> transformers.SwinConfig:
    return transformers.SwinConfig(
        image_size=224,
        patch_size=4,
        embed_dim=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=7,
        num_labels=1000,  # type: ignore[call-arg]  # of every configuration, by its base class
    )


def _normed(num_inputs: int, num_outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(num_inputs, num_outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(num_outputs)]
