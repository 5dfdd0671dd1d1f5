"""Functions are written out: a file's own, and operators that onnx defines by simpler ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import UnsupportedOperatorError
from tuner.frontend import load_model, random_inputs

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

WIDTH = 48
"""So that a weight of WIDTH × WIDTH is more than what a shape may follow from."""


def save(path: Path, nodes: list[Any], weights: dict[str, np.ndarray], **options: Any) -> str:
    graph = helper.make_graph(
        nodes,
        "functions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 24), *options.pop("domains", [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, **options)
    onnx.save(model, str(path))
    return str(path)


def weights_of(*names: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((WIDTH, WIDTH)).astype("float32") / WIDTH for name in names}


def test_a_files_own_function_becomes_what_it_stands_for(tmp_path: Path, run_model, assert_close) -> None:
    gated = helper.make_function(
        "house",
        "Gated",
        ["a", "w"],
        ["b"],
        [
            helper.make_node("MatMul", ["a", "w"], ["p"]),
            helper.make_node("Sigmoid", ["p"], ["s"]),
            helper.make_node("Mul", ["p", "s"], ["b"]),
        ],
        [helper.make_opsetid("", 24)],
    )
    nodes = [
        helper.make_node("Gated", ["x", "v"], ["h"], domain="house"),
        helper.make_node("Gated", ["h", "w"], ["y"], domain="house"),
    ]
    weights = weights_of("v", "w")
    spec = save(
        tmp_path / "own.onnx", nodes, weights, functions=[gated], domains=[helper.make_opsetid("house", 1)]
    )
    model = load_model(spec, guarded=False)
    assert sorted(model.parameter_names) == ["v", "w"]
    (x,) = random_inputs(model, 0)
    (expected,) = ReferenceEvaluator(onnx.load(spec)).run(None, {"x": x})
    assert_close(run_model(model, [x], model.parameters)[0], expected)


def test_attention_and_its_weights_train_as_the_files_own(tmp_path: Path, run_model, assert_close) -> None:
    nodes = [
        *(helper.make_node("MatMul", ["x", name], [f"{name}x"]) for name in "qkv"),
        helper.make_node(
            "Attention", ["qx", "kx", "vx"], ["y"], is_causal=1, q_num_heads=4, kv_num_heads=4, scale=0.25
        ),
    ]
    spec = save(tmp_path / "attention.onnx", nodes, weights_of(*"qkv"))
    trained = load_model(spec, guarded=False, training=True)
    # The mask, which the body makes from extents, is no weight.
    assert sorted(set(trained.parameter_names) - trained.untrained) == sorted("qkv")
    assert any(np.isneginf(trained.parameters[name]).any() for name in trained.untrained)
    model = load_model(spec, guarded=False)
    (x,) = random_inputs(model, 0)
    (expected,) = ReferenceEvaluator(onnx.load(spec)).run(None, {"x": x})
    assert_close(run_model(model, [x], model.parameters)[0], expected)


def test_defaults_and_small_constants_reach_the_body(tmp_path: Path, run_model, assert_close) -> None:
    nodes = [helper.make_node("Celu", ["x"], ["c"]), helper.make_node("CenterCropPad", ["c", "s"], ["y"])]
    spec = save(tmp_path / "celu.onnx", nodes, {"s": np.array([2, 5, 20])})
    model = load_model(spec, guarded=False)
    (x,) = random_inputs(model, 0)
    (expected,) = ReferenceEvaluator(onnx.load(spec)).run(None, {"x": x})
    assert expected.shape == (2, 5, 20)
    assert_close(run_model(model, [x], model.parameters)[0], expected)


def test_what_has_no_body_is_refused_by_its_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Strange", ["x"], ["y"], domain="elsewhere")]
    spec = save(tmp_path / "strange.onnx", nodes, {}, domains=[helper.make_opsetid("elsewhere", 1)])
    with pytest.raises(UnsupportedOperatorError, match=r"no operator elsewhere\.Strange"):
        load_model(spec, guarded=False)
