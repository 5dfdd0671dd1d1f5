"""Preparing an ONNX graph changes what is computed when, and nothing of what is computed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import UnknownNameError
from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402 - after the skip

from tuner.frontend.onnx.file import import_exposed  # noqa: E402 - after the skip
from tuner.frontend.onnx.graph import graph_operators, prepare_graph  # noqa: E402 - after the skip

pytestmark = pytest.mark.onnx


def tensor(name: str, shape: Sequence[int | str | None]):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(model, feeds):
    return ReferenceEvaluator(model).run(None, feeds)


@given(
    extent=st.integers(3, 9),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    rule=st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
)
@settings(max_examples=30, deadline=None)
def test_explicit_padding_computes_what_auto_pad_computes(
    extent: int, kernel: int, stride: int, dilation: int, rule: str
) -> None:
    if rule == "VALID" and (kernel - 1) * dilation + 1 > extent:
        return
    weight = numpy_helper.from_array(
        np.arange(kernel * kernel, dtype="float32").reshape(1, 1, kernel, -1), "w"
    )
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], auto_pad=rule, strides=[stride, stride], dilations=[dilation, dilation]
    )
    model = model_of([node], [tensor("x", [1, 1, extent, extent])], [tensor("y", None)], [weight])
    prepared = prepare_graph(model, "test", {})
    attributes = {attribute.name for attribute in prepared.graph.node[0].attribute}
    assert "auto_pad" not in attributes
    assert "pads" in attributes
    x = np.random.default_rng(0).standard_normal((1, 1, extent, extent)).astype("float32")
    (found,) = run(prepared, {"x": x})
    steps = -(-extent // stride) if rule != "VALID" else (extent - (kernel - 1) * dilation - 1) // stride + 1
    assert found.shape == (1, 1, steps, steps)
    if dilation == 1:  # onnx's reference ignores dilation when it pads by itself
        np.testing.assert_allclose(found, run(model, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_sum_becomes_additions_and_dropout_and_identity_go() -> None:
    nodes = [
        helper.make_node("Identity", ["a"], ["same"]),
        helper.make_node("Dropout", ["same"], ["kept"]),
        helper.make_node("Sum", ["kept", "b", "a", "b"], ["y"]),
    ]
    model = model_of(nodes, [tensor("a", [2]), tensor("b", [2])], [tensor("y", [2])])
    prepared = prepare_graph(model, "test", {})
    assert graph_operators(prepared) == ("Add",)
    feeds = {"a": np.array([1, 2], "float32"), "b": np.array([10, 20], "float32")}
    np.testing.assert_array_equal(run(prepared, feeds)[0], run(model, feeds)[0])


def test_the_largest_in_any_order_are_given_in_order() -> None:
    k = numpy_helper.from_array(np.array([2], "int64"), "k")
    nodes = [
        helper.make_node("TopK", ["a", "k"], ["y", "places"], axis=0, sorted=0),
        helper.make_node("TopK", ["a", "k"], ["z", "other"], axis=0, largest=0, sorted=0),
    ]
    model = model_of(nodes, [tensor("a", [4])], [tensor("y", [2]), tensor("z", [2])], [k])
    prepared = prepare_graph(model, "test", {})
    assert not any(each.name == "sorted" for node in prepared.graph.node for each in node.attribute)
    found = run(prepared, {"a": np.array([1, 5, 2, 9], "float32")})
    np.testing.assert_array_equal(found, [[9, 5], [1, 2]])


def test_what_follows_from_shapes_and_constants_is_computed_once() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([0], "int64"), "zero"),
        numpy_helper.from_array(np.array([-1], "int64"), "rest"),
    ]
    model = model_of(nodes, [tensor("x", ["batch", 2, 3])], [tensor("y", ["batch", 6])], constants)
    prepared = prepare_graph(model, "test", {"x": (5, 2, 3)})
    assert graph_operators(prepared) == ("Reshape",)
    (target,) = prepared.graph.initializer
    assert numpy_helper.to_array(target).tolist() == [5, -1]


def test_random_numbers_are_not_folded_into_constants() -> None:
    node = helper.make_node("RandomNormal", [], ["y"], shape=[2])
    model = model_of([node], [], [tensor("y", [2])])
    assert graph_operators(prepare_graph(model, "test", {})) == ("RandomNormal",)


def test_initialisers_listed_as_inputs_are_no_inputs() -> None:
    weight = numpy_helper.from_array(np.ones(2, "float32"), "w")
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", [2]), tensor("w", [2])],
        [tensor("y", [2])],
        [weight],
    )
    assert [value.name for value in prepare_graph(model, "test", {}).graph.input] == ["x"]


def test_open_extent_without_a_shape_is_refused_with_the_option_to_give() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ["n", 3])], [tensor("y", None)])
    with pytest.raises(ValueError, match=r"leaves open \(\?,3\).*--shape x=1,3"):
        prepare_graph(model, "test", {})
    with pytest.raises(UnknownNameError, match="no input 'z'"):
        prepare_graph(model, "test", {"z": (1, 3)})


def test_model_that_was_given_is_left_as_it_was() -> None:
    model = model_of([helper.make_node("Sum", ["x", "x"], ["y"])], [tensor("x", [2])], [tensor("y", [2])])
    before = model.SerializeToString()
    prepare_graph(model, "test", {})
    assert model.SerializeToString() == before


@pytest.mark.tvm
@pytest.mark.parametrize("producer", ["", "pytorch"])
@pytest.mark.parametrize("training", [False, True])
def test_numbers_are_constants_of_the_program_and_a_learned_one_trains(
    training: bool, producer: str, tmp_path: Path
) -> None:
    """torch's exporter lists exponents and ε among the weights; drawn at random, a power would be NaN."""
    numbers = {"two": 2.0, "val_80": 1e-6, "learned": 0.5}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Pow", ["h", "two"], ["squares"]),
            helper.make_node("Add", ["squares", "val_80"], ["shifted"]),
            helper.make_node("Sqrt", ["shifted"], ["norm"]),
            helper.make_node("Mul", ["norm", "learned"], ["y"]),
        ],
        "numbers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.ones((4, 4), "float32"), "w"),
            *(numpy_helper.from_array(np.array(value, "float32"), name) for name, value in numbers.items()),
        ],
    )
    path = tmp_path / "numbers.onnx"
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer), str(path))
    model = load_model(str(path), guarded=False, training=training)
    # A file does not say which of its numbers was learned: not exponents, nor what torch's exporter named.
    learned = {"learned"} if producer else {"learned", "val_80"}
    assert set(model.parameter_names) == {"w"} | (learned if training else set())
    exposed, nodes = import_exposed(onnx.load(path), name="numbers", shapes={}, training=training)
    assert [node.op_type for node in nodes] == ["MatMul", "Pow", "Add", "Sqrt", "Mul"]
    assert len(exposed.module["main"].ret_ty.fields) == 5


@pytest.mark.tvm
def test_a_mask_of_torchs_exporter_does_not_train_and_a_weight_that_it_transposed_does(
    tmp_path: Path,
) -> None:
    mask = np.where(np.tri(3, dtype=bool), 0, -np.inf).astype("float32")
    weights = {"val_1": np.ones((3, 3), "float32"), "val_2": mask, "scale": np.ones((3, 3), "float32")}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "val_1"], ["scores"]),
            helper.make_node("Add", ["scores", "val_2"], ["masked"]),
            helper.make_node("Softmax", ["masked"], ["shares"]),
            helper.make_node("Mul", ["shares", "scale"], ["y"]),
        ],
        "mask",
        [tensor("x", [3, 3])],
        [tensor("y", None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    path = tmp_path / "mask.onnx"
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="pytorch"), str(path)
    )
    model = load_model(str(path), guarded=False, training=True)
    assert set(model.parameter_names) - model.untrained == {"val_1", "scale"}
    np.testing.assert_array_equal(model.parameters["val_2"], mask)
