"""Every kernel that the `tvm` backend schedules for a GPU computes what NumPy does, operator by type.

Each runs with its accesses checked: what is not initialised, out of bounds or raced for is reported, and
fails the test.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tests.harness.run_module import run_module
from tests.tuner.backends.tvm.test_gpu_loops import CASES as LOOPS
from tests.tuner.backends.tvm.test_gpu_loops import module_of
from tuner.lowering.lower import build_module
from tuner.targets.resolution import resolve_target

op, nn = relax.op, relax.op.nn

TYPES = ("float32", "float16", "bfloat16", "float64", "int32")
FLOATS = TYPES[:4]
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-6, "int32": 0, "int8": 0}
"""Largest error over the largest result. TVM approximates erf and power of float64 by float32's terms."""

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """An operator on inputs of some shapes, and what NumPy says it computes.

    Attributes:
        make: emits the operator.
        expected: the same by NumPy.
        shapes: of the inputs.
        types: that the operator has.
        is_positive: whether it takes positive numbers.
        result: its type, where that is another.
    """

    make: Callable[..., Any]
    expected: Callable[..., Array]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...] = FLOATS
    is_positive: bool = False
    result: str | None = None


def windows(image: Array, extent: int, stride: int = 1) -> Array:
    """Return the square windows of an image's last two axes, as two more axes."""
    found = np.lib.stride_tricks.sliding_window_view(image, (extent, extent), axis=(2, 3))
    return found[:, :, ::stride, ::stride]


def convolved(image: Array, filters: Array, stride: int = 1) -> Array:
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.einsum("nchwij,ocij->nohw", windows(padded, 3, stride), filters)


def max_pool_gradient(gradient: Array, image: Array) -> Array:
    """Return the gradient of a pool of three by two, padded by one."""
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    found = np.zeros_like(padded)
    for at in np.ndindex(*gradient.shape):
        rows, columns = (slice(2 * place, 2 * place + 3) for place in at[2:])
        window = padded[*at[:2], rows, columns]
        row, column = np.unravel_index(window.argmax(), window.shape)
        found[*at[:2], rows, columns][row, column] += gradient[at]
    return found[:, :, 1:-1, 1:-1]


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def normalised(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def attended(q: Array, k: Array, v: Array) -> Array:
    """Return attention of arrays with axes (batch, position, head, channel)."""
    scores = np.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(q.shape[-1])
    return np.einsum("bhij,bjhc->bihc", softmax(scores), v)


erf = np.vectorize(math.erf, otypes=[np.float64])
ROWS, ODD, IMAGE = (48, 96), (37, 53), (2, 6, 14, 14)

CASES: dict[str, Case] = {
    "add": Case(op.add, np.add, (ROWS, ROWS), TYPES),
    "add a row": Case(op.add, np.add, (ODD, (53,)), TYPES),
    "subtract": Case(op.subtract, np.subtract, (ODD, ODD), TYPES),
    "multiply": Case(op.multiply, np.multiply, (ODD, (37, 1)), TYPES),
    "divide": Case(op.divide, np.divide, (ROWS, ROWS), FLOATS, is_positive=True),
    "power": Case(op.power, np.power, (ROWS, ROWS), ("float32", "float16", "float64"), is_positive=True),
    "maximum": Case(op.maximum, np.maximum, (ODD, ODD), TYPES),
    "minimum": Case(op.minimum, np.minimum, (ODD, ODD), TYPES),
    "negative": Case(op.negative, np.negative, (ODD,), TYPES),
    "abs": Case(op.abs, np.abs, (ODD,), TYPES),
    "exp": Case(op.exp, np.exp, (ODD,)),
    "log": Case(op.log, np.log, (ODD,), is_positive=True),
    "sqrt": Case(op.sqrt, np.sqrt, (ODD,), is_positive=True),
    "rsqrt": Case(op.rsqrt, lambda x: 1 / np.sqrt(x), (ODD,), is_positive=True),
    "tanh": Case(op.tanh, np.tanh, (ODD,)),
    "sigmoid": Case(op.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (ODD,)),
    "erf": Case(op.erf, erf, (ODD,)),
    "floor": Case(op.floor, np.floor, (ODD,)),
    "relu": Case(nn.relu, lambda x: np.maximum(x, 0), (ODD,), TYPES),
    "gelu": Case(nn.gelu, lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, (ODD,)),
    "silu": Case(nn.silu, lambda x: x / (1 + np.exp(-x)), (ODD,)),
    "where": Case(
        lambda x, y: op.where(op.greater(x, y), x, op.multiply(y, y)),
        lambda x, y: np.where(x > y, x, y * y),
        (ODD, ODD),
        TYPES,
    ),
    "sum of rows": Case(lambda x: op.sum(x, axis=1), lambda x: x.sum(1), (ROWS,), TYPES),
    "sum of columns": Case(lambda x: op.sum(x, axis=0), lambda x: x.sum(0), (ODD,), TYPES),
    "sum of all": Case(op.sum, np.sum, (ODD,), TYPES),
    "mean": Case(lambda x: op.mean(x, axis=-1), lambda x: x.mean(-1), (ROWS,)),
    "variance": Case(lambda x: op.variance(x, axis=-1), lambda x: x.var(-1), (ROWS,)),
    "largest of rows": Case(lambda x: op.max(x, axis=1), lambda x: x.max(1), (ODD,), TYPES),
    "smallest of all": Case(op.min, np.min, (ROWS,), TYPES),
    "softmax": Case(lambda x: nn.softmax(x, -1), softmax, (ROWS,)),
    "softmax of an odd row": Case(lambda x: nn.softmax(x, -1), softmax, (ODD,)),
    "log softmax": Case(lambda x: nn.log_softmax(x, -1), lambda x: np.log(softmax(x)), (ROWS,)),
    "layer norm": Case(
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1]),
        lambda x, g, b: normalised(x) * g + b,
        (ROWS, (96,), (96,)),
        ("float32", "float16"),  # TVM has no other
    ),
    "rms norm": Case(
        lambda x, g: nn.rms_norm(x, g, axes=[-1]),
        lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        (ROWS, (96,)),
    ),
    "product": Case(op.matmul, np.matmul, ((48, 64), (64, 80)), TYPES),
    "odd product": Case(op.matmul, np.matmul, ((17, 33), (33, 19)), TYPES),
    "product with a vector": Case(op.matmul, np.matmul, ((1, 96), (96, 64)), TYPES),
    "batched product": Case(op.matmul, np.matmul, ((3, 32, 16), (3, 16, 48)), TYPES),
    "product, sum and relu": Case(
        lambda x, w, b: nn.relu(op.add(op.matmul(x, w), b)),
        lambda x, w, b: np.maximum(x @ w + b, 0),
        ((32, 64), (64, 48), (48,)),
    ),
    "product of a transposed": Case(
        lambda x, w: op.matmul(x, op.permute_dims(w)), lambda x, w: x @ w.T, ((32, 64), (48, 64)), TYPES
    ),
    "product of bytes": Case(
        lambda x, y: op.matmul(x, y, out_dtype="int32"),
        np.matmul,
        ((64, 64), (64, 64)),
        ("int8",),
        result="int32",
    ),
    "product summed in float32": Case(
        lambda x, y: op.matmul(x, y, out_dtype="float32"),
        np.matmul,
        ((64, 64), (64, 64)),
        ("float16", "bfloat16"),
        result="float32",
    ),
    "attention": Case(nn.attention, attended, ((1, 16, 2, 16),) * 3, ("float32", "float16")),
    "convolution": Case(lambda x, w: nn.conv2d(x, w, padding=1), convolved, (IMAGE, (8, 6, 3, 3))),
    "convolution by two": Case(
        lambda x, w: nn.conv2d(x, w, padding=1, strides=2),
        lambda x, w: convolved(x, w, 2),
        (IMAGE, (8, 6, 3, 3)),
    ),
    "max pool": Case(
        lambda x: nn.max_pool2d(x, pool_size=2, strides=2), lambda x: windows(x, 2, 2).max((4, 5)), (IMAGE,)
    ),
    "gradient of a max pool": Case(
        lambda g, x: op.grad.max_pool2d_backward(g, x, pool_size=[3, 3], strides=[2, 2], padding=[1] * 4),
        max_pool_gradient,
        ((2, 6, 7, 7), IMAGE),
        ("float32",),
    ),
    "average pool": Case(
        lambda x: nn.avg_pool2d(x, pool_size=2, strides=2), lambda x: windows(x, 2, 2).mean((4, 5)), (IMAGE,)
    ),
    "transposed": Case(op.permute_dims, np.transpose, (ODD,), TYPES),
    "reshaped": Case(
        lambda x: op.negative(op.reshape(x, (96, 48))), lambda x: -x.reshape(96, 48), (ROWS,), TYPES
    ),
    "joined": Case(
        lambda x, y: op.concat([x, y], axis=1), lambda x, y: np.concatenate([x, y], 1), (ODD, (37, 11)), TYPES
    ),
    "a part": Case(
        lambda x: op.strided_slice(x, [0, 1], [3, 1], [30, 50], [2, 3]),
        lambda x: x[3:30:2, 1:50:3],
        (ODD,),
        TYPES,
    ),
    "padded": Case(lambda x: nn.pad(x, [1, 2, 3, 0]), lambda x: np.pad(x, ((1, 2), (3, 0))), (ODD,), TYPES),
    "broadcast": Case(
        lambda x: op.broadcast_to(x, (5, 37, 53)), lambda x: np.broadcast_to(x, (5, 37, 53)), (ODD,), TYPES
    ),
}

SAMPLE = frozenset(
    [
        ("add", "float32"),
        ("exp", "bfloat16"),
        ("sum of all", "float32"),
        ("sum of rows", "int32"),
        ("softmax", "float16"),
        ("layer norm", "float32"),
        ("product", "float32"),
        ("product, sum and relu", "bfloat16"),
        ("attention", "float32"),
        ("convolution", "float32"),
    ]
)
"""What `make test` runs of them."""


def parameters() -> Iterator[Any]:
    for name, case in CASES.items():
        for dtype in case.types:
            marks = () if (name, dtype) in SAMPLE else (pytest.mark.slow,)
            yield pytest.param(name, dtype, marks=marks)


def drawn(case: Case, name: str, dtype: str) -> list[Array]:
    """Return inputs of a case, as they are in its type."""
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    if dtype.startswith("int"):
        return [rng.integers(-9, 10, shape).astype(dtype) for shape in case.shapes]
    numpy_type = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    arrays = [rng.standard_normal(shape) for shape in case.shapes]
    return [(np.abs(each) + 0.1 if case.is_positive else each).astype(numpy_type) for each in arrays]


def run_case(case: Case, arrays: list[Array], dtype: str) -> Array:
    """Return what the operator's kernels compute on the GPU."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"input{number}", relax.TensorType(each.shape, dtype)) for number, each in enumerate(arrays)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(case.make(*inputs)))
        builder.emit_func_output(result)
    target = resolve_target("cuda")
    (found,) = run_module(build_module(builder.get(), target), arrays, target)
    return found


def test_there_are_200_operators_and_types() -> None:
    assert len(list(parameters())) >= 200


@pytest.mark.parametrize(("name", "dtype"), parameters())
def test_kernels_compute_what_numpy_does(name: str, dtype: str) -> None:
    case = CASES[name]
    arrays = drawn(case, name, dtype)
    found = run_case(case, arrays, dtype)
    expected = case.expected(*(each.astype(np.float64) for each in arrays))
    assert (found.shape, found.dtype.name) == (expected.shape, case.result or dtype)
    scale = max(1e-6, float(np.abs(expected).max()))
    assert np.abs(found.astype(np.float64) - expected).max() <= TOLERANCES[dtype] * scale


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_look_ups_gradients_compute_what_a_processor_does(name: str) -> None:
    """On the first real GPU they were loops of the host over the device's memory."""
    make, arrays, _ = LOOPS[name]
    module, found = module_of(make, *arrays), []
    for target in (resolve_target("cuda"), resolve_target("cpu", num_threads=1)):
        found += run_module(build_module(module, target), arrays, target)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_a_running_sum_races(reports: Callable[[], str]) -> None:
    """TVM's own scan reads what a neighbouring lane writes in the same step, and waits for nothing.

    By CUDA's rules that is a race; a warp that takes each step together computes the sum all the same. Where
    this fails, TVM has mended it: let `CASES` have running sums.
    """
    case = Case(lambda x: op.cumsum(x, axis=1), lambda x: x.cumsum(1), ((9, 40),))
    run_case(case, [np.ones((9, 40), np.float32)], "float32")
    assert "kernel gpu_2d_continuous_cumsum_kernel" in (found := reports())
    assert "a data race" in found
