"""What the report measures, as torch modules in two sizes; inputs and weights are random, never zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.network_models.construction import Built, built
from benchmarks.network_models.convolutional import ResNet50
from benchmarks.network_models.transformers import Gpt2, PreNormBlock


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    Attributes:
        product: extent of the square matrix product whose rate is the ceiling.
        copy_bytes: of the copy whose bandwidth is the ceiling.
        chain: kernels in the chain whose launches are timed.
        tokens: of the language models' inputs.
        image: height and width.
        rounds: executions of each program at most.
        seconds: of timing for each comparison.
        devices: pipeline lengths that schedules are found for.
        num_blocks: layers of the training profile.
        swept: products by which the cost model is calibrated.
    """

    product: int
    copy_bytes: int
    chain: int
    tokens: int
    image: int
    rounds: int
    seconds: float
    devices: tuple[int, ...]
    num_blocks: int
    swept: int


SIZES = {
    "small": Sizes(128, 2**20, 8, 16, 32, 5, 0.5, (2,), 4, 12),
    "full": Sizes(8192, 2**32, 256, 512, 224, 50, 10.0, (4, 8), 24, 200),
}

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def gpt2_medium() -> Built:
    """Return GPT-2 medium (Radford et al., 2019) over 512 tokens."""
    return built(lambda: Gpt2(50257, 1024, 1024, 24, 16), _tokens(50257, 512))


def block_of_1b() -> Built:
    """Return a block of a language model of a billion parameters: width 2048, 16 heads, 4 × 512 tokens."""
    return built(lambda: PreNormBlock(2048, 16, causal=True), _hidden(4, 512, 2048))


def resnet50() -> Built:
    """Return ResNet-50 on a batch of 16 images."""
    images = torch.randn(16, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return built(ResNet50, images)


def tiny_gpt() -> Built:
    """Return a language model of two layers, for trying the steps."""
    return built(lambda: Gpt2(64, 32, 32, 2, 2), _tokens(64, 16))


def tiny_block() -> Built:
    """Return a block of width 32, for trying the steps."""
    return built(lambda: PreNormBlock(32, 2, causal=True), _hidden(1, 16, 32))


NETWORKS: dict[str, dict[str, Callable[[], Built]]] = {
    "small": {"gpt2": tiny_gpt, "block": tiny_block},
    "full": {"block-1b": block_of_1b, "gpt2-medium": gpt2_medium, "resnet50": resnet50},
}


def training_block(sizes_name: str) -> tuple[nn.Module, Tensor]:
    """Return the layer whose training is timed, and its input."""
    module, (inputs,) = NETWORKS[sizes_name]["block" if sizes_name == "small" else "block-1b"]()
    return module.requires_grad_(True).train(), inputs


def _tokens(vocabulary: int, length: int) -> Tensor:
    return torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))


def _hidden(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
