"""How converters are compared with torch: many calls in one program, exported and compiled once."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tuner.numerical_error import compare_tensor

TOLERANCES = {"float32": 1e-5, "float64": 1e-6, "float16": 5e-3}
"""Largest difference over largest magnitude, by type of result; whole numbers are equal."""


@pytest.fixture(scope="session")
def assert_as_torch(run_model) -> Callable[[Mapping[str, Any]], None]:
    """Fail where an import differs from torch, in values, shape or type.

    Takes functions with their tensors, by name; what a function does is what torch does.
    """
    torch = pytest.importorskip("torch")
    from tuner.frontend.torch.program import import_module  # noqa: PLC0415 - needs torch

    class Together(torch.nn.Module):
        def __init__(self, functions) -> None:
            super().__init__()
            self.functions = functions
            for index, each in enumerate(functions):
                if isinstance(each, torch.nn.Module):
                    self.add_module(str(index), each)

        def forward(self, inputs):
            results = [function(*own) for function, own in zip(self.functions, inputs, strict=True)]
            return [list(each) if isinstance(each, tuple | list) else [each] for each in results]

    def check(cases: Mapping[str, Any]) -> None:
        module = Together([function for function, _ in cases.values()]).eval()
        inputs = [own for _, own in cases.values()]
        model = import_module(module, (inputs,), "cases")
        found = iter(run_model(model, [x.numpy() for own in inputs for x in own], model.parameters))
        with torch.no_grad():
            expected = module(inputs)
        for name, results in zip(cases, expected, strict=True):
            for true in results:
                limit = TOLERANCES.get(str(true.dtype).removeprefix("torch."), 0.0)
                mine = next(found)
                deviation = compare_tensor(
                    name,
                    np.asarray(mine),
                    true.numpy(),
                    infinity_agrees=True,
                    nan_agrees=True,
                    same_types=True,
                )
                assert deviation.is_within(limit), f"{name} {deviation.describe(limit)}"

    return check


@pytest.fixture(scope="session")
def draws() -> Callable[..., Any]:
    """Draw a tensor of a shape and type: normal numbers, small whole ones, truth values."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)

    def draw(*shape: int, dtype: str = "float32", low: int = -7, high: int = 8):
        if dtype == "bool":
            return torch.from_numpy(rng.random(shape) < 0.5)
        if "float" in dtype:
            return torch.from_numpy(np.asarray(rng.standard_normal(shape)).astype(dtype))
        return torch.from_numpy(
            np.asarray(rng.integers(0 if dtype == "uint8" else low, high, shape)).astype(dtype)
        )

    return draw
