"""Matrices of a resized axis have the values of onnx's own reference, in every mode."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402 - after the skip

from tuner.frontend.onnx.converters.resizing import Sampling, axis_weights, resized_axes  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

MODES = (
    *({"mode": "nearest", "nearest_mode": each} for each in ("round_prefer_ceil", "floor", "ceil")),
    {"mode": "nearest"},
    {"mode": "linear"},
    {"mode": "linear", "antialias": 1},
    {"mode": "linear", "exclude_outside": 1},
    {"mode": "cubic"},
    {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5},
    {"mode": "cubic", "exclude_outside": 1},
)
COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
    "tf_crop_and_resize",
)


def resize_node(inputs: list[str], **said: object) -> object:
    return helper.make_node("Resize", inputs, ["y"], **said)


def resize_model(x: np.ndarray, node: object, constants: dict[str, np.ndarray]) -> object:
    graph = helper.make_graph(
        [node],
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def reference(x: np.ndarray, node: object, constants: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(ReferenceEvaluator(resize_model(x, node, constants)).run(None, {"x": x})[0])


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("said", MODES, ids=lambda said: "-".join(map(str, said.values())))
def test_an_axis_is_resized_as_the_reference_does(said: dict[str, object], coordinates: str) -> None:
    rng = np.random.default_rng(0)
    # None of these places lies halfway between two elements, where rounding errors decide.
    crop = np.array([0.211, 0.893], "float32") if coordinates == "tf_crop_and_resize" else None
    said = {**said, "coordinate_transformation_mode": coordinates}
    for extent, scale in itertools.product((1, 4, 7), (0.3, 0.6, 1.0, 1.7, 2.0, 3.1)):
        if extent * scale < 1:
            continue
        x = rng.standard_normal(extent).astype("float32")
        constants = {"scales": np.array([scale], "float32")}
        if crop is not None:
            constants["crop"] = crop
        node = resize_node(["x", "crop" if crop is not None else "", "scales"], **said)
        expected = reference(x, node, constants)
        axes = resized_axes((extent,), scales=constants["scales"], sizes=None, crop=crop, said=said)
        found = x
        for axis in axes:
            weights, inside = axis_weights(axis, Sampling.of(said))
            found = np.where(inside, weights @ x, 0.0)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=2e-5, err_msg=f"{extent} elements by {scale}")


@pytest.mark.parametrize(
    ("inputs", "constants", "said"),
    [
        (["", "scales"], {"scales": np.array([1, 1, 0.6, 1.3], "float32")}, {"mode": "cubic"}),
        (["", "scales"], {"scales": np.array([1.5, 0.7], "float32")}, {"mode": "linear", "axes": [3, 1]}),
        (["", "", "sizes"], {"sizes": np.array([1, 3, 4, 9])}, {"mode": "linear", "antialias": 1}),
        (
            ["", "", "sizes"],
            {"sizes": np.array([9, 4])},
            {"mode": "nearest", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        ),
        (
            ["crop", "", "sizes"],
            {"crop": np.array([0, 0, 0.1, 0.2, 1, 1, 1.3, 0.8], "float32"), "sizes": np.array([1, 3, 4, 4])},
            {
                "mode": "linear",
                "coordinate_transformation_mode": "tf_crop_and_resize",
                "extrapolation_value": 7.0,
            },
        ),
        # Before version 13, what is left out is an empty tensor.
        (
            ["none", "none", "sizes"],
            {"none": np.array([], "float32"), "sizes": np.array([1, 3, 10, 5])},
            {"mode": "linear"},
        ),
    ],
)
def test_a_file_that_resizes_computes_what_the_reference_computes(
    inputs: list[str],
    constants: dict[str, np.ndarray],
    said: dict[str, object],
    tmp_path: Path,
    run_model,
    assert_close,
) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 6, 7)).astype("float32")
    node = resize_node(["x", *inputs], **said)
    path = tmp_path / "resize.onnx"
    onnx.save(resize_model(x, node, constants), str(path))
    model = load_model(str(path), guarded=False)
    full = [name if name != "none" else "" for name in inputs]
    expected = reference(
        x, resize_node(["x", *full], **said), {k: v for k, v in constants.items() if k in full}
    )
    assert_close(run_model(model, [x], model.parameters)[0], expected)
