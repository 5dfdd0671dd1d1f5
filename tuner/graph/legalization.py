"""Operators as kernels: TVM's legalisation, with ours where TVM's is wrong.

Every lowering takes the pass from here. Checked in tests/tuner/graph/test_legalization.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tvm import relax, te, tirx, topi

_Legalization = Callable[[Any, Any], Any]
"""Takes a block builder and a call of an operator; returns the expression that stands for it."""


def legalize_operators() -> Any:
    """Return the pass that turns each operator into a call of a kernel."""
    return relax.transform.LegalizeOps(dict(_OWN))


def _nll_loss(builder: Any, call: Any) -> Any:
    """Read nothing outside by a label, one that is to be ignored among them; TVM reads at its number."""
    ignored, reduction = int(call.attrs.ignore_index), str(call.attrs.reduction)

    def loss(predictions: Any, labels: Any, *weights: Any) -> Any:
        dtype, axis = predictions.dtype, _class_axis(predictions)
        counted = _counted(labels, weights, ignored, dtype)

        def term(*row: Any) -> Any:
            label = labels(*row)
            last = tirx.const(int(predictions.shape[axis]) - 1, labels.dtype)
            inside = tirx.max(tirx.min(label, last), tirx.const(0, labels.dtype))
            likelihood = predictions(*row[:axis], inside, *row[axis:])
            is_ignored = label == tirx.const(ignored, labels.dtype)
            return tirx.if_then_else(is_ignored, tirx.const(0, dtype), -likelihood * counted(*row))

        terms = te.compute(labels.shape, term, "terms")
        if reduction == "none" or (reduction == "sum" and not labels.ndim):
            return terms
        total = _sum(terms)
        return total if reduction == "sum" else topi.divide(total, _sum(counted))

    return builder.call_te(loss, *call.args, primfunc_name_hint="nll_loss")


def _nll_loss_backward(builder: Any, call: Any) -> Any:
    """Leave labels that are to be ignored out of the mean, and read no weight by them; TVM counts them."""
    ignored, reduction = int(call.attrs.ignore_index), str(call.attrs.reduction)

    def gradient(output: Any, predictions: Any, labels: Any, *weights: Any) -> Any:
        dtype, axis = predictions.dtype, _class_axis(predictions)
        counted = _counted(labels, weights, ignored, dtype)
        total = _sum(counted) if reduction == "mean" else None

        def entry(*place: Any) -> Any:
            row = (*place[:axis], *place[axis + 1 :])
            label = labels(*row)
            own = output(*row) if reduction == "none" else output()
            share = own if total is None else own / total()
            is_labelled = tirx.all(place[axis] == label, label != tirx.const(ignored, labels.dtype))
            return tirx.if_then_else(is_labelled, -counted(*row) * share, tirx.const(0, dtype))

        return te.compute(predictions.shape, entry, "prediction_gradient")

    return builder.call_te(gradient, *call.args, primfunc_name_hint="nll_loss_backward")


def _max_pool2d_backward(builder: Any, call: Any) -> Any:
    """Give windows to the last elements, too, where none ends; TVM reads beyond the last window for them."""
    attributes = call.attrs
    layout = str(attributes.layout)
    kernel, stride = ([int(each) for each in given] for given in (attributes.pool_size, attributes.strides))
    top, left, *ends = (int(each) for each in attributes.padding)
    if any(int(step) != 1 for step in attributes.dilation):
        return call

    def gradient(output: Any, data: Any) -> Any:
        missing = [0] * len(output.shape)
        for at, (name, begin) in enumerate((("H", top), ("W", left))):
            axis = layout.index(name)
            extent, count = int(data.shape[axis]) + begin, int(output.shape[axis])
            missing[axis] = max(0, (extent - 1) // stride[at] + 1 - count)
            ends[at] = max(ends[at], (count + missing[axis] - 1) * stride[at] + kernel[at] - extent)
        return topi.nn.pool_grad(
            topi.nn.pad(output, [0] * len(missing), missing) if any(missing) else output,
            data,
            kernel=kernel,
            stride=stride,
            padding=[top, left, *ends],
            pool_type="max",
            layout=layout,
        )

    return builder.call_te(gradient, *call.args, primfunc_name_hint="max_pool2d_backward")


def _cosh(builder: Any, call: Any) -> Any:
    """Return the mean of two exponentials: TVM has a name for it, and no code of a CPU."""

    def cosh(x: Any) -> Any:
        return te.compute(x.shape, lambda *place: sum(_halves(x(*place))), "cosh")

    return builder.call_te(cosh, *call.args, primfunc_name_hint="cosh")


def _sinh(builder: Any, call: Any) -> Any:
    """Return half the difference of two exponentials, and where these are alike, its series."""

    def at(x: Any) -> Any:
        large, small = _halves(x)
        square, series = x * x, tirx.const(1, x.ty.dtype)
        for factor in _SINH_FACTORS:
            series = tirx.const(1, x.ty.dtype) + square * series / tirx.const(factor, x.ty.dtype)
        far = tirx.Select(x < tirx.const(0, x.ty.dtype), small - large, large - small)
        return tirx.Select(tirx.abs(x) < tirx.const(1, x.ty.dtype), x * series, far)

    def sinh(x: Any) -> Any:
        return te.compute(x.shape, lambda *place: at(x(*place)), "sinh")

    return builder.call_te(sinh, *call.args, primfunc_name_hint="sinh")


_SINH_FACTORS = (210, 156, 110, 72, 42, 20, 6)
"""Quotients of neighbouring coefficients of its series, the last first; what is left out is below 1e-17."""


def _halves(x: Any) -> tuple[Any, Any]:
    """Return half of exp(|x|), before that overflows, and half of exp(-|x|)."""
    large = tirx.exp(tirx.abs(x) - tirx.const(math.log(2), x.ty.dtype))
    return large, tirx.const(0.25, x.ty.dtype) / large


def _class_axis(predictions: Any) -> int:
    return 1 if predictions.ndim > 1 else 0


def _counted(labels: Any, weights: Any, ignored: int, dtype: str) -> Any:
    """Return the weight of each label's class, 1 without weights, and 0 for what is to be ignored."""

    def weight(*row: Any) -> Any:
        label = labels(*row)
        own = weights[0](label) if weights else tirx.const(1, dtype)
        return tirx.if_then_else(label == tirx.const(ignored, labels.dtype), tirx.const(0, dtype), own)

    return te.compute(labels.shape, weight, "counted")


def _sum(values: Any) -> Any:
    return topi.sum(values) if values.ndim else values


_OWN: Mapping[str, _Legalization] = MappingProxyType(
    {
        "relax.nn.nll_loss": _nll_loss,
        "relax.grad.nll_loss_backward": _nll_loss_backward,
        "relax.grad.max_pool2d_backward": _max_pool2d_backward,
        "relax.cosh": _cosh,
        "relax.sinh": _sinh,
    }
)
