"""Models that come with the tuner, written in Relax's nn frontend: they need no torch and no files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tuner.frontend.model import Model
from tuner.frontend.zoo import bert, flava, gpt2, mlp, mobilenet, mt5, resnet


class ZooModel(Protocol):
    """A model of the zoo: a module that builds its sizes.

    Attributes:
        SIZES: their names, smallest first.
        DEFAULT_SIZE: the one that is meant where none is named.
    """

    SIZES: tuple[str, ...]
    DEFAULT_SIZE: str

    def load(
        self, size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool
    ) -> Model:
        """Return the model of that size."""
        ...


MODELS: Mapping[str, ZooModel] = {
    "gpt2": gpt2,
    "bert": bert,
    "mt5": mt5,
    "flava": flava,
    "resnet": resnet,
    "mobilenet": mobilenet,
    "mlp": mlp,
}
"""Every model of the zoo by name."""

__all__ = ["MODELS", "ZooModel"]
