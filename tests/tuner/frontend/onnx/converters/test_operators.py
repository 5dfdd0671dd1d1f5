"""Operators of ONNX are operators of Relax, with the values of onnx's own reference."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tuner.frontend import load_model, random_inputs

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]


def number(value: float) -> np.ndarray:
    return np.array(value, "float32")


WIDTHS = np.array([0, 1, 2, 0, 3, 1])

CASES: Mapping[str, tuple[str, Sequence[str], Mapping[str, np.ndarray], Mapping[str, object], set[str]]] = {
    "two bounds": ("Clip", ["low", "high"], {"low": number(-0.5), "high": number(0.25)}, {}, {"clip"}),
    "lower bound": ("Clip", ["low"], {"low": number(0.5)}, {}, {"maximum"}),
    "upper bound": ("Clip", ["", "high"], {"high": number(0.5)}, {}, {"minimum"}),
    "no bound": ("Clip", [], {}, {}, set()),
    "bound that is no number": ("Clip", ["low"], {"low": number(np.nan)}, {}, set()),
    "zeros around": ("Pad", ["widths"], {"widths": WIDTHS}, {}, {"nn.pad"}),
    "numbers around": ("Pad", ["widths", "value"], {"widths": WIDTHS, "value": number(1.5)}, {}, {"nn.pad"}),
    "mirrored": (
        "Pad",
        ["widths"],
        {"widths": np.array([0, 1, 2, 0, 2, 1])},
        {"mode": "reflect"},
        {"take"},
    ),
    "edges repeated": ("Pad", ["widths"], {"widths": WIDTHS}, {"mode": "edge"}, {"take"}),
    "what is kept of an axis": (
        "Compress",
        ["kept"],
        {"kept": np.array([True, False, True])},
        {"axis": 1},
        {"take"},
    ),
    "first elements in reverse": (
        "ReverseSequence",
        ["lengths"],
        {"lengths": np.array([1, 3])},
        {"batch_axis": 0, "time_axis": 1},
        {"gather_elements"},
    ),
    "blocks of an image": (
        "Col2Im",
        ["image", "block"],
        {"image": np.array([3, 3]), "block": np.array([3, 1])},
        {"pads": [1, 0, 0, 1], "strides": [2, 1]},
        {"reshape", "nn.conv2d_transpose"},
    ),
    "summed from the end": (
        "CumSum",
        ["axis"],
        {"axis": np.array(1)},
        {"reverse": 1, "exclusive": 1},
        {"flip", "cumsum"},
    ),
    "bounds that cross": (
        "Clip",
        ["low", "high"],
        {"low": number(0.5), "high": number(-0.5)},
        {},
        {"maximum", "minimum"},
    ),
    "repeated": ("Tile", ["repeats"], {"repeats": np.array([1, 2, 3])}, {}, {"tile"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_is_an_operator_and_computes_what_the_reference_computes(
    name: str, tmp_path: Path, run_model, assert_close
) -> None:
    kind, inputs, constants, attributes, operators = CASES[name]
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["z"]),
            helper.make_node(kind, ["z", *inputs], ["w"], **attributes),
            helper.make_node("Abs", ["w"], ["y"]),
        ],
        "operator",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    path = tmp_path / "operator.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = load_model(str(path), guarded=False)
    calls = [binding.value for binding in model.module["main"].body.blocks[0].bindings]
    found = {call.op.name.removeprefix("relax.") for call in calls if hasattr(call, "op")}
    assert found - {"negative", "abs"} == operators
    assert not model.parameter_names
    (x,) = random_inputs(model, 0)
    bounds = {key: value for key, value in constants.items() if not np.isnan(value).any()}
    if bounds.keys() == constants.keys():
        (expected,) = ReferenceEvaluator(onnx.load(str(path))).run(None, {"x": x})
    else:
        expected = np.abs(x)
    assert_close(run_model(model, [x], model.parameters)[0], expected)


EQUATIONS = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "bij,bkj->bik": [(2, 3, 4), (2, 5, 4)],
    "bhid,bhjd->bhij": [(2, 2, 3, 4), (2, 2, 5, 4)],
    "...ij,...kj->...ki": [(2, 3, 4), (2, 5, 4)],
    "...ij,jk": [(2, 3, 4), (4, 2)],
    "i,j->ij": [(3,), (4,)],
    "ij,ij->": [(2, 3), (2, 3)],
    "abc->ca": [(2, 3, 4)],
    "ij,j,jk->ki": [(2, 3), (3,), (3, 4)],
    "ijk,il,l->jk": [(2, 3, 4), (2, 5), (5,)],
    "ii->i": [(3, 3)],
    "...i,...i->...i": [(1, 3), (2, 3)],
    "zyx, xw -> wz": [(2, 3, 4), (4, 5)],
    "ba,cb": [(2, 3), (4, 2)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_products_and_computes_what_numpy_does(
    equation: str, tmp_path: Path, run_model, assert_close
) -> None:
    shapes = EQUATIONS[equation]
    names = [f"x{place}" for place in range(len(shapes))]
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        "operator",
        [
            helper.make_tensor_value_info(*each)
            for each in zip(names, itertools.repeat(1), shapes, strict=False)
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "operator.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = load_model(str(path), guarded=False)
    given = random_inputs(model, 0)
    assert_close(run_model(model, given, model.parameters)[0], np.einsum(equation, *given))


@pytest.mark.parametrize("bound", [0.25, np.nan, -3.0])
def test_a_bound_that_is_computed_clips_unless_it_is_no_number(
    bound: float, tmp_path: Path, run_model, assert_close
) -> None:
    graph = helper.make_graph(
        [helper.make_node("Clip", ["x", "low", "high"], ["y"])],
        "operator",
        [
            helper.make_tensor_value_info(name, 1, shape)
            for name, shape in (("x", [2, 3]), ("low", []), ("high", []))
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "operator.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = load_model(str(path), guarded=False)
    x, _, _ = random_inputs(model, 0)
    expected = np.minimum(np.fmax(x, np.float32(bound)), np.float32(0.5))
    assert_close(run_model(model, [x, number(bound), number(0.5)], model.parameters)[0], expected)
