"""Recurrent layers written out step by step give what onnxruntime gives."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

from tuner.frontend.onnx.graph import graph_operators, prepare_graph  # noqa: E402

pytestmark = pytest.mark.onnx

STEPS, BATCH, INPUTS, HIDDEN = 4, 2, 3, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    kind: str,
    direction: str,
    *,
    biased: bool = True,
    starts: bool = False,
    peepholes: bool = False,
    lengths: bool = False,
    **attributes,
):
    """A model of one layer, with random weights, that gives every result of it."""
    rng = np.random.default_rng(0)
    both = 2 if direction == "bidirectional" else 1
    rows = GATES[kind] * HIDDEN
    weights = {"W": (both, rows, INPUTS), "R": (both, rows, HIDDEN)} | (
        {"B": (both, 2 * rows)} if biased else {}
    )
    if peepholes:
        weights["P"] = (both, 3 * HIDDEN)
    states = ["h", "c"][: 2 if kind == "LSTM" else 1]
    given = {"X": (STEPS, BATCH, INPUTS)} | (dict.fromkeys(states, (both, BATCH, HIDDEN)) if starts else {})
    names = ["X", "W", "R", "B" if biased else "", "lengths" if lengths else ""]
    names += states if starts else [""] * len(states)
    names += ["P"] if peepholes else []
    results = ["Y", *(f"Y_{name}" for name in states)]
    node = helper.make_node(
        kind, names, results, name="/cells/layer", direction=direction, hidden_size=HIDDEN, **attributes
    )
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
            for name, shape in weights.items()
        ]
        + [numpy_helper.from_array(np.full(BATCH, STEPS, "int32"), "lengths")] * lengths,
    )
    feeds = {name: rng.standard_normal(shape).astype("float32") for name, shape in given.items()}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), feeds


def run(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {}),
        ("LSTM", {"starts": True, "biased": False}),
        ("LSTM", {"peepholes": True, "lengths": True}),
        ("GRU", {"linear_before_reset": 1, "starts": True}),
        ("GRU", {"linear_before_reset": 0}),
        ("RNN", {"starts": True}),
    ],
)
def test_steps_give_what_the_layer_gives(kind: str, options: dict, direction: str) -> None:
    model, feeds = layer(kind, direction, **options)
    prepared = prepare_graph(model, "test", {})
    assert kind not in graph_operators(prepared)
    for found, expected in zip(run(prepared, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_examples_first_is_the_same_transposed(kind: str) -> None:
    """Which no runtime at hand takes: the layer is compared with the one that has steps first."""
    plain, feeds = layer(kind, "bidirectional", starts=True)
    turned, _ = layer(kind, "bidirectional", starts=True, layout=1)
    for given in turned.graph.input:
        extents = [extent.dim_value for extent in given.type.tensor_type.shape.dim]
        for extent, place in zip(given.type.tensor_type.shape.dim, (1, 0, 2), strict=True):
            extent.dim_value = extents[place]
    found = run(prepare_graph(turned, "test", {}), {key: x.swapaxes(0, 1) for key, x in feeds.items()})
    expected = run(plain, feeds)
    np.testing.assert_allclose(found[0], expected[0].transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    for mine, true in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(mine, true.swapaxes(0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    [{"clip": 1.0}, {"input_forget": 1}, {"activations": ["Sigmoid", "Relu", "Tanh"]}],
    ids=["clipped", "coupled", "other activations"],
)
def test_what_is_not_written_out_stays(attributes: dict) -> None:
    model, _ = layer("LSTM", "forward", **attributes)
    assert graph_operators(prepare_graph(model, "test", {})) == ("LSTM",)
