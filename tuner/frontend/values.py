"""Values for a model's inputs and parameters: from its file if present, drawn at random otherwise.

A value depends only on the seed and on the name, shape and dtype of what it is for, so that a stage of a
model draws what the whole model draws. Scales keep activations of order one through many layers, as
initialisation for training does (He et al., 2015). Checked in tests/tuner/frontend/test_values.py.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from tuner.frontend.model import InputSpec, Model

_VARIANCE_NAMES = ("running_var", "variance")


def random_parameters(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Return a value by name for every parameter of `main`, in order; the model's own where it has one."""
    variables = model.module["main"].params[len(model.inputs) :]
    return {
        name: model.parameters[name]
        if name in model.parameters
        else random_parameter(name, _shape(variable), str(variable.ty.dtype.dtype), seed)
        for name, variable in zip(model.parameter_names, variables, strict=True)
    }


def random_inputs(model: Model, seed: int) -> list[np.ndarray]:
    """Return a value for every input, in order: integers below `high`, booleans, masks, or normal numbers."""
    values = []
    for spec in model.inputs:
        rng = _generator(f"input {spec.name}", seed)
        if spec.dropout is not None:
            values.append(draw_mask(spec, rng))
        elif "float" in spec.dtype:
            values.append(rng.standard_normal(spec.shape).astype(spec.dtype))
        else:
            values.append(rng.integers(spec.high, size=spec.shape).astype(spec.dtype))
    return values


def draw_mask(spec: InputSpec, rng: np.random.Generator) -> np.ndarray:
    """Return a mask of dropout: 0 where a value is dropped, 1/(1 − p) where it is kept."""
    assert spec.dropout is not None
    kept = rng.random(spec.shape, dtype=np.float32) >= spec.dropout
    scale = 0.0 if spec.dropout == 1 else 1.0 / (1.0 - spec.dropout)
    return (kept * scale).astype(spec.dtype)


def random_parameter(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Return a value for one parameter.

    Vectors called `weight` are scales around one, other vectors are small, variances are positive, and
    matrices and filters are scaled by the square root of what they sum over.
    """
    rng = _generator(name, seed)
    last = name.rsplit(".", 1)[-1]
    if "float" not in dtype:
        return np.zeros(shape, dtype)
    if last in _VARIANCE_NAMES:
        return rng.uniform(0.5, 1.5, shape).astype(dtype)
    noise = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2:
        value = noise * np.float32(0.02)
        return (value + np.float32(last == "weight")).astype(dtype)
    fan_in = min(shape) if len(shape) == 2 else math.prod(shape[1:])
    gain = 1.0 if len(shape) == 2 else 2.0
    return (noise * np.float32(math.sqrt(gain / fan_in))).astype(dtype)


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in variable.ty.shape)
