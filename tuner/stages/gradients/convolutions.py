"""Gradients of convolutions that TVM has none for.

A convolution in one dimension is one in two over a single row, whose gradient is TVM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.relax import op

from tuner.stages.program import Expr

_ROW = 2
"""Axis that is put in: behind the channels, in data and weights alike."""


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
    rule = tvm.ir.Op.get("relax.nn.conv2d").get_attr("FPrimalGradient")
    parts = rule(rows, builder.lookup_binding(rows), builder.emit(op.expand_dims(gradient, _ROW)), builder)
    return tuple(op.squeeze(builder.emit(part), [_ROW]) for part in parts)
