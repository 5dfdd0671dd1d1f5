"""Vision models: of the `transformers` package in tiny configurations, and written out where it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.architectures.language import Built, Returns


def image(extent: int = 32) -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, extent, extent),)


def classifier(config: str, extent: int = 32, **settings: Any) -> Callable[[], Built]:
    """Return a builder of a classifier of images, with running statistics as after some training."""

    def build() -> Built:
        kind = config.replace("Config", "ForImageClassification")
        model = getattr(transformers, kind)(getattr(transformers, config)(num_labels=7, **settings))
        return Returns(trained(model), ("pixel_values",)), image(extent)

    return build


def trained(module: nn.Module) -> nn.Module:
    """Return a module with statistics of batch normalisation that differ from 0 and 1."""
    for each in module.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm) and each.running_mean is not None:
            nn.init.normal_(each.running_mean, std=0.1)
            assert each.running_var is not None
            nn.init.uniform_(each.running_var, 0.5, 1.5)
    return module


def segformer() -> Built:
    config = transformers.SegformerConfig(
        num_labels=5,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 24, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    )
    model = transformers.SegformerForSemanticSegmentation(config)
    return Returns(trained(model), ("pixel_values",)), image(64)


def detr() -> Built:
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
        ),
        num_queries=5,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_labels=6,
    )
    return Returns(trained(transformers.DetrForObjectDetection(config)), ("pixel_values",)), image(64)


def dinov2() -> Built:
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    model = transformers.Dinov2Model(config)
    return Returns(model, ("pixel_values",), "last_hidden_state"), image(48)


class Inception(nn.Module):
    """Four ways side by side (Szegedy et al. 2015, figure 2)."""

    def __init__(
        self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int
    ) -> None:
        super().__init__()
        self.ways = nn.ModuleList(
            [
                _convolution(inputs, one, 1),
                nn.Sequential(_convolution(inputs, three[0], 1), _convolution(three[0], three[1], 3)),
                nn.Sequential(_convolution(inputs, five[0], 1), _convolution(five[0], five[1], 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), _convolution(inputs, pooled, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Give the ways' channels, one behind the other."""
        return torch.cat([way(x) for way in self.ways], 1)


def googlenet() -> Built:
    layers = (
        _convolution(3, 8, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.LocalResponseNorm(5),
        _convolution(8, 12, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(12, 4, (4, 8), (2, 4), 4),
        Inception(20, 8, (8, 12), (2, 4), 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(28, 7),
    )
    return trained(nn.Sequential(*layers)), image(64)


class MaxVitBlock(nn.Module):
    """An inverted bottleneck, attention in windows and attention over a grid (Tu et al. 2022)."""

    def __init__(self, width: int, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.expand = nn.Sequential(nn.BatchNorm2d(width), _convolution(width, width * 2, 1))
        self.depthwise = nn.Conv2d(width * 2, width * 2, 3, padding=1, groups=width * 2)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width * 2, width // 2, 1), nn.SiLU(),
            nn.Conv2d(width // 2, width * 2, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.project = nn.Conv2d(width * 2, width, 1)
        self.local, self.wide = (
            nn.TransformerEncoderLayer(
                width, 4, width * 2, batch_first=True, norm_first=True, activation="gelu"
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Give features of the same shape."""
        y = self.depthwise(self.expand(x))
        x = x + self.project(y * self.squeeze(y))
        batch, width, rows, columns = x.shape
        n = self.window
        x = x.reshape(batch, width, rows // n, n, columns // n, n)
        x = self._attend(self.local, x, (0, 2, 4, 3, 5, 1))
        x = self._attend(self.wide, x, (0, 3, 5, 2, 4, 1))
        return x.reshape(batch, width, rows, columns)

    def _attend(self, layer: nn.Module, x: Tensor, order: tuple[int, ...]) -> Tensor:
        y = x.permute(order)
        shape = y.shape
        y = layer(y.reshape(-1, shape[3] * shape[4], shape[5])).reshape(shape)
        back = [order.index(axis) for axis in range(6)]
        return y.permute(back)


def maxvit() -> Built:
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.GELU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 7))
    return trained(nn.Sequential(stem, MaxVitBlock(16), *head)), image()


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, eps=0.001), nn.ReLU(inplace=True))


_PATCHES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

VISION: dict[str, Callable[[], Built]] = {
    "resnet": classifier("ResNetConfig", embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2]),
    "convnext": classifier("ConvNextConfig", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    "swin": classifier(
        "SwinConfig",
        32,
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "vit": classifier("ViTConfig", **_PATCHES, image_size=32, patch_size=8),
    "deit": classifier("DeiTConfig", **_PATCHES, image_size=32, patch_size=8),
    "beit": classifier("BeitConfig", **_PATCHES, image_size=32, patch_size=8),
    "efficientnet": classifier(
        "EfficientNetConfig",
        image_size=32,
        hidden_dim=640,
        width_coefficient=0.5,
        kernel_sizes=[3, 5],
        in_channels=[32, 16],
        out_channels=[16, 24],
        depthwise_padding=[],
        strides=[1, 2],
        num_block_repeats=[1, 2],
        expand_ratios=[1, 6],
    ),
    "mobilenet-v2": classifier("MobileNetV2Config", depth_multiplier=0.25, image_size=32),
    "regnet": classifier(
        "RegNetConfig", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2], groups_width=8
    ),
    "segformer": segformer,
    "detr": detr,
    "dinov2": dinov2,
    "googlenet": googlenet,
    "maxvit": maxvit,
}
"""Builder by name."""
