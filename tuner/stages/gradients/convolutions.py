"""Gradients of convolutions and pools that TVM has none for.

One in one dimension is one in two over a single row, whose gradient is TVM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from tuner.stages.gradients.rule import shape_of
from tuner.stages.program import Expr, Var, operator_name

_ROW = 2
"""Axis that is put in: behind the channels, in data and weights alike."""


def conv2d_gradient(result: Var, call: Any, gradient: Expr, builder: Any) -> Sequence[Expr]:
    """Give the gradients of data and weight by TVM's rule, but that of data where windows skip elements.

    TVM's rule takes weights for adjacent when it finds how many elements behind the last window got nothing.
    """
    rule = tvm.ir.Op.get("relax.nn.conv2d").get_attr("FPrimalGradient")
    of_data, of_weight = rule(result, call, gradient, builder)
    attributes = call.attrs
    strides, padding, dilation = (
        tuple(map(int, each)) for each in (attributes.strides, attributes.padding, attributes.dilation)
    )
    if dilation == (1, 1):
        return of_data, of_weight
    value, weight = call.args
    extents, kernel, counts = shape_of(value)[2:], shape_of(weight)[2:], shape_of(result)[2:]
    reached = [
        (counts[axis] - 1) * strides[axis]
        - padding[axis]
        - padding[axis + 2]
        + (kernel[axis] - 1) * dilation[axis]
        + 1
        for axis in range(2)
    ]
    of_data = op.nn.conv2d_transpose(
        gradient,
        weight,
        strides=strides,
        padding=padding,
        output_padding=[extent - end for extent, end in zip(extents, reached, strict=True)],
        dilation=dilation,
        groups=int(attributes.groups),
    )
    return of_data, of_weight


def conv1d_gradient(call: Any, gradient: Expr, builder: Any) -> Sequence[Expr] | None:
    """Give the gradients of data and weight; None where these are laid out in another way than torch's."""
    attributes = call.attrs
    if (str(attributes.data_layout), str(attributes.kernel_layout)) != ("NCW", "OIW"):
        return None
    before, after = (int(extent) for extent in attributes.padding)
    rows = builder.emit(
        op.nn.conv2d(
            *(builder.emit(op.expand_dims(each, _ROW)) for each in call.args),
            strides=(1, int(attributes.strides[0])),
            padding=(0, before, 0, after),
            dilation=(1, int(attributes.dilation[0])),
            groups=int(attributes.groups),
        )
    )
    arriving = builder.emit(op.expand_dims(gradient, _ROW))
    parts = conv2d_gradient(rows, builder.lookup_binding(rows), arriving, builder)
    return tuple(op.squeeze(builder.emit(part), [_ROW]) for part in parts)


def transposed_gradient(call: Any, gradient: Expr, builder: Any) -> Sequence[Expr] | None:
    """Give the gradients of a transposed convolution in one or two dimensions; None for other layouts.

    It is the adjoint of a convolution C by the same weight, ⟨dy, Cᵀ x⟩ = ⟨C dy, x⟩: so dx = C dy, and dW is
    that of the convolution of dy, where x arrives for its result.
    """
    attributes = call.attrs
    name = operator_name(call)
    is_flat = name == "nn.conv1d_transpose"
    layouts = ("NCW", "IOW") if is_flat else ("NCHW", "IOHW")
    if (str(attributes.data_layout), str(attributes.kernel_layout)) != layouts:
        return None
    strides, padding, dilation = (
        tuple(map(int, each)) for each in (attributes.strides, attributes.padding, attributes.dilation)
    )
    value, weight = call.args
    if is_flat:
        value, weight, gradient = (
            builder.emit(op.expand_dims(each, _ROW)) for each in (value, weight, gradient)
        )
        strides, padding, dilation = (1, *strides), (0, padding[0], 0, padding[1]), (1, *dilation)
    convolved = builder.emit(
        op.nn.conv2d(
            gradient,
            weight,
            strides=strides,
            padding=padding,
            dilation=dilation,
            groups=int(attributes.groups),
        )
    )
    rule = tvm.ir.Op.get("relax.nn.conv2d").get_attr("FPrimalGradient")
    _, of_weight = rule(convolved, builder.lookup_binding(convolved), value, builder)
    if is_flat:
        return op.squeeze(convolved, [_ROW]), op.squeeze(builder.emit(of_weight), [_ROW])
    return convolved, of_weight


def pool1d_gradient(call: Any, gradient: Expr, builder: Any) -> Sequence[Expr] | None:
    """Give the gradient of a pool's data; None where it is laid out in another way than torch's."""
    attributes = call.attrs
    if str(attributes.layout) != "NCW":
        return None
    name = operator_name(call).replace("1d", "2d")
    before, after = (int(extent) for extent in attributes.padding)
    rows = builder.emit(
        getattr(op.nn, name.removeprefix("nn."))(
            builder.emit(op.expand_dims(call.args[0], _ROW)),
            pool_size=(1, int(attributes.pool_size[0])),
            strides=(1, int(attributes.strides[0])),
            padding=(0, before, 0, after),
            dilation=(1, int(attributes.dilation[0])),
            ceil_mode=bool(attributes.ceil_mode),
            count_include_pad=bool(attributes.count_include_pad),
        )
    )
    rule = tvm.ir.Op.get(f"relax.{name}").get_attr("FPrimalGradient")
    pooled = builder.lookup_binding(rows)
    of_rows = whole_window_shares(rows, pooled, builder.emit(op.expand_dims(gradient, _ROW)), builder)
    (part,) = rule(rows, pooled, of_rows, builder)
    return (op.squeeze(builder.emit(part), [_ROW]),)


def whole_window_shares(result: Var, call: Any, gradient: Expr, builder: Any) -> Expr:
    """Give the gradient of an average pool's result for TVM's rule, which divides it by whole windows.

    Where padding counts, the forward divides by what of a window lies within the padded image, and a window
    that `ceil_mode` lets end behind that is cut: its gradient is larger by the whole over the part.
    """
    attributes = call.attrs
    if operator_name(call) != "nn.avg_pool2d":
        return gradient
    if not attributes.ceil_mode or not attributes.count_include_pad:
        return gradient
    place = str(attributes.layout).index("H")
    extents, counts = (shape_of(image)[place : place + 2] for image in (call.args[0], result))
    top, left, bottom, right = (int(extent) for extent in attributes.padding)
    ratios = []
    for axis, (before, after) in enumerate(((top, bottom), (left, right))):
        window, stride = int(attributes.pool_size[axis]), int(attributes.strides[axis])
        starts = np.arange(counts[axis]) * stride - before
        ratios.append(window / (np.minimum(starts + window, extents[axis] + after) - starts))
    scale = np.outer(*ratios).reshape(*counts, *[1] * (len(shape_of(result)) - place - 2))
    if (scale == 1).all():
        return gradient
    return builder.emit(op.multiply(gradient, relax.const(scale, str(result.ty.dtype.dtype))))
