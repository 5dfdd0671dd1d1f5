"""Calls of a library's fixed entry points as data: linear, convolution, attention, layer norm, softmax.

A compiled program hands them to the packed functions that make them, as text of JSON. Checked in
tests/tuner/backends/test_library_call.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Activation = Literal["", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]
"""What follows a product or a convolution; nothing if empty."""


class Linear(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A matrix product, a bias along the last axis where there is one, and an activation.

    Operands: left, right, and the bias.
    """

    left_transposed: bool
    right_transposed: bool
    has_bias: bool
    activation: Activation


class Convolution(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A convolution of NCHW data by OIHW weights, a bias each channel, and an activation.

    Operands: data, weights, and the bias.
    """

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    has_bias: bool
    activation: Activation


class Attention(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """softmax(scale · query keyᵀ + mask) value, over the last two axes.

    Operands: query, key, value, and the mask. The key is transposed where it was given so.
    """

    scale: float
    has_mask: bool
    key_transposed: bool


class LayerNorm(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Layer normalisation over the last axes. Operands: data, gamma, beta."""

    num_axes: int
    epsilon: float


class Softmax(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Softmax, or its logarithm, along one axis. Operand: data."""

    axis: int
    logarithm: bool


Call = Linear | Convolution | Attention | LayerNorm | Softmax


def encode_call(call: Call) -> str:
    """Return the call as text, to pass to a packed function."""
    return msgspec.json.encode(call, order="sorted").decode()


def decode_call(text: str) -> Call:
    """Read what `encode_call` wrote."""
    call: Call = msgspec.json.decode(text, type=Call)
    return call


def input_name(index: int) -> str:
    """Return the name of a parameter of a function in an ONNX graph."""
    return f"in{index}"


def output_name(index: int) -> str:
    """Return the name of a result of a function in an ONNX graph."""
    return f"out{index}"
