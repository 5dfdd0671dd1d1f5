"""Calls of torch from a compiled module: one packed function that dispatches on its first argument.

Tensors cross as views of one memory (DLPack), and results are written in place where torch has a way to. Only
`tuner.backends.torch.library` imports this module, and only where torch is installed. Checked in
tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import tvm_ffi
from msgspec.structs import replace

from tuner.runtime.library_calls import Attention, Convolution, LayerNorm, Linear, Softmax, decode_call
from tuner.runtime.torch_views import view_of

PACKED_NAME = "tessel.torch.call"

_NUM_TRIALS = 3
"""Runs of each way when weights are bound; the least counts."""

_FUSED: dict[str, tuple[str, str]] = {
    "": ("none", ""),
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "sigmoid": ("sigmoid", ""),
    "tanh": ("tanh", ""),
}
"""What oneDNN calls an activation that follows a product or a convolution, and how it computes it."""

_Way: TypeAlias = Callable[[torch.Tensor, torch.Tensor], object]
"""One way to make a call with its weights bound; it takes the data and the result to write."""

_IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": functools.partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": functools.partial(torch.nn.functional.silu, inplace=True),
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
}

_decoded = functools.lru_cache(maxsize=4096)(decode_call)


@tvm_ffi.register_global_func(PACKED_NAME, override=True)
def run_call(text: Any, *tensors: Any) -> None:
    """Run a call on operands; the last tensor receives the result."""
    call = _decoded(str(text))
    *operands, result = (view_of(tensor) for tensor in tensors)
    with torch.inference_mode():
        _RUN[type(call)](call, result, *operands)


class PackedCall:
    """A call whose weights are bound: the fastest of the ways there are, on data of the shape it is for."""

    def __init__(
        self,
        call: Linear | Convolution,
        shape: Sequence[int],
        weights: Sequence[torch.Tensor],
        way: int | None = None,
    ) -> None:
        with torch.inference_mode():
            data = torch.rand(tuple(shape)).to(weights[0].dtype)
            result = _result_for(call, data, weights[0])
            ways = (
                _linear_ways(call, data, *weights)
                if isinstance(call, Linear)
                else _convolution_ways(call, data, *weights)
            )
            if way is None:
                way = _fastest([functools.partial(each, data, result) for each in ways])
            self.way = way
            self.run: _Way = ways[way]


def pack_weights(text: Any, shape: Any, *weights: Any, way: int | None = None) -> PackedCall:
    """Return a call with its weights bound, for data of a shape, made in one way or in the fastest.

    It keeps copies: the weights may lie in memory that the program that binds them uses again.
    """
    call = _decoded(str(text))
    if not isinstance(call, Linear | Convolution):
        raise TypeError(f"{type(call).__name__} has no weights to pack")
    tensors = [view_of(weight).clone() for weight in weights]
    return PackedCall(call, [int(extent) for extent in shape], tensors, way)


tvm_ffi.register_global_func("tessel.torch.pack", pack_weights, override=True)


@tvm_ffi.register_global_func("tessel.torch.call_packed", override=True)
def run_packed(call: PackedCall, data: Any, result: Any) -> None:
    """Run a call with bound weights; the last tensor receives the result."""
    with torch.inference_mode():
        call.run(view_of(data), view_of(result))


def _linear_ways(
    call: Linear, data: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> list[_Way]:
    """Return torch's own product, with the matrix as it lies and turned, and oneDNN's where it packs."""
    attribute, algorithm = _FUSED[call.activation]
    turned_call = replace(call, right_transposed=not call.right_transposed)
    turned = right.mT.contiguous()
    outputs_first = right if call.right_transposed else turned
    ways: list[_Way] = [
        lambda data, result: _run_linear(call, result, data, right, bias),
        lambda data, result: _run_linear(turned_call, result, data, turned, bias),
    ]
    if not _onednn_packs(right.dtype):
        return ways
    rows = data.numel() // data.shape[-1]
    packed = torch.ops.mkldnn._reorder_linear_weight(outputs_first, rows)
    flat_bias = None if bias is None else bias.flatten()

    def run_packed_product(data: torch.Tensor, result: torch.Tensor) -> None:
        found = torch.ops.mkldnn._linear_pointwise(data, packed, flat_bias, attribute, [], algorithm)
        result.copy_(found)

    return [*ways, run_packed_product]


def _convolution_ways(
    call: Convolution, data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> list[_Way]:
    """Return torch's own convolution, and oneDNN's, where it packs, channels first or last inside."""
    attribute, algorithm = _FUSED[call.activation]
    flat_bias = None if bias is None else bias.flatten()
    geometry = (list(call.padding), list(call.strides), list(call.dilation), call.groups)

    def packed_way(layout: torch.memory_format) -> _Way:
        packed = torch.ops.mkldnn._reorder_convolution_weight(
            weight.contiguous(memory_format=layout), *geometry, list(data.shape)
        )

        def run(data: torch.Tensor, result: torch.Tensor) -> None:
            found = torch.ops.mkldnn._convolution_pointwise(
                data.contiguous(memory_format=layout), packed, flat_bias, *geometry, attribute, [], algorithm
            )
            result.copy_(found)

        return run

    def run_plainly(data: torch.Tensor, result: torch.Tensor) -> None:
        _run_convolution(call, result, data, weight, bias)

    if not _onednn_packs(weight.dtype):
        return [run_plainly]
    return [run_plainly, packed_way(torch.contiguous_format), packed_way(torch.channels_last)]


def _onednn_packs(dtype: torch.dtype) -> bool:
    """Say whether oneDNN packs weights of a type here; AVX2 alone is enough for float32 alone."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True


def _result_for(call: Linear | Convolution, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return memory of the shape of a call's result."""
    if isinstance(call, Linear):
        extents = (*data.shape[:-1], weight.shape[-2 if call.right_transposed else -1])
        return torch.empty(extents, dtype=data.dtype)
    return torch.empty_like(
        torch.nn.functional.conv2d(data, weight, None, call.strides, call.padding, call.dilation, call.groups)
    )


def _fastest(runs: Sequence[Callable[[], object]]) -> int:
    """Return which takes least time; they take turns, and each has a run that does not count.

    With one thread it is processor time: what other programs take meanwhile affects them unequally.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    least_s = [math.inf] * len(runs)
    for trial in range(1 + _NUM_TRIALS):
        for index, run in enumerate(runs):
            started = clock()
            run()
            if trial > 0:
                least_s[index] = min(least_s[index], clock() - started)
    return least_s.index(min(least_s))


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
    if mask is not None and mask.dtype != query.dtype:
        mask = mask.to(query.dtype)
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
