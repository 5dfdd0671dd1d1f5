"""How tests run a model: by TVM's default lowering, which shares nothing with the tuner's."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import tvm
from tvm import relax

from tuner.frontend import Model


@pytest.fixture(scope="session")
def run_model() -> Callable[[Model, Sequence[np.ndarray], Mapping[str, np.ndarray]], list[np.ndarray]]:
    """Run `main` on inputs and parameters and return its results as a flat list."""

    def run(
        model: Model, inputs: Sequence[np.ndarray], parameters: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        executable = tvm.compile(model.module, target="llvm")
        machine = relax.VirtualMachine(executable, tvm.cpu())
        arguments = [*inputs, *(parameters[name] for name in model.parameter_names)]
        result = machine["main"](*[tvm.runtime.tensor(argument) for argument in arguments])
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return run


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest expected magnitude."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="session")
def assert_close() -> Callable[[np.ndarray, np.ndarray], None]:
    """Fail where shapes differ, or where the largest difference exceeds 1e-4 of the largest magnitude."""

    def check(found: np.ndarray, expected: np.ndarray) -> None:
        assert found.shape == expected.shape
        assert relative_error(found, expected) < 1e-4

    return check
