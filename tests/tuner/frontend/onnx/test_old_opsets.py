"""Operators as old opsets have them, in small files: what TVM computes against another runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tuner.frontend import load_model, random_inputs

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

from tuner.frontend.onnx.graph import prepare_graph  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

IMAGE = (2, 3, 4, 6)

Case = tuple[int, Sequence, Mapping[str, np.ndarray]]


def node(kind: str, inputs: str, outputs: str = "y", **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def of(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


BY_CHANNEL = {name: np.abs(of(3)) + 0.5 for name in ("scale", "shift", "mean", "variance")}
BY_ELEMENT = {name: np.abs(of(*IMAGE[1:])) + 0.5 for name in BY_CHANNEL}
NORMALISED = "x scale shift mean variance"
WIDTHS = [0, 0, 1, 2, 0, 0, 0, 1]

CASES: Mapping[str, Case] = {
    "Dropout-7": (7, [node("Dropout", "x", "z", ratio=0.5), node("Relu", "z")], {}),
    "BatchNormalization-7": (7, [node("BatchNormalization", NORMALISED, spatial=1)], BY_CHANNEL),
    "Upsample-7 nearest": (7, [node("Upsample", "x", scales=[1.0, 1.0, 2.0, 3.0])], {}),
    "Upsample-7 linear": (7, [node("Upsample", "x", mode="linear", scales=[1.0, 1.0, 2.0, 2.0])], {}),
    "Upsample-9 linear": (
        9,
        [node("Upsample", "x scales", mode="linear")],
        {"scales": np.array([1, 1, 2, 3], "float32")},
    ),
    "Resize-10 linear": (
        10,
        [node("Resize", "x scales", mode="linear")],
        {"scales": np.array([1, 1, 1.5, 2], "float32")},
    ),
    "Resize-10 nearest": (10, [node("Resize", "x scales")], {"scales": np.array([1, 1, 1.5, 2], "float32")}),
    "Slice-1": (7, [node("Slice", "x", axes=[2, 3], starts=[1, -4], ends=[2**63 - 1, -1])], {}),
    "Slice-1 first axes": (9, [node("Slice", "x", starts=[0, 1], ends=[1, 3])], {}),
    "Pad-2 constant": (7, [node("Pad", "x", pads=WIDTHS, value=1.5)], {}),
    "Pad-2 reflect": (7, [node("Pad", "x", pads=WIDTHS, mode="reflect")], {}),
    "Pad-2 edge": (7, [node("Pad", "x", pads=WIDTHS, mode="edge")], {}),
    "Pad-2 cut": (7, [node("Pad", "x", pads=[0, 0, -1, 0, 0, 0, 0, 1])], {}),
    "Clip-6": (6, [node("Clip", "x", min=-0.5, max=0.5)], {}),
    "Clip-6 below": (9, [node("Clip", "x", min=0.0)], {}),
    "Clip-6 above": (9, [node("Clip", "x", max=0.25)], {}),
    "Squeeze-1": (7, [node("ReduceMean", "x", "z", axes=[2]), node("Squeeze", "z", axes=[2])], {}),
    "Unsqueeze-1": (7, [node("Unsqueeze", "x", axes=[0, 3])], {}),
    "ReduceSum-1": (7, [node("ReduceSum", "x", axes=[1, 3], keepdims=0)], {}),
    "Split-2": (7, [node("Split", "x", "z y", axis=3, split=[2, 4])], {}),
    "TopK-1": (7, [node("TopK", "x", "y places", k=2, axis=3)], {}),
    "TopK-10": (10, [node("TopK", "x k", "y places", axis=2)], {"k": np.array([2])}),
    "Softmax-7": (7, [node("Softmax", "x")], {}),
    "LogSoftmax-11": (11, [node("LogSoftmax", "x", axis=2)], {}),
    "Gemm-7": (
        7,
        [node("Flatten", "x", "z", axis=3), node("Gemm", "z w b", alpha=0.5, transB=1)],
        {"w": of(5, 6), "b": of(5)},
    ),
    "MaxPool-10": (10, [node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], {}),
    "AveragePool-7": (
        7,
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        {},
    ),
}


def written(case: Case, path: Path) -> str:
    opset, nodes, constants = case
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), str(path)
    )
    return str(path)


@pytest.mark.parametrize("name", CASES)
def test_an_old_operator_computes_what_another_runtime_computes(
    name: str, tmp_path: Path, run_model, assert_close
) -> None:
    runtime = pytest.importorskip(
        "onnxruntime"
    )  # onnx's reference takes softmaxes for those of later versions
    path = written(CASES[name], tmp_path / "old.onnx")
    model = load_model(path, guarded=False)
    (x,) = random_inputs(model, 0)
    (expected,) = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (found,) = run_model(model, [x], model.parameters)
    assert_close(found, expected)


def test_a_batch_is_normalised_by_element(tmp_path: Path, run_model, assert_close) -> None:
    """ONNX Runtime has it not, and onnx's reference takes it for that of channels."""
    nodes = [node("BatchNormalization", NORMALISED, spatial=0, epsilon=1e-3)]
    model = load_model(written((7, nodes, BY_ELEMENT), tmp_path / "old.onnx"), guarded=False)
    (x,) = random_inputs(model, 0)
    scale, shift, mean, variance = BY_ELEMENT.values()
    expected = (x - mean) / np.sqrt(variance + 1e-3) * scale + shift
    assert_close(run_model(model, [x], model.parameters)[0], expected)


@pytest.mark.parametrize(
    ("kind", "of_numbers"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)]
)
@pytest.mark.parametrize("opset", [1, 6])
def test_an_operand_broadcasts_from_its_axis_on(
    kind: str, of_numbers: np.ufunc, opset: int, tmp_path: Path, run_model, assert_close
) -> None:
    """Runtimes take no file so old."""
    nodes = [
        node(kind, "x b", "z", axis=1, broadcast=1),
        node(kind, "z c", axis=2, broadcast=1),
    ]
    constants = {"b": of(3), "c": of(4, 6)}
    model = load_model(written((opset, nodes, constants), tmp_path / "old.onnx"), guarded=False)
    (x,) = random_inputs(model, 0)
    expected = of_numbers(of_numbers(x, constants["b"][:, None, None]), constants["c"])
    assert_close(run_model(model, [x], model.parameters)[0], expected)


def test_a_shape_may_be_an_attribute(tmp_path: Path, run_model, assert_close) -> None:
    model = load_model(
        written((4, [node("Reshape", "x", shape=[2, 0, -1])], {}), tmp_path / "old.onnx"), guarded=False
    )
    (x,) = random_inputs(model, 0)
    assert_close(run_model(model, [x], model.parameters)[0], x.reshape(2, 3, -1))


def test_a_file_of_a_new_opset_is_prepared_as_it_is(tmp_path: Path) -> None:
    path = written((13, [node("Softmax", "x"), node("Clip", "y", "z")], {}), tmp_path / "new.onnx")
    prepared = prepare_graph(onnx.load(path), "new", {})
    assert prepared.opset_import[0].version == 13
    assert [each.op_type for each in prepared.graph.node] == ["Softmax", "Clip"]
