"""Relax operators as torch runs them: each call of a program becomes one call of torch.

The table says, for every operator that stages are made of, which function of torch it is, as it stands:
nothing is fused, and no data are laid out anew. What neither the table nor `tuner.graph.torch_call` knows is
refused by name. Checked in tests/tuner/programs/test_torch_machine.py, and by every test that evaluates
stages and shards in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from tuner.errors import UnsupportedOperatorError

Operator: TypeAlias = Callable[..., Any]
"""Takes a call's operands, tensors or whole numbers, and returns a tensor or a tuple of them."""

_SAME_NAME = (
    *("abs", "add", "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "cos"),
    *("divide", "erf", "exp", "floor", "floor_divide", "greater", "greater_equal", "isfinite", "isinf"),
    *("isnan", "less", "less_equal", "log", "logical_and", "logical_not", "logical_or", "logical_xor"),
    *("matmul", "maximum", "minimum", "multiply", "negative", "not_equal", "ones_like", "round", "rsqrt"),
    *("sigmoid", "sign", "sin", "sqrt", "square", "subtract", "tanh", "trunc", "where", "zeros_like"),
)

_PLAIN: dict[str, Operator] = {name: getattr(torch, name) for name in _SAME_NAME} | {
    "equal": torch.eq,
    "floor_mod": torch.remainder,
    "nn.gelu": functional.gelu,
    "nn.gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "nn.relu": torch.relu,
    "nn.silu": functional.silu,
    "power": torch.pow,
}

_REDUCTIONS: dict[str, Operator] = {
    "max": torch.amax,
    "mean": torch.mean,
    "min": torch.amin,
    "sum": torch.sum,
    "variance": functools.partial(torch.var, correction=0),
}


def torch_operator(name: str, attributes: Any) -> Operator:
    """Return the function of torch that an operator is, with its attributes bound.

    Args:
        name: without `relax.`.
        attributes: of the call.

    Raises:
        UnsupportedOperatorError: there is none.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _REDUCTIONS:
        return functools.partial(_reduce, _REDUCTIONS[name], _axes(attributes), bool(attributes.keepdims))
    if name in _OTHERS:
        return functools.partial(_OTHERS[name], attributes)
    raise UnsupportedOperatorError(
        f"operator {name} has no counterpart in torch here; run the plan without --stages torch"
    )


def _axes(attributes: Any) -> tuple[int, ...] | None:
    return None if attributes.axis is None else tuple(int(axis) for axis in attributes.axis)


def _reduce(operator: Operator, axes: Sequence[int] | None, keeps: bool, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = operator(
        x, dim=tuple(range(x.ndim)) if axes is None else tuple(axes), keepdim=keeps
    )
    return found


def _permute(attributes: Any, x: torch.Tensor) -> torch.Tensor:
    axes = attributes.axes
    return x.permute(*(range(x.ndim)[::-1] if axes is None else [int(axis) for axis in axes]))


def _collapse(_: Any, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    lead = x.ndim - len(shape)
    axes = [
        *range(lead),
        *(lead + at for at, extent in enumerate(shape) if extent == 1 and x.shape[lead + at] > 1),
    ]
    return (x.sum(dim=axes) if axes else x).reshape(tuple(shape))


def _take(attributes: Any, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis = 0 if attributes.axis is None else int(attributes.axis) % x.ndim
    if attributes.mode == "clip":
        indices = indices.clamp(0, x.shape[axis] - 1)
    taken = torch.index_select(x, axis, indices.reshape(-1))
    return taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _take_backward(
    attributes: Any, gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    axis = 0 if attributes.axis is None else int(attributes.axis) % x.ndim
    rows = gradient.reshape((*x.shape[:axis], indices.numel(), *x.shape[axis + 1 :]))
    return torch.zeros_like(x).index_add(axis, indices.reshape(-1), rows)


def _split(attributes: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    axis, sections = int(attributes.axis), attributes.indices_or_sections
    if isinstance(sections, int) or not hasattr(sections, "__len__"):
        return torch.tensor_split(x, int(sections), dim=axis)
    return torch.tensor_split(x, [int(index) for index in sections], dim=axis)


def _strided_slice(
    _: Any,
    x: torch.Tensor,
    axes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None = None,
) -> torch.Tensor:
    index = [slice(None)] * x.ndim
    for axis, first, stop, step in zip(axes, begin, end, strides or (1,) * len(axes), strict=True):
        if int(step) < 0:
            raise UnsupportedOperatorError(
                f"operator strided_slice with step {step} has no counterpart in torch; run the plan "
                "without --stages torch"
            )
        index[int(axis)] = slice(int(first), int(stop), int(step))
    return x[tuple(index)]


def _expand_dims(attributes: Any, x: torch.Tensor) -> torch.Tensor:
    ndim = x.ndim + len(attributes.axis)
    for axis in sorted(int(axis) % ndim for axis in attributes.axis):
        x = x.unsqueeze(axis)
    return x


def _squeeze(attributes: Any, x: torch.Tensor) -> torch.Tensor:
    axes = _axes(attributes)
    return x.squeeze() if axes is None else x.squeeze(axes)


def _nll_loss(attributes: Any, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(
        values,
        labels.long(),
        reduction=str(attributes.reduction),
        ignore_index=int(attributes.ignore_index),
    )


def _nll_loss_backward(
    attributes: Any, gradient: torch.Tensor, values: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    with torch.enable_grad():
        leaf = values.detach().requires_grad_()
        (found,) = torch.autograd.grad(_nll_loss(attributes, leaf, labels), leaf, gradient)
    return found


def _attention(
    attributes: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    scale = None if attributes.scale is None else float(attributes.scale)
    mixed = functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=bias, scale=scale
    )
    return mixed.transpose(1, 2)


def _layer_norm(attributes: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, tuple(scale.shape), scale, shift, float(attributes.epsilon))


def _pad(attributes: Any, x: torch.Tensor) -> torch.Tensor:
    if str(attributes.pad_mode) != "constant":
        raise UnsupportedOperatorError(
            f"padding of mode {attributes.pad_mode} has no counterpart in torch here; run the plan without "
            "--stages torch"
        )
    widths = [
        int(attributes.pad_width[2 * axis + side]) for axis in reversed(range(x.ndim)) for side in (0, 1)
    ]
    return functional.pad(x, widths, value=float(attributes.pad_value))


def _one_hot(attributes: Any, indices: torch.Tensor, on: float, off: float) -> torch.Tensor:
    depth = torch.arange(int(attributes.depth), device=indices.device)
    return torch.where(indices[..., None] == depth, on, off)


def _convolution(attributes: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if str(attributes.data_layout) != "NCHW" or str(attributes.kernel_layout) != "OIHW":
        raise UnsupportedOperatorError(
            f"a convolution of {attributes.data_layout} by {attributes.kernel_layout} has no counterpart "
            "in torch here; run the plan without --stages torch"
        )
    top, left, bottom, right = (int(extent) for extent in attributes.padding)
    if (top, left) != (bottom, right):
        x, top, left = functional.pad(x, (left, right, top, bottom)), 0, 0
    return functional.conv2d(
        x,
        weight,
        stride=tuple(map(int, attributes.strides)),
        padding=(top, left),
        dilation=tuple(map(int, attributes.dilation)),
        groups=int(attributes.groups),
    )


def _dtype(attributes: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, str(attributes.dtype))
    return found


_OTHERS: dict[str, Operator] = {
    "argmax": lambda attributes, x: x.argmax(attributes.axis, keepdim=bool(attributes.keepdims)),
    "argmin": lambda attributes, x: x.argmin(attributes.axis, keepdim=bool(attributes.keepdims)),
    "astype": lambda attributes, x: x.to(_dtype(attributes)),
    "broadcast_to": lambda _, x, shape: x.expand(tuple(shape)),
    "clip": lambda _, x, low, high: functional.hardtanh(x, float(low), float(high)),  # as is its gradient
    "collapse_sum_to": _collapse,
    "concat": lambda attributes, fields: torch.cat(fields, dim=int(attributes.axis or 0)),
    "cumsum": lambda attributes, x: x.cumsum(int(attributes.axis)),
    "expand_dims": _expand_dims,
    "flip": lambda attributes, x: x.flip(int(attributes.axis)),
    "full_like": lambda _, x, value: torch.full_like(x, float(value)),
    "gather_elements": lambda attributes, x, indices: torch.gather(x, int(attributes.axis), indices.long()),
    "grad.nll_loss_backward": _nll_loss_backward,
    "grad.no_grad": lambda _, x: x.detach(),
    "grad.take_backward": _take_backward,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "nn.conv2d": _convolution,
    "nn.layer_norm": _layer_norm,
    "nn.leakyrelu": lambda attributes, x: functional.leaky_relu(x, float(attributes.alpha)),
    "nn.log_softmax": lambda attributes, x: torch.log_softmax(x, int(attributes.axis)),
    "nn.nll_loss": _nll_loss,
    "nn.pad": _pad,
    "nn.rms_norm": lambda attributes, x, scale: functional.rms_norm(
        x, tuple(scale.shape), scale, float(attributes.epsilon)
    ),
    "nn.softmax": lambda attributes, x: torch.softmax(x, int(attributes.axis)),
    "nn.softplus": lambda attributes, x: functional.softplus(
        x, float(attributes.beta), float(attributes.threshold)
    ),
    "one_hot": _one_hot,
    "permute_dims": _permute,
    "reshape": lambda _, x, shape: x.reshape(tuple(shape)),
    "split": _split,
    "squeeze": _squeeze,
    "stack": lambda attributes, fields: torch.stack(fields, dim=int(attributes.axis or 0)),
    "strided_slice": _strided_slice,
    "take": _take,
    "tril": lambda _, x, k=0: torch.tril(x, int(k)),
    "triu": lambda _, x, k=0: torch.triu(x, int(k)),
}
