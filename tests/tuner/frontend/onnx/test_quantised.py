"""Products and convolutions of quantised numbers give what onnx's own reference gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}
ROWS, DEPTH, COLUMNS, CHANNELS = 6, 40, 9, 5

_DETAILS = ("xs", "xz", "w", "ws", "wz", "ys", "yz")


def drawn(seed: int, dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def check(
    node: Any, x: np.ndarray, constants: dict[str, np.ndarray], dtype: str, path: Path, run_model
) -> np.ndarray:
    """Compare a file of one node with the reference, every number of it, and return its result."""
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info("x", TYPES[str(x.dtype)], x.shape)],
        [helper.make_tensor_value_info("y", TYPES[dtype], None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = load_model(str(path), guarded=False)
    (found,) = run_model(model, [x], model.parameters)
    (expected,) = ReferenceEvaluator(onnx.load(str(path))).run(None, {"x": x})
    assert found.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    return found


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("by_column", [False, True], ids=["one scale", "a scale of each column"])
def test_a_product_is_rounded_once(dtype: str, by_column: bool, tmp_path: Path, run_model) -> None:
    x, w = drawn(0, dtype, 2, ROWS, DEPTH), drawn(1, dtype, DEPTH, COLUMNS)
    scales = np.linspace(0.01, 0.03, COLUMNS, dtype="float32") if by_column else np.float32(0.02)
    middle = np.iinfo(dtype).max // 2 + np.iinfo(dtype).min // 2
    zeros = (middle + np.arange(COLUMNS)).astype(dtype) if by_column else np.array(middle, dtype)
    constants = {"xs": np.float32(0.04), "xz": np.array(middle + 5, dtype), "w": w, "ws": scales, "wz": zeros}
    constants |= {"ys": np.float32(0.5), "yz": np.array(middle - 3, dtype)}
    node = helper.make_node("QLinearMatMul", ["x", *_DETAILS], ["y"])
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    found = check(node, x, arrays, dtype, tmp_path / "m.onnx", run_model)
    assert len(np.unique(found)) > 50, "the results tell something"


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("by_channel", [False, True], ids=["one scale", "a scale of each channel"])
def test_a_convolution_is_rounded_once(biased: bool, by_channel: bool, tmp_path: Path, run_model) -> None:
    x, w = drawn(0, "uint8", 1, 4, 9, 8), drawn(1, "int8", CHANNELS, 4, 3, 3)
    scales = np.linspace(0.01, 0.03, CHANNELS, dtype="float32") if by_channel else np.float32(0.02)
    zeros = np.zeros(CHANNELS, "int8") if by_channel else np.int8(0)
    constants = {"xs": np.float32(0.04), "xz": np.uint8(117), "w": w, "ws": scales, "wz": zeros}
    constants |= {"ys": np.float32(0.9), "yz": np.uint8(128)}
    names = ["x", *_DETAILS]
    if biased:
        constants["b"] = drawn(5, "int32", CHANNELS) // 2**16
        names.append("b")
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1], strides=[2, 1])
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    found = check(node, x, arrays, "uint8", tmp_path / "m.onnx", run_model)
    assert len(np.unique(found)) > 50


@pytest.mark.parametrize("channels", [4, 300], ids=["few terms", "more than float32 counts"])
def test_a_convolution_of_whole_numbers_is_exact(channels: int, tmp_path: Path, run_model) -> None:
    x, w = drawn(0, "uint8", 1, channels, 5, 6), drawn(1, "uint8", CHANNELS, channels, 3, 3)
    node = helper.make_node("ConvInteger", ["x", "w", "xz"], ["y"])
    found = check(node, x, {"w": w, "xz": np.asarray(np.uint8(3))}, "int32", tmp_path / "m.onnx", run_model)
    assert (found.max() > 2**24) == (channels == 300)
    if channels == 300:
        assert (found % 2).any(), "numbers that float32 does not hold"
