"""A network of convolutions and attention, whose parts favour different families of kernels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.network_models.construction import Built, built, images, tokens
from benchmarks.network_models.transformers import PreNormBlock
from benchmarks.network_models.untuned import ResNet18


def two_tower(batch: int = 1) -> Built:
    """Return the similarities of images and texts, as in CLIP (Radford et al., 2021).

    ResNet-18 sees images of 224 x 224, a transformer of eight layers, 512 wide, reads 77 tokens: about as
    many operations each.
    """
    return built(
        lambda: TwoTower(_resnet18(512), 49408, 77, 512, 8, 8), images(batch), tokens(batch, 77, 49408)
    )


def tiny_tower(batch: int = 1) -> Built:
    """Return the same of two convolutions and one narrow layer, to try what measures it."""
    small = images(batch)[:, :, :16, :16].contiguous()
    return built(lambda: TwoTower(_two_convolutions(32), 64, 8, 32, 1, 2), small, tokens(batch, 8, 64))


class TwoTower(nn.Module):
    def __init__(
        self, image: nn.Module, vocabulary: int, length: int, width: int, num_layers: int, num_heads: int
    ) -> None:
        super().__init__()
        self.image = image
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(PreNormBlock(width, num_heads, causal=True) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Tensor, words: Tensor) -> Tensor:
        image = F.normalize(self.image(pixels), dim=-1)
        text = self.norm(self.blocks(self.words(words) + self.positions.weight[: words.shape[1]]))
        return F.normalize(text.mean(1), dim=-1) @ image.mT


def _resnet18(width: int) -> nn.Module:
    return nn.Sequential(*list(ResNet18())[:-1], nn.Linear(512, width))


def _two_convolutions(width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, width)),
    )
