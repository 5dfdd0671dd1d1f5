"""Models that come with the tuner, written in Relax's nn frontend: they need no torch and no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.frontend.model import Model
from tuner.frontend.zoo import bert, flava, gpt2, mlp, mobilenet, mt5, resnet


class ZooLoader(Protocol):
    """Builds one size of one model of the zoo."""

    def __call__(
        self, size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool
    ) -> Model:
        """Return the model of that size."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """A model of the zoo.

    Attributes:
        load: builds it.
        sizes: names of its sizes, smallest first.
        default_size: the one that is meant where none is named.
        summary: one line for lists.
    """

    load: ZooLoader
    sizes: tuple[str, ...]
    default_size: str
    summary: str


MODELS: Mapping[str, ZooModel] = {
    "gpt2": ZooModel(
        load=gpt2.load_gpt2,
        sizes=gpt2.SIZES,
        default_size=gpt2.DEFAULT_SIZE,
        summary="GPT-2, a decoder with a tied head",
    ),
    "bert": ZooModel(
        load=bert.load_bert,
        sizes=bert.SIZES,
        default_size=bert.DEFAULT_SIZE,
        summary="BERT, an encoder with a masked-language-model head",
    ),
    "mt5": ZooModel(
        load=mt5.load_mt5,
        sizes=mt5.SIZES,
        default_size=mt5.DEFAULT_SIZE,
        summary="an encoder and decoder after mT5, joined by cross-attention",
    ),
    "flava": ZooModel(
        load=flava.load_flava,
        sizes=flava.SIZES,
        default_size=flava.DEFAULT_SIZE,
        summary="an image tower and a text tower after FLAVA, and an encoder over both",
    ),
    "resnet": ZooModel(
        load=resnet.load_resnet,
        sizes=resnet.SIZES,
        default_size=resnet.DEFAULT_SIZE,
        summary="ResNet with bottleneck blocks, a classifier of images",
    ),
    "mobilenet": ZooModel(
        load=mobilenet.load_mobilenet,
        sizes=mobilenet.SIZES,
        default_size=mobilenet.DEFAULT_SIZE,
        summary="MobileNet V2, a classifier of images by depthwise convolutions",
    ),
    "mlp": ZooModel(
        load=mlp.load_mlp,
        sizes=mlp.SIZES,
        default_size=mlp.DEFAULT_SIZE,
        summary="a perceptron of several layers",
    ),
}
"""Every model of the zoo by name."""

__all__ = ["MODELS", "ZooLoader", "ZooModel"]
