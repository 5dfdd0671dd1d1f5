"""What torch computes for a compiled module: one packed function, told by its first argument which call.

Tensors cross as views of one memory (DLPack), and results are written in place where torch has a way to. Only
`tuner.backends.torch_library` imports this module, and only where torch is installed. Checked in
tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack
import tvm

from tuner.backends.library_call import (
    Attention,
    Convolution,
    LayerNorm,
    Linear,
    Softmax,
    decode_call,
)

PACKED_NAME = "tessel.torch.call"

_IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": functools.partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": functools.partial(torch.nn.functional.silu, inplace=True),
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
}

_decoded = functools.lru_cache(maxsize=4096)(decode_call)


@tvm.register_global_func(PACKED_NAME, override=True)
def run_call(text: Any, *tensors: Any) -> None:
    """Run a call on operands; the last tensor receives the result."""
    call = _decoded(str(text))
    *operands, result = (torch.utils.dlpack.from_dlpack(tensor) for tensor in tensors)
    with torch.inference_mode():
        _RUN[type(call)](call, result, *operands)


def _run_linear(
    call: Linear,
    result: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    left = left.mT if call.left_transposed else left
    right = right.mT if call.right_transposed else right
    if right.ndim == 2 and left.is_contiguous():
        left, rows = left.flatten(0, -2), result.flatten(0, -2)
    else:
        rows = result
    if bias is not None and rows.ndim == 2:
        torch.addmm(bias.flatten(), left, right, out=rows)
    else:
        torch.matmul(left, right, out=rows)
        if bias is not None:
            rows.add_(bias)
    _activate(call.activation, rows)


def _run_convolution(
    call: Convolution,
    result: torch.Tensor,
    data: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    computed = torch.nn.functional.conv2d(
        data,
        weight,
        None if bias is None else bias.flatten(),
        stride=call.strides,
        padding=call.padding,
        dilation=call.dilation,
        groups=call.groups,
    )
    if call.activation == "relu":
        torch.clamp_min(computed, 0, out=result)
    else:
        _activate(call.activation, computed)
        result.copy_(computed)


def _run_attention(
    call: Attention,
    result: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> None:
    # A key that was not transposed has its features before its positions; torch wants them after.
    key = key if call.key_transposed else key.mT
    result.copy_(
        torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=call.scale)
    )


def _run_layer_norm(
    call: LayerNorm, result: torch.Tensor, data: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor
) -> None:
    shape = data.shape[-call.num_axes :]
    result.copy_(torch.nn.functional.layer_norm(data, shape, gamma, beta, call.epsilon))


def _run_softmax(call: Softmax, result: torch.Tensor, data: torch.Tensor) -> None:
    function = torch.log_softmax if call.logarithm else torch.softmax
    function(data, call.axis, out=result)


def _activate(activation: str, values: torch.Tensor) -> None:
    if activation:
        _IN_PLACE[activation](values)


_RUN: dict[type, Callable[..., None]] = {
    Linear: _run_linear,
    Convolution: _run_convolution,
    Attention: _run_attention,
    LayerNorm: _run_layer_norm,
    Softmax: _run_softmax,
}
