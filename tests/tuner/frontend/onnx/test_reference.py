"""What is folded of constants is what ONNX Runtime computes, in whatever version the file has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import ModelFileError, UnsupportedOperatorError
from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

from tuner.frontend.onnx.graph import graph_operators, prepare_graph  # noqa: E402 - after the skip
from tuner.frontend.onnx.reference import results_of  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]


def of(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def model_of(opset: int, nodes, constants: Mapping[str, np.ndarray], x=("n",), y=("n",)):
    graph = helper.make_graph(
        nodes,
        "constants",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def written(model: Any, path: Path) -> str:
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return str(path)


BY_CHANNEL = [of(3), of(3), of(3), np.abs(of(3)) + 0.5]
WHOLE = np.random.default_rng(0).integers(-128, 127, (4, 3), dtype="int8")

CASES: Mapping[str, tuple[int, str, list[np.ndarray], dict[str, Any]]] = {
    **{
        f"DequantizeLinear-{opset}": (
            opset,
            "DequantizeLinear",
            [WHOLE, np.array(0.01, "float32"), np.array(3, "int8")],
            {},
        )
        for opset in (10, 11, 12, 13, 18, 19, 21)
    },
    "DequantizeLinear-13 by column": (
        13,
        "DequantizeLinear",
        [WHOLE, np.array([0.1, 0.2, 0.3], "float32"), np.array([1, 2, 3], "int8")],
        {"axis": 1},
    ),
    "BatchNormalization-7": (7, "BatchNormalization", [of(2, 3, 4), *BY_CHANNEL], {}),
    "BatchNormalization-9": (9, "BatchNormalization", [of(2, 3, 4), *BY_CHANNEL], {}),
    "Softmax-11": (11, "Softmax", [of(2, 3, 4)], {"axis": 1}),
    "LogSoftmax-12": (12, "LogSoftmax", [of(2, 3, 4)], {"axis": 1}),
    "Scatter-9": (9, "Scatter", [of(4, 3), np.array([[0, 1, 2]]), of(1, 3)], {}),
    "GroupNormalization-21": (21, "GroupNormalization", [of(2, 4, 3), of(4), of(4)], {"num_groups": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_of_constants_is_what_another_runtime_computes(
    name: str, tmp_path: Path, run_model, assert_close
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    opset, kind, arrays, attributes = CASES[name]
    constants = {f"c{number}": array for number, array in enumerate(arrays)}
    nodes = [
        helper.make_node(kind, list(constants), ["z"], **attributes),
        helper.make_node("Mul", ["z", "x"], ["y"]),
    ]
    axes = [f"d{axis}" for axis in range(arrays[0].ndim)]
    path = written(model_of(opset, nodes, constants, x=(1,), y=axes), tmp_path / "c.onnx")
    x = np.array([1.5], "float32")
    (expected,) = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    model = load_model(path, guarded=False)
    assert_close(run_model(model, [x], model.parameters)[0], expected)


@pytest.mark.parametrize("opset", range(10, 22))
def test_weights_are_dequantised_at_import_in_every_version(opset: int) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    constants = {"q": WHOLE, "s": np.array(0.01, "float32"), "z": np.array(0, "int8")}
    prepared = prepare_graph(model_of(opset, nodes, constants, x=(2, 4), y=(2, 3)), "q", {})
    assert graph_operators(prepared) == ("MatMul",)
    (weight,) = prepared.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weight), WHOLE * np.float32(0.01))


OLDEST: Mapping[str, tuple[list[np.ndarray], dict[str, Any], np.ndarray]] = {
    "Clip": ([np.arange(3.0)], {"min": 0.5, "max": 1.5}, np.array([0.5, 1, 1.5])),
    "Dropout": ([np.arange(3.0)], {"is_test": 1}, np.arange(3.0)),
    "Gemm": (
        [np.eye(2), np.array([[1.0, 2], [3, 4]]), np.array([10.0, 20])],
        {"broadcast": 1},
        np.array([[11.0, 22], [13, 24]]),
    ),
    "Reshape": ([np.arange(4.0)], {"shape": [2, 2]}, np.arange(4.0).reshape(2, 2)),
}


@pytest.mark.parametrize("kind", OLDEST)
def test_a_node_of_the_first_opset_gives_its_result(kind: str) -> None:
    """ONNX Runtime takes no file so old."""
    arrays, attributes, expected = OLDEST[kind]
    constants = {f"c{number}": array.astype("float32") for number, array in enumerate(arrays)}
    node = helper.make_node(kind, list(constants), ["y"], **attributes)
    found = results_of(node, constants, model_of(1, [node], {}))
    assert found is not None
    np.testing.assert_array_equal(found["y"], expected)


def test_what_neither_the_reference_nor_the_converter_takes_is_computed_later(
    tmp_path: Path, run_model, assert_close
) -> None:
    nodes = [helper.make_node("Split", ["c"], ["a", "b"], axis=0), helper.make_node("Mul", ["b", "x"], ["y"])]
    model = load_model(
        written(model_of(1, nodes, {"c": of(4, 3)}, x=(2, 3), y=(2, 3)), tmp_path / "s.onnx"), guarded=False
    )
    x = of(2, 3)
    assert_close(run_model(model, [x], model.parameters)[0], of(4, 3)[2:] * x)


def test_a_valid_file_on_which_tools_fail_is_not_called_invalid() -> None:
    """An axis of a scalar: the checker looks at no shapes."""
    node = helper.make_node("Add", ["x", "x"], ["y"], axis=0, broadcast=1)
    model = model_of(6, [node], {}, x=(), y=())
    onnx.checker.check_model(model)
    with pytest.raises(UnsupportedOperatorError, match=r"m is valid, but .* export it for another opset"):
        prepare_graph(model, "m", {})
    del model.graph.node[0].output[:]
    with pytest.raises(ModelFileError, match="m is no valid ONNX model"):
        prepare_graph(model, "m", {})
