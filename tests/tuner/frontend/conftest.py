"""How tests run a model: by TVM's default lowering, which shares nothing with the tuner's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from run_module import plain_machine

from tuner.backends.torch.operators import provide_torch_calls
from tuner.frontend import Model
from tuner.numerical_error import compare_tensor

_LARGE = 500_000
"""Numbers in inputs and weights above which a model is compiled with optimisation."""


@pytest.fixture(scope="session")
def run_model() -> Callable[[Model, Sequence[np.ndarray], Mapping[str, np.ndarray]], list[np.ndarray]]:
    """Run `main` on inputs and parameters and return its results as a flat list."""

    def run(
        model: Model, inputs: Sequence[np.ndarray], parameters: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        arguments = [*inputs, *(parameters[name] for name in model.parameter_names)]
        provide_torch_calls(model.module)
        is_large = sum(argument.size for argument in arguments) >= _LARGE
        machine = plain_machine(model.module, is_large=is_large)
        result = machine["main"](*[tvm.runtime.tensor(argument) for argument in arguments])
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return run


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest expected magnitude."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))


TOLERANCES = {"float32": 1e-5, "float64": 1e-6, "float16": 5e-3}
"""Largest difference over largest magnitude, by type of result; whole numbers are equal."""


@pytest.fixture(scope="session")
def assert_as_torch(run_model) -> Callable[[Mapping[str, Any]], None]:
    """Fail where an import differs from torch, in values, shape or type.

    Takes functions with their tensors, by name, which are exported and compiled as one program; what a
    function does is what torch does.
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
def assert_close() -> Callable[[np.ndarray, np.ndarray], None]:
    """Fail where shapes differ, or where the largest difference exceeds 1e-4 of the largest magnitude."""

    def check(found: np.ndarray, expected: np.ndarray) -> None:
        assert found.shape == expected.shape
        assert relative_error(found, expected) < 1e-4

    return check


@pytest.fixture(scope="session")
def evaluate_onnx() -> Callable[[Any, Mapping[str, np.ndarray]], np.ndarray]:
    """Evaluate an ONNX graph of convolutions in torch and return its first output.

    A second opinion beside onnx's own reference, which takes a minute for such a graph, loses three digits in
    its convolutions and is wrong for grouped ones (onnx 1.23).
    """
    torch = pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")

    def evaluate(model: Any, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        tensors = {t.name: onnx.numpy_helper.to_array(t).copy() for t in model.graph.initializer} | dict(
            feeds
        )
        values = {name: torch.from_numpy(array) for name, array in tensors.items()}
        for node in model.graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            arguments = [values[name] for name in node.input]
            values[node.output[0]] = _torch_operator(torch, node.op_type, arguments, attributes)
        return values[model.graph.output[0].name].numpy()

    return evaluate


def _torch_operator(torch: Any, name: str, x: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Return the first output of an operator, as ONNX defines it up to version 9."""
    functional, strides = torch.nn.functional, attributes.get("strides", 1)
    before_and_after = attributes.get("pads", [0, 0, 0, 0])
    pads = [before_and_after[i] for i in (1, 3, 0, 2)]  # torch lists the last axis first
    match name:
        case "Conv":
            padded = functional.pad(x[0], pads)
            return functional.conv2d(padded, *x[1:], stride=strides, groups=attributes.get("group", 1))
        case "BatchNormalization":
            return functional.batch_norm(x[0], x[3], x[4], x[1], x[2], eps=attributes.get("epsilon", 1e-5))
        case "MaxPool":
            padded = functional.pad(x[0], pads, value=-np.inf)
            return functional.max_pool2d(padded, attributes["kernel_shape"], strides)
        case "AveragePool":
            kernel = attributes["kernel_shape"]
            kept = functional.avg_pool2d(functional.pad(torch.ones_like(x[0]), pads), kernel, strides)
            return functional.avg_pool2d(functional.pad(x[0], pads), kernel, strides) / kept
        case "LRN":
            names = ("size", "alpha", "beta", "bias")
            return functional.local_response_norm(x[0], *(attributes[name] for name in names))
        case "Gemm":
            return x[0] @ (x[1].T if attributes.get("transB") else x[1]) + x[2]
        case "Reshape":
            return x[0].reshape([x[0].shape[i] if n == 0 else n for i, n in enumerate(x[1].tolist())])
        case "Unsqueeze":
            for axis in attributes["axes"]:
                x[0] = x[0].unsqueeze(axis)
            return x[0]
    return {
        "Add": lambda: x[0] + x[1],
        "Concat": lambda: torch.cat(x, attributes["axis"]),
        "Dropout": lambda: x[0],
        "GlobalAveragePool": lambda: x[0].mean((2, 3), keepdim=True),
        "Mul": lambda: x[0] * x[1],
        "Relu": lambda: x[0].relu(),
        "Sum": lambda: sum(x),
        "Transpose": lambda: x[0].permute(attributes["perm"]),
    }[name]()
