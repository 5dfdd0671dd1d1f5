"""Weights of ONNX files in files of their own: read beside the model, and nowhere else."""

import os
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402 - after the skip

from tuner.errors import ModelFileError  # noqa: E402 - after the skip
from tuner.frontend import load_model  # noqa: E402 - after the skip

pytestmark = pytest.mark.tvm

WEIGHT = np.arange(8, dtype="float32").reshape(4, 2)


def model_with_weight_in(location: str, **entries: object) -> bytes:
    """Return a product with a weight, or one of its constants, that lies elsewhere."""
    weight = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[4, 2])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=str(value))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2])]
    node = helper.make_node("MatMul", ["x", "weight"], ["y"])
    graph = helper.make_graph([node], "product", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model's weights, and beside it a file that nobody may read through a model."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "inner").mkdir()
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    for name in ("weights.bin", "inner/weights.bin"):
        (tmp_path / "model" / name).write_bytes(b"8 bytes." + WEIGHT.tobytes())
    return tmp_path / "model"


@pytest.mark.parametrize("location", ["weights.bin", "inner/weights.bin", "./weights.bin"])
def test_weights_beside_the_model_are_read(location: str, folder: Path) -> None:
    (folder / "m.onnx").write_bytes(model_with_weight_in(location, offset=8, length=32))
    model = load_model(str(folder / "m.onnx"), guarded=False)
    assert np.array_equal(model.parameters["weight"], WEIGHT)


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "inner/../../secret.bin",
        "{root}/secret.bin",
        "link.bin",
        "linked/secret.bin",
        "/dev/zero",
        "/proc/self/environ",
        "",
        ".",
        "inner",
        "a\x00b",
    ],
)
def test_file_elsewhere_is_refused_before_it_is_opened(location: str, folder: Path) -> None:
    os.symlink(folder.parent / "secret.bin", folder / "link.bin")
    os.symlink(folder.parent, folder / "linked")
    (folder / "m.onnx").write_bytes(model_with_weight_in(location.format(root=folder.parent)))
    with pytest.raises(ModelFileError, match=r"outside the model's folder|there is no such file"):
        load_model(str(folder / "m.onnx"))


@pytest.mark.parametrize(
    "entries",
    [{"offset": 16, "length": 32}, {"offset": -8}, {"length": 31}, {"offset": "x"}, {"length": 10**12}],
)
def test_bytes_that_the_file_does_not_have_are_refused(entries: dict, folder: Path) -> None:
    (folder / "m.onnx").write_bytes(model_with_weight_in("weights.bin", **entries))
    with pytest.raises(ModelFileError, match=r"m\.onnx"):
        load_model(str(folder / "m.onnx"), guarded=False)
