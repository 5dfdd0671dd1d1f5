"""A model as every front end hands it over: one Relax function, and where each of its bindings comes from.

The function is called `main`, has one data-flow block, and takes the model's inputs first and its parameters
after them. It returns one tensor or a flat tuple of tensors; for training, one scalar, the loss. Passes that
change bindings run after a model has been cut, so `module_paths` stays true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

IRModule: TypeAlias = Any
"""A `tvm.IRModule`; TVM ships no types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: as the model calls it.
        shape: static extents.
        dtype: such as `float32` or `int64`.
        high: for integers, one more than the largest value that makes sense (a vocabulary's size).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    high: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model in Relax.

    Attributes:
        name: as the user named it, such as `gpt2:small`.
        module: IRModule whose `main` is the model (see the module docstring).
        inputs: the leading parameters of `main`, in order.
        parameter_names: names of the remaining parameters of `main`, in order.
        module_paths: dotted path of the layer that each binding of `main` belongs to, in order of bindings;
            `""` where it belongs to none.
        tied: groups of parameter names that are one tensor under several names.
        parameters: values by name where the model file holds them; others are drawn at random.
        training: whether `main` returns a loss.
        cuts: names of the modules that a pipeline stage ends after, where the model's own code marked some.
    """

    name: str
    module: IRModule
    inputs: tuple[InputSpec, ...]
    parameter_names: tuple[str, ...]
    module_paths: tuple[str, ...]
    tied: tuple[tuple[str, ...], ...] = ()
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    training: bool = False
    cuts: tuple[str, ...] = ()
