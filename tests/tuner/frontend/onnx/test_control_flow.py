"""Branches and loops whose course is known are written out, and give what onnxruntime gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import UnknownNameError, UnsupportedOperatorError
from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

from tuner.frontend.onnx.graph import graph_operators, prepare_graph  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

ROWS, WIDTH = 5, 3
BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64


def value(name: str, kind: int, *shape: int) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constants_of(values: Mapping[str, np.ndarray]) -> list[Any]:
    return [numpy_helper.from_array(np.asarray(each), name) for name, each in values.items()]


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
) -> str:
    graph = helper.make_graph(nodes, "test", inputs, outputs, constants_of(constants or {}))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


def check(spec: str, feeds: Mapping[str, np.ndarray], run_model, assert_close, **options: Any) -> Any:
    """Import a file, compare every result with onnxruntime's, and return the model."""
    model = load_model(spec, guarded=False, **options)
    expected = onnxruntime.InferenceSession(spec).run(None, dict(feeds))
    found = run_model(model, list(feeds.values()), model.parameters)
    for mine, true in zip(found, expected, strict=True):
        assert mine.dtype == true.dtype
        assert_close(mine, true)
    return model


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def scaled_branch(factor: str, result: str, more: float) -> Any:
    """A branch that reads `x` from around it, and a constant of its own."""
    nodes = [
        helper.make_node("Mul", ["x", factor], ["scaled"]),
        helper.make_node("Add", ["scaled", "more"], [result]),
    ]
    own = constants_of({"more": np.float32(more)})
    return helper.make_graph(nodes, "branch", [], [value(result, FLOAT, ROWS, WIDTH)], own)


def choice(condition: str) -> Any:
    branches = {"then_branch": scaled_branch("two", "t", 1), "else_branch": scaled_branch("three", "e", -2)}
    return helper.make_node("If", [condition], ["y"], name="/choice", **branches)


FACTORS = {"two": np.float32(2), "three": np.float32(3)}
X, Y = value("x", FLOAT, ROWS, WIDTH), value("y", FLOAT, ROWS, WIDTH)


@pytest.mark.parametrize("extent", [ROWS, ROWS + 1])
def test_a_branch_that_shapes_choose_is_the_only_one_left(
    extent: int, tmp_path: Path, run_model, assert_close
) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Equal", ["rows", "asked"], ["c"]),
        choice("c"),
    ]
    constants = FACTORS | {"first": np.int64(0), "asked": np.int64(extent)}
    spec = save(tmp_path / "if.onnx", nodes, [X], [Y], constants)
    assert "Where" not in graph_operators(prepare_graph(onnx.load(spec), "if", {}))
    check(spec, {"x": numbers(ROWS, WIDTH)}, run_model, assert_close)


@pytest.mark.parametrize("is_true", [True, False])
def test_a_branch_that_inputs_choose_is_chosen_from_both(
    is_true: bool, tmp_path: Path, run_model, assert_close
) -> None:
    spec = save(tmp_path / "if.onnx", [choice("c")], [X, value("c", BOOL)], [Y], FACTORS)
    check(spec, {"x": numbers(ROWS, WIDTH), "c": np.array(is_true)}, run_model, assert_close)


def by_rate(path: Path, *extents: int) -> str:
    """Write a file whose branches give results of other widths, by an input of one number."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", name], [f"{name}_result"])],
            name,
            [],
            [value(f"{name}_result", FLOAT, ROWS, width)],
            constants_of({name: numbers(WIDTH, width)}),
        )
        for name, width in (("then", 2), ("else", 4))
    }
    nodes = [
        helper.make_node("Squeeze", ["rate"], ["number"]),
        helper.make_node("Equal", ["number", "asked"], ["c"]),
        helper.make_node("If", ["c"], ["y"], name="/choice", **branches),
    ]
    outputs = [value("y", FLOAT, ROWS, "width")]
    return save(path, nodes, [X, value("rate", INT64, *extents)], outputs, {"asked": np.int64(16000)})


@pytest.mark.parametrize("rate", [16000, 8000])
@pytest.mark.parametrize("extents", [(), (1,), ("one",)])
def test_an_input_of_a_fixed_value_chooses_its_branch(
    rate: int, extents: tuple[int | str, ...], tmp_path: Path, run_model, assert_close
) -> None:
    spec = by_rate(tmp_path / "if.onnx", *extents)
    shapes = {"rate": (1,)} if extents else {}
    with pytest.raises(UnsupportedOperatorError, match=r"If /choice .*; fix .* \(--value rate=VALUE\), or"):
        load_model(spec, shapes=shapes)
    model = load_model(spec, shapes=shapes, values={"rate": rate})
    assert [each.name for each in model.inputs] == ["x"]
    x = numbers(ROWS, WIDTH)
    feeds = {"x": x, "rate": np.full([1] * len(extents), rate)}
    (expected,) = onnxruntime.InferenceSession(spec).run(None, feeds)
    assert expected.shape[1] == (2 if rate == 16000 else 4)
    assert_close(run_model(model, [x], model.parameters)[0], expected)
    drawn, (found,) = model.source.draw(model.inputs, 0)
    assert list(drawn) == ["x"]
    assert found.shape == expected.shape


def test_a_value_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    spec = by_rate(tmp_path / "if.onnx")
    with pytest.raises(UnknownNameError, match=r"no input 'sr'; there is x, rate"):
        load_model(spec, values={"sr": 1}, guarded=False)
    for wrong in (0.5, 1e30):
        with pytest.raises(ValueError, match=r"the value .* is none of its type; give one of int64"):
            load_model(spec, values={"rate": wrong}, guarded=False)
    with pytest.raises(ValueError, match="only inputs of ONNX files can be fixed and mlp:tiny is none"):
        load_model("mlp:tiny", values={"x": 1})


def test_a_loop_goes_on_as_often_as_a_fixed_input_says(tmp_path: Path, run_model, assert_close) -> None:
    body = accumulating(KEEP_GOING, "again")
    node = helper.make_node("Loop", ["count", "", "x"], ["last", "y"], body=body, name="/loop")
    outputs = [value("y", FLOAT, "steps", ROWS, WIDTH), value("last", FLOAT, ROWS, WIDTH)]
    spec = save(
        tmp_path / "loop.onnx", [node], [X, value("count", INT64)], outputs, {"w": numbers(WIDTH, WIDTH)}
    )
    with pytest.raises(UnsupportedOperatorError, match=r"--value count=VALUE"):
        load_model(spec, guarded=False)
    model = load_model(spec, values={"count": 3}, guarded=False)
    x = numbers(ROWS, WIDTH)
    expected = onnxruntime.InferenceSession(spec).run(None, {"x": x, "count": np.array(3)})
    for found, true in zip(run_model(model, [x], model.parameters), expected, strict=True):
        assert_close(found, true)


def test_a_branch_within_a_branch_reads_what_is_around_both(tmp_path: Path, run_model, assert_close) -> None:
    inner = choice("inner")
    inner.output[0] = "chosen"
    outer = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"]), inner, helper.make_node("Add", ["chosen", "n"], ["t"])],
        "outer",
        [],
        [value("t", FLOAT, ROWS, WIDTH)],
    )
    other = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["e"])], "e", [], [value("e", FLOAT, ROWS, WIDTH)]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=outer, else_branch=other)
    spec = save(tmp_path / "if.onnx", [node], [X, value("c", BOOL), value("inner", BOOL)], [Y], FACTORS)
    for c in (True, False):
        feeds = {"x": numbers(ROWS, WIDTH), "c": np.array(c), "inner": np.array(True)}
        check(spec, feeds, run_model, assert_close)


def accumulating(condition: Sequence[Any], result: str, extra: Mapping[str, np.ndarray] | None = None) -> Any:
    """A step that adds `x · w` and its number to a state, and gives the state's square as well."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
        helper.make_node("Add", ["xw", "number"], ["more"]),
        helper.make_node("Add", ["state", "more"], ["next"]),
        helper.make_node("Mul", ["next", "next"], ["square"]),
        *condition,
    ]
    inputs = [value("i", INT64), value("go", BOOL), value("state", FLOAT, ROWS, WIDTH)]
    outputs = [value(result, BOOL), value("next", FLOAT, ROWS, WIDTH), value("square", FLOAT, ROWS, WIDTH)]
    return helper.make_graph(nodes, "step", inputs, outputs, constants_of(extra or {}))


KEEP_GOING = [helper.make_node("Identity", ["go"], ["again"])]
UNTIL_THREE = [helper.make_node("Less", ["i", "three"], ["again"])]
UNTIL_LARGE = [
    helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
    helper.make_node("Less", ["sum", "limit"], ["again"]),
]
WEIGHT = numbers(WIDTH, WIDTH)
LOOP_RESULTS = [value("y", FLOAT, ROWS, WIDTH), value("squares", FLOAT, 4, ROWS, WIDTH)]


def loop(tmp_path: Path, body: Any, count: str, first: str, **constants: np.ndarray) -> str:
    node = helper.make_node("Loop", [count, first, "x"], ["y", "squares"], name="/loop", body=body)
    return save(tmp_path / "loop.onnx", [node], [X], LOOP_RESULTS, {"w": WEIGHT, **constants})


FOUR, TRUE = np.int64(4), np.array(True)


@pytest.mark.parametrize(
    ("condition", "count", "first"),
    [(KEEP_GOING, "four", "true"), (UNTIL_THREE, "", "true"), (UNTIL_THREE, "many", "true")],
    ids=["a count", "its own number", "the sooner of both"],
)
def test_a_loop_becomes_its_steps(
    condition: Sequence[Any], count: str, first: str, tmp_path: Path, run_model, assert_close
) -> None:
    body = accumulating(condition, "again", {"three": np.int64(3)})
    spec = loop(tmp_path, body, count, first, four=FOUR, many=np.int64(2**40), true=TRUE)
    model = check(spec, {"x": numbers(ROWS, WIDTH)}, run_model, assert_close)
    assert list(model.parameter_names) == ["w"], "one weight, whatever the number of steps"


def test_a_weight_of_all_steps_trains_as_one(tmp_path: Path) -> None:
    node = helper.make_node(
        "Loop", ["four", "true", "x"], ["y", ""], name="/loop", body=accumulating(KEEP_GOING, "again")
    )
    constants = {"w": WEIGHT, "four": FOUR, "true": TRUE}
    spec = save(tmp_path / "loop.onnx", [node], [X], [Y], constants)
    model = load_model(spec, guarded=False, training=True)
    assert sorted(set(model.parameter_names) - model.untrained) == ["w"]


def test_a_loop_that_values_end_is_refused_by_name(tmp_path: Path) -> None:
    body = accumulating(UNTIL_LARGE, "again", {"limit": np.float32(100)})
    spec = loop(tmp_path, body, "four", "true", four=FOUR, true=TRUE)
    with pytest.raises(UnsupportedOperatorError, match=r"Loop /loop of loop\.onnx takes a course"):
        load_model(spec, guarded=False)


def test_a_loop_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.frontend.onnx.control_flow.MAX_NODES", 200)
    spec = loop(tmp_path, accumulating(KEEP_GOING, "again"), "", "true", true=TRUE)
    with pytest.raises(UnsupportedOperatorError, match="Loop /loop"):
        load_model(spec, guarded=False)


@pytest.mark.parametrize("opset", [12, 18])
@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_becomes_its_steps(
    backwards: int, opset: int, tmp_path: Path, run_model, assert_close
) -> None:
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["hw"]),
        helper.make_node("Add", ["hw", "row"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["next"]),
        helper.make_node("Neg", ["next"], ["out"]),
    ]
    inputs, outputs = (
        [value(first, FLOAT, WIDTH), value(second, FLOAT, WIDTH)]
        for first, second in (("h", "row"), ("next", "out"))
    )
    body = helper.make_graph(nodes, "step", inputs, outputs)
    along = {"scan_input_axes": [1], "scan_input_directions": [backwards]}
    along |= {"scan_output_axes": [-1], "scan_output_directions": [backwards]}
    node = helper.make_node(
        "Scan", ["h0", "x"], ["last", "y"], name="/scan", body=body, num_scan_inputs=1, **along
    )
    wide = [value("h0", FLOAT, WIDTH), value("x", FLOAT, WIDTH, ROWS)]
    results = [value("last", FLOAT, WIDTH), value("y", FLOAT, WIDTH, ROWS)]
    spec = save(tmp_path / "scan.onnx", [node], wide, results, {"w": WEIGHT}, opset)
    check(spec, {"h0": numbers(WIDTH), "x": numbers(WIDTH, ROWS)}, run_model, assert_close)


def test_a_branch_that_reads_at_computed_places_is_not_run_for_nothing(tmp_path: Path) -> None:
    taken = helper.make_graph(
        [helper.make_node("Gather", ["x", "place"], ["t"])], "t", [], [value("t", FLOAT, WIDTH)]
    )
    other = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axis"], ["e"], keepdims=0)], "e", [], [value("e", FLOAT, WIDTH)]
    )
    node = helper.make_node("If", ["c"], ["y"], name="/choice", then_branch=taken, else_branch=other)
    inputs = [X, value("c", BOOL), value("place", INT64)]
    spec = save(tmp_path / "if.onnx", [node], inputs, [value("y", FLOAT, WIDTH)], {"axis": np.array([0])})
    with pytest.raises(UnsupportedOperatorError, match="If /choice"):
        load_model(spec, guarded=False)
