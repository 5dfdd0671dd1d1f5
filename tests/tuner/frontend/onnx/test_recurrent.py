"""Recurrent layers written out step by step give what onnxruntime gives."""

from collections.abc import Sequence

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

from tuner.frontend.onnx.graph import graph_operators, prepare_graph  # noqa: E402 - after the skip

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
    lengths: Sequence[int] = (),
    are_given: bool = False,
    **attributes,
):
    """A model of one layer, with random weights, that gives every result of it.

    Its lengths, one for each example, are constants, or given.
    """
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
        + [numpy_helper.from_array(np.array(lengths, "int32"), "lengths")] * bool(lengths and not are_given),
    )
    feeds = {name: rng.standard_normal(shape).astype("float32") for name, shape in given.items()}
    if are_given:
        graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [BATCH]))
        feeds["lengths"] = np.array(lengths, "int32")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), feeds


def run(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {}),
        ("LSTM", {"starts": True, "biased": False}),
        ("LSTM", {"peepholes": True, "lengths": [STEPS] * BATCH}),
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


@pytest.mark.parametrize("are_given", [False, True], ids=["constant", "input"])
@pytest.mark.parametrize("lengths", [[1, STEPS], [3, 2], [0, 2]])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("LSTM", {"starts": True}), ("GRU", {"linear_before_reset": 1}), ("GRU", {"starts": True}), ("RNN", {})],
)
def test_an_example_ends_at_its_length(
    kind: str, options: dict, direction: str, lengths: list[int], are_given: bool
) -> None:
    model, feeds = layer(kind, direction, lengths=lengths, are_given=are_given, **options)
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
