"""Sequences whose tensors are taken at constant places give what ONNX Runtime gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import UnsupportedOperatorError
from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

from tuner.frontend.onnx.graph import graph_operators, prepare_graph  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

SHAPE = (3, 4)


def save(path: Path, nodes: Sequence[Any], constants: Mapping[str, Any], *more: str) -> str:
    """Write nodes that make `y` of `x`, and of further inputs that are whole numbers."""
    graph = helper.make_graph(
        nodes,
        "sequences",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE),
            *(helper.make_tensor_value_info(name, TensorProto.INT64, []) for name in more),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return str(path)


def check(spec: str, run_model) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE, "float32")
    (expected,) = onnxruntime.InferenceSession(spec).run(None, {"x": x})
    model = load_model(spec, guarded=False)
    np.testing.assert_array_equal(run_model(model, [x], model.parameters)[0], expected)


@pytest.mark.parametrize("place", [0, 2, -1])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("attributes", [{}, {"keepdims": 0}], ids=["axis kept", "axis dropped"])
def test_one_part_of_a_tensor(place: int, axis: int, attributes: dict, tmp_path: Path, run_model) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=axis, **attributes),
        helper.make_node("SequenceAt", ["parts", "place"], ["y"]),
    ]
    check(save(tmp_path / "s.onnx", nodes, {"place": place}), run_model)


@pytest.mark.parametrize("widths", [2, 3, [1, 3], [4]])
def test_parts_of_given_widths(widths: int | list[int], tmp_path: Path, run_model) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "widths"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "last"], ["y"]),
    ]
    check(save(tmp_path / "s.onnx", nodes, {"widths": widths, "last": -1}), run_model)


@pytest.mark.parametrize("widths", [1, [1, 1, 1]], ids=["one", "one each"])
def test_what_torch_writes_for_unbind_drops_the_axis(
    widths: int | list[int], tmp_path: Path, run_model
) -> None:
    """Widths of 1 beside `keepdims = 0`; the shape of what follows is known rightly."""
    nodes = [
        helper.make_node("Constant", [], ["widths"], value=numpy_helper.from_array(np.array(widths))),
        helper.make_node("SplitToSequence", ["x", "widths"], ["rows"], keepdims=0),
        helper.make_node("SequenceAt", ["rows", "first"], ["a"]),
        helper.make_node("SequenceAt", ["rows", "last"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["c"]),
        helper.make_node("Shape", ["c"], ["extents"]),
        helper.make_node("Cast", ["extents"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["c", "sum"], ["y"]),
    ]
    check(save(tmp_path / "s.onnx", nodes, {"first": 0, "last": -1}), run_model)


def test_a_place_that_an_input_names_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"]),
        helper.make_node("SequenceAt", ["parts", "place"], ["y"]),
    ]
    spec = save(tmp_path / "s.onnx", nodes, {}, "place")
    assert "SequenceAt" in graph_operators(prepare_graph(onnx.load(spec), "s", {}))
    with pytest.raises(UnsupportedOperatorError, match=r"SequenceAt .* known only when the model runs"):
        load_model(spec, guarded=False)
    assert load_model(spec, values={"place": 1}, guarded=False).inputs[0].name == "x"
