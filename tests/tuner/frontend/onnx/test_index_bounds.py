"""Whatever indices a caller hands in, nothing outside of a tensor is read or written."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

FAR = 10**12

CASES: Mapping[str, tuple[str, Mapping[str, int], np.ndarray, np.ndarray]] = {
    "rows": ("Gather", {"axis": 0}, np.array([2, -1, 9, FAR, -FAR]), np.array([2, 3, 3, 3, 0])),
    "elements": ("GatherElements", {"axis": 0}, np.array([[-1, 7, -FAR]]), np.array([[3, 3, 0]])),
    "points": ("GatherND", {}, np.array([[-1, 1], [FAR, -FAR]]), np.array([[3, 1], [3, 0]])),
    "of a batch": (
        "GatherND",
        {"batch_dims": 1},
        np.array([[2], [FAR], [-1], [3]]),
        np.array([[2], [2], [2], [2]]),
    ),
    "elements that are put": ("ScatterElements", {"axis": 1}, np.array([[-1], [FAR]]), np.array([[2], [2]])),
    "points that are put": ("ScatterND", {}, np.array([[1, -1], [-FAR, FAR]]), np.array([[1, 2], [0, 2]])),
}
"""An operator, its attributes, indices, and those inside that stand for them."""


@pytest.mark.parametrize("name", CASES)
def test_indices_outside_are_the_nearest_inside(name: str, tmp_path: Path, run_model, assert_close) -> None:
    kind, attributes, given, inside = CASES[name]
    shapes = {"x": [4, 3]}
    if kind.startswith("Scatter"):
        shapes["updates"] = list(given.shape[:1] if kind == "ScatterND" else given.shape)
    values = [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in shapes.items()]
    values.insert(1, helper.make_tensor_value_info("indices", TensorProto.INT64, list(given.shape)))
    graph = helper.make_graph(
        [helper.make_node(kind, [value.name for value in values], ["y"], **attributes)],
        "operator",
        values,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "operator.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = load_model(str(path), guarded=False)
    rng = np.random.default_rng(0)
    drawn = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    found = run_model(model, [{**drawn, "indices": given}[value.name] for value in values], model.parameters)[
        0
    ]
    (expected,) = ReferenceEvaluator(onnx.load(str(path))).run(None, {**drawn, "indices": inside})
    assert_close(found, expected)
