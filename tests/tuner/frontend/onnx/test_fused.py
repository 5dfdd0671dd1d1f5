"""Operators that ONNX Runtime fuses give what it gives, alone and in a file that it optimised."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import UnsupportedOperatorError
from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

FUSED = "com.microsoft"


def of(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def save(path: Path, nodes: list[Any], constants: Mapping[str, np.ndarray], shape, opset: int = 17) -> str:
    graph = helper.make_graph(
        nodes,
        "fused",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes[-1:]],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(FUSED, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return str(path)


def check(spec: str, run_model, assert_close) -> Any:
    model = load_model(spec, guarded=False)
    x = of(*model.inputs[0].shape)
    (expected,) = onnxruntime.InferenceSession(spec).run(None, {"x": x})
    (found,) = run_model(model, [x], model.parameters)
    assert found.dtype == expected.dtype
    assert_close(found, expected)
    return model


CASES: Mapping[str, tuple[str, tuple[int, ...], dict[str, np.ndarray], dict[str, Any]]] = {
    "product": ("FusedMatMul", (3, 4), {"w": of(4, 5)}, {}),
    "product scaled and transposed": ("FusedMatMul", (3, 4), {"w": of(5, 4)}, {"alpha": 0.5, "transB": 1}),
    "product of batches transposed": ("FusedMatMul", (2, 4, 3), {"w": of(2, 4, 5)}, {"transA": 1}),
    "GELU": ("Gelu", (3, 4), {}, {}),
    "GELU of a sum": ("BiasGelu", (3, 4), {"b": of(4)}, {}),
    "GELU by tanh": ("FastGelu", (3, 4), {}, {}),
    "GELU by tanh of a sum": ("FastGelu", (3, 4), {"b": of(4)}, {}),
    "GELU by sigmoid": ("QuickGelu", (3, 4), {}, {"alpha": 1.5}),
    "convolution": ("FusedConv", (1, 3, 6, 6), {"w": of(4, 3, 3, 3), "b": of(4)}, {"activation": "Relu"}),
    "convolution that leaks": (
        "FusedConv",
        (1, 3, 6, 6),
        {"w": of(4, 3, 3, 3)},
        {"activation": "LeakyRelu", "activation_params": [0.2], "pads": [1] * 4, "strides": [2, 2]},
    ),
    "convolution and a sum": (
        "FusedConv",
        (1, 3, 6, 6),
        {"w": of(4, 3, 3, 3), "b": of(4), "z": of(1, 4, 4, 4)},
        {"activation": "Tanh"},
    ),
    "product and a sum": (
        "FusedGemm",
        (3, 4),
        {"w": of(5, 4), "c": of(5)},
        {"activation": "Sigmoid", "transB": 1, "alpha": 2.0},
    ),
    "normalised sum": (
        "SkipLayerNormalization",
        (2, 3, 4),
        {"skip": of(2, 3, 4), "scale": of(4), "shift": of(4)},
        {"epsilon": 1e-3},
    ),
    "normalised sum of three": (
        "SkipLayerNormalization",
        (2, 3, 4),
        {"skip": of(2, 3, 4), "scale": of(4), "shift": of(4), "bias": of(4)},
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fused_operator_gives_what_its_runtime_gives(
    name: str, tmp_path: Path, run_model, assert_close
) -> None:
    """Behind another one, whose result's type has to be found first."""
    kind, shape, constants, attributes = CASES[name]
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["h"], domain=FUSED),
        helper.make_node(kind, ["h", *constants], ["y"], domain=FUSED, **attributes),
    ]
    check(save(tmp_path / "fused.onnx", nodes, constants, shape), run_model, assert_close)


def test_the_sum_before_a_normalisation_is_a_result_too(tmp_path: Path, run_model, assert_close) -> None:
    names = ["x", "skip", "scale", "shift", "bias"]
    constants = {"skip": of(2, 3, 4), "scale": of(4), "shift": of(4), "bias": of(4)}
    nodes = [
        helper.make_node("SkipLayerNormalization", names, ["a", "", "", "sum"], domain=FUSED),
        helper.make_node("Mul", ["a", "sum"], ["y"]),
    ]
    check(save(tmp_path / "fused.onnx", nodes, constants, (2, 3, 4)), run_model, assert_close)


def test_a_file_that_the_runtime_optimised_is_imported(tmp_path: Path, run_model, assert_close) -> None:
    constants = {"w": of(4, 3, 3, 3), "b": of(4), "v": of(16, 5), "c": of(5), "root": np.float32(2**0.5)}
    constants |= {"one": np.float32(1), "half": np.float32(0.5), "shape": np.array([1, 4, 16])}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "v"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["s"]),
        helper.make_node("Div", ["s", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["f"]),
        helper.make_node("Mul", ["s", "f"], ["g"]),
        helper.make_node("Mul", ["g", "half"], ["y"]),
    ]
    plain = save(tmp_path / "plain.onnx", nodes, dict(constants), (1, 3, 6, 6))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(plain, options)
    made = onnx.load(options.optimized_model_filepath).graph.node
    assert {node.op_type for node in made if node.domain == FUSED} >= {"FusedConv", "Gelu"}
    check(options.optimized_model_filepath, run_model, assert_close)


@pytest.mark.parametrize("kind", ["Attention", "FusedMatMul"])
def test_what_stays_fused_is_refused_with_what_helps(kind: str, tmp_path: Path) -> None:
    said = {"num_heads": 2} if kind == "Attention" else {"transBatchA": 1}
    node = helper.make_node(kind, ["x", "w", "b"][: 2 + (kind == "Attention")], ["y"], domain=FUSED, **said)
    spec = save(tmp_path / "fused.onnx", [node], {"w": of(4, 12), "b": of(12)}, (2, 3, 4))
    with pytest.raises(
        UnsupportedOperatorError, match=rf"{FUSED}\.{kind}, .* before ONNX Runtime, or a tool"
    ):
        load_model(spec, guarded=False)
