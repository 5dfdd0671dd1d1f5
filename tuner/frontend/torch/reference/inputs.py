"""Inputs that a comparison runs on: drawn like the user's examples, or the examples themselves.

Checked in tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tuner.frontend.model import InputSpec
from tuner.frontend.values import draw_mask


def reach_examples(
    inputs: Sequence[InputSpec], examples: Mapping[str, np.ndarray], masks: Mapping[str, float]
) -> tuple[InputSpec, ...]:
    """Return inputs whose whole numbers reach to the examples', where the program does not bound them.

    Args:
        inputs: as they were imported.
        examples: by name.
        masks: probabilities of dropout by name of the inputs that are its masks.
    """
    largest = {
        name: int(example.max()) + 1
        for name, example in examples.items()
        if example.size and np.issubdtype(example.dtype, np.integer)
    }
    unknown = InputSpec.__dataclass_fields__["high"].default
    return tuple(
        replace(
            spec,
            high=max(unknown, largest.get(spec.name, unknown)) if spec.high == unknown else spec.high,
            dropout=masks.get(spec.name),
        )
        for spec in inputs
    )


def fitting_examples(
    inputs: Sequence[InputSpec], examples: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the examples of those inputs that have their shapes, by name."""
    shapes = {name: example.shape for name, example in examples.items()}
    return {spec.name: examples[spec.name] for spec in inputs if shapes.get(spec.name) == spec.shape}


def draw_like(spec: InputSpec, example: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return values like an example's: normal numbers, or whole ones from its least to what makes sense."""
    if spec.dropout is not None:
        return draw_mask(spec, rng)
    if "float" in spec.dtype:
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    if spec.dtype == "bool":
        return rng.integers(2, size=spec.shape).astype(spec.dtype)
    low = 0 if example is None or not example.size else min(0, int(example.min()))
    high = 1 if example is None or not example.size else int(example.max()) + 1
    return rng.integers(low, max(spec.high, high), size=spec.shape).astype(spec.dtype)


def has_nan(arrays: Sequence[np.ndarray]) -> bool:
    """Say whether a number of any array is none."""
    return any(np.isnan(array.astype(np.float64)).any() for array in arrays)
