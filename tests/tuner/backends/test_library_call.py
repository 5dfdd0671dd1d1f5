"""A partition is recognised as one library call only where the call is all of it."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.samples.partition_samples import Body, function_module
from tuner.backends.library_call import recognise_call
from tuner.runtime.library_calls import (
    Attention,
    Call,
    Convolution,
    LayerNorm,
    Linear,
    Softmax,
    decode_call,
    encode_call,
)

pytestmark = pytest.mark.tvm

op = relax.op
X, W, B = (8, 16), (24, 16), (24,)
Q = (2, 4, 16, 8)
IMAGE, FILTER, CHANNELS = (1, 4, 8, 8), (6, 4, 3, 3), (1, 6, 1, 1)


def two() -> relax.Constant:
    return relax.const(2.0, "float32")


RECOGNISED: dict[str, tuple[list[tuple[int, ...]], Body, Call]] = {
    "linear": (
        [X, W, B],
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, op.permute_dims(w)), b)),
        Linear(False, True, True, "gelu"),
    ),
    "linear with the bias first": (
        [X, W, B],
        lambda x, w, b: op.add(b, op.matmul(x, op.permute_dims(w))),
        Linear(False, True, True, ""),
    ),
    "product of transposed rows": (
        [(16, 8), (16, 24)],
        lambda x, w: op.matmul(op.permute_dims(x), w),
        Linear(True, False, False, ""),
    ),
    "convolution": (
        [IMAGE, FILTER, CHANNELS],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, strides=2, padding=1), b)),
        Convolution((2, 2), (1, 1), (1, 1), 1, True, "relu"),
    ),
    "attention": (
        [Q, Q, Q, (2, 1, 16, 16)],
        lambda q, k, v, m: op.matmul(
            op.nn.softmax(op.add(op.divide(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), two()), m)), v
        ),
        Attention(0.5, True, True),
    ),
    "layer norm": (
        [X, (16,), (16,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1], epsilon=1e-6),
        LayerNorm(1, 1e-6),
    ),
    "softmax": ([X], lambda x: op.nn.log_softmax(x, axis=0), Softmax(0, True)),
}

REFUSED: dict[str, tuple[list[tuple[int, ...]], Body]] = {
    "a bias along rows": (
        [X, W, (8, 1)],
        lambda x, w, b: op.add(op.matmul(x, op.permute_dims(w)), b),
    ),
    "something more behind": ([X, W], lambda x, w: op.negative(op.matmul(x, op.permute_dims(w)))),
    "something more before": ([X, W], lambda x, w: op.matmul(op.negative(x), op.permute_dims(w))),
    "two products": (
        [(8, 8), (8, 8)],
        lambda x, w: op.add(op.matmul(x, w), op.matmul(w, x)),
    ),
    "padding that differs by side": (
        [IMAGE, FILTER],
        lambda x, w: op.nn.conv2d(x, w, padding=[0, 0, 1, 1]),
    ),
    "layer norm of the first axis": (
        [X, (8,), (8,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[0]),
    ),
    "attention over another axis": (
        [Q, Q, Q],
        lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), axis=1), v),
    ),
    "an elementwise operator": ([X], lambda x: op.nn.relu(x)),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_call_is_recognised_with_its_settings(name: str) -> None:
    shapes, body, expected = RECOGNISED[name]
    module = function_module(shapes, body)
    found = recognise_call(module["main"])
    assert found is not None
    assert found.call == expected
    assert len(found.operands) == len(shapes)
    assert decode_call(encode_call(found.call)) == found.call


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_more_or_less_than_a_call_is_refused(name: str) -> None:
    assert recognise_call(function_module(*REFUSED[name])["main"]) is None


def test_other_data_types_are_refused() -> None:
    module = function_module([X, (16, 4)], lambda x, w: op.matmul(x, w), ["float64", "float64"])
    assert recognise_call(module["main"]) is None
