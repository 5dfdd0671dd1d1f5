"""Uses of operators that TVM's importer takes otherwise than ONNX are refused, by node and reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import UnsupportedOperatorError
from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

CHANNEL = {name: np.ones(3, "float32") for name in ("scale", "shift", "mean", "variance")}
BOXES = {"boxes": np.zeros((1, 4), "float32"), "batches": np.zeros(1, "int64")}
DROP = {
    "half": np.array(0.5, "float32"),
    "none": np.array(0, "float32"),
    "true": np.array(True),
    "false": np.array(False),
}


def save(path: Path, node: Any, constants: dict[str, np.ndarray]) -> str:
    kind = {"Cast": node.attribute[0].i}.get(node.op_type, TensorProto.FLOAT) if node.attribute else 1
    graph = helper.make_graph(
        [node],
        "refused",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 4])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in node.input],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), str(path))
    return str(path)


@pytest.mark.parametrize(
    ("node", "constants", "reason"),
    [
        (
            helper.make_node(
                "BatchNormalization", ["x", "scale", "shift", "mean", "variance"], ["y"], training_mode=1
            ),
            CHANNEL,
            "BatchNormalization 'y' normalises by the batch",
        ),
        (
            helper.make_node("Dropout", ["x", "half", "true"], ["y"]),
            DROP,
            "Dropout 'y' draws what it drops",
        ),
        (
            helper.make_node(
                "RoiAlign", ["x", "boxes", "batches"], ["y"], mode="max", output_height=2, output_width=2
            ),
            BOXES,
            "RoiAlign 'y' takes the largest",
        ),
        (
            helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E5M2),
            {},
            "Cast 'y' makes numbers of float8e5m2",
        ),
        (
            helper.make_node("SplitToSequence", ["x"], ["y"], keepdims=0),
            {},
            "SplitToSequence 'y' gives the model's user a sequence",
        ),
    ],
    ids=["batch", "dropout", "largest", "narrow", "sequence"],
)
def test_a_use_is_refused_by_name(node: Any, constants: dict[str, np.ndarray], reason: str, tmp_path) -> None:
    with pytest.raises(UnsupportedOperatorError, match=reason):
        load_model(save(tmp_path / "refused.onnx", node, constants), guarded=False)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["x", "half", "false"], ["y"]),
        (["x", "none", "true"], ["y"]),
        (["x", "half"], ["y"]),
        (["x"], ["y", "mask"]),
    ],
)
def test_a_dropout_that_drops_nothing_is_taken(inputs: list[str], outputs: list[str], tmp_path) -> None:
    node = helper.make_node("Dropout", inputs, outputs)
    assert load_model(save(tmp_path / "kept.onnx", node, DROP), guarded=False).inputs[0].name == "x"
