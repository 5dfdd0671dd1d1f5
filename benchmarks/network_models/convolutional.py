"""ResNet-50, MobileNetV2, SqueezeNet and DenseNet-121."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.network_models.construction import Built, built, image


def resnet50() -> Built:
    """Return ResNet-50 (He et al., 2016) with the stride in the 3x3 convolution."""
    return built(ResNet50, image())


def mobilenet() -> Built:
    """Return MobileNet v2 (Sandler et al., 2018)."""
    return built(MobileNetV2, image())


def squeezenet() -> Built:
    """Return SqueezeNet 1.1 (Iandola et al., 2016)."""
    return built(SqueezeNet, image())


def densenet() -> Built:
    """Return DenseNet-121 (Huang et al., 2017)."""
    return built(DenseNet121, image())


class Bottleneck(nn.Module):
    def __init__(self, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        num_outputs = 4 * width
        self.body = nn.Sequential(
            *_normed(num_inputs, width, 1, activation=nn.ReLU()),
            *_normed(width, width, 3, stride=stride, activation=nn.ReLU()),
            *_normed(width, num_outputs, 1),
        )
        is_same = num_inputs == num_outputs and stride == 1
        self.shortcut = (
            nn.Identity() if is_same else nn.Sequential(*_normed(num_inputs, num_outputs, 1, stride=stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Sequential):
    def __init__(self) -> None:
        layers = [*_normed(3, 64, 7, stride=2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
        num_channels = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for index in range(count):
                layers.append(Bottleneck(num_channels, width, stride if index == 0 else 1))
                num_channels = 4 * width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class InvertedResidual(nn.Module):
    def __init__(self, num_inputs: int, num_outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = expansion * num_inputs
        widen = _normed(num_inputs, width, 1, activation=nn.ReLU6()) if expansion > 1 else []
        self.body = nn.Sequential(
            *widen,
            *_normed(width, width, 3, stride=stride, groups=width, activation=nn.ReLU6()),
            *_normed(width, num_outputs, 1),
        )
        self.is_residual = stride == 1 and num_inputs == num_outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


class MobileNetV2(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = [*_normed(3, 32, 3, stride=2, activation=nn.ReLU6())]
        num_channels = 32
        for expansion, width, count, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for index in range(count):
                layers.append(InvertedResidual(num_channels, width, stride if index == 0 else 1, expansion))
                num_channels = width
        layers += _normed(320, 1280, 1, activation=nn.ReLU6())
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Fire(nn.Module):
    def __init__(self, num_inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(num_inputs, squeezed, 1)
        self.expand_1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand_3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand_1(x)), F.relu(self.expand_3(x))], 1)


class SqueezeNet(nn.Sequential):
    def __init__(self) -> None:
        pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        super().__init__(
            *(nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), pool),
            *(Fire(64, 16, 64), Fire(128, 16, 64), pool),
            *(Fire(128, 32, 128), Fire(256, 32, 128), pool),
            *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
            *(nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )


class DenseLayer(nn.Sequential):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(
            *(nn.BatchNorm2d(num_inputs), nn.ReLU(), nn.Conv2d(num_inputs, 128, 1, bias=False)),
            *(nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1, bias=False)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, super().forward(x)], 1)


class DenseNet121(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = [*_normed(3, 64, 7, stride=2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
        num_channels = 64
        for index, count in enumerate((6, 12, 24, 16)):
            layers += [DenseLayer(num_channels + 32 * number) for number in range(count)]
            num_channels += 32 * count
            layers += [nn.BatchNorm2d(num_channels), nn.ReLU()]
            if index < 3:
                layers += [nn.Conv2d(num_channels, num_channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                num_channels //= 2
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def _normed(
    num_inputs: int,
    num_outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> list[nn.Module]:
    convolution = nn.Conv2d(
        num_inputs, num_outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(num_outputs), *([activation] if activation else [])]
