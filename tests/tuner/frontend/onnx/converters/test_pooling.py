"""The places of ONNX's largest values are torch's, for every padding, stride and distance."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tuner.frontend import load_model

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import TensorProto, helper  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx, pytest.mark.torch]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("extents", "window"),
    [
        ((9,), (3, 2, 1, 1)),
        ((7, 8), (2, 2, 0, 1)),
        ((7, 8), (3, 2, 1, 1)),
        ((9, 7), (3, 1, 1, 2)),
        ((5, 6, 4), (2, 3, 1, 1)),
    ],
)
def test_places_are_torchs(
    extents: tuple[int, ...],
    window: tuple[int, int, int, int],
    ceil: bool,
    tmp_path: Path,
    run_model: Callable,
    assert_close: Callable,
) -> None:
    size, stride, pad, distance = window
    rank = len(extents)
    x = -1 - np.random.default_rng(0).random((2, 3, *extents), dtype="float32")  # below what lies outside
    pool = getattr(torch.nn.functional, f"max_pool{rank}d")
    values, places = pool(
        torch.from_numpy(x), size, stride, pad, dilation=distance, ceil_mode=ceil, return_indices=True
    )
    # torch counts within an image, ONNX within the whole tensor.
    first = np.arange(6).reshape(2, 3, *[1] * rank) * np.prod(extents)
    column_major = np.arange(np.prod(extents)).reshape(extents, order="F").ravel()[places.numpy()]
    for order, expected in enumerate((places.numpy(), column_major)):
        node = helper.make_node(
            "MaxPool",
            ["x"],
            ["y", "z"],
            kernel_shape=[size] * rank,
            strides=[stride] * rank,
            pads=[pad] * (2 * rank),
            dilations=[distance] * rank,
            ceil_mode=int(ceil),
            storage_order=order,
        )
        graph = helper.make_graph(
            [node],
            "pool",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [
                helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
                helper.make_tensor_value_info("z", TensorProto.INT64, None),
            ],
        )
        path = tmp_path / "pool.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
        model = load_model(str(path), guarded=False)
        found = run_model(model, [x], model.parameters)
        assert_close(found[0], values.numpy())
        assert np.array_equal(found[1], expected + first)
