"""What converters are given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


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
