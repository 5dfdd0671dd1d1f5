"""Gradients of normalisations: over a layer, its root mean square, a batch, or groups of channels.

All share one derivation. With x̂ = (x - μ) / σ over some axes and g = dy γ,

    dx = (g - mean(g) - x̂ mean(g x̂)) / σ

and without centring, the first mean falls away. The statistics are computed again from the input: that is
cheaper than keeping x̂ as well as x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tuner.stages.gradients.rule import Gradient, Parts, constant_like, shape_of
from tuner.stages.program import Expr, Var

op = relax.op


def _layer_norm(result: Var, call: Any, gradient: Expr) -> Parts:
    """Ba, Kiros and Hinton 2016."""
    value, gamma, beta = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    normalized, inverse = _normalized(value, axes, _epsilon(call), centered=True)
    return (
        _through(op.multiply(gradient, gamma), normalized, inverse, axes, centered=True),
        _sum_leading(op.multiply(gradient, normalized), gamma),
        _sum_leading(gradient, beta),
    )


def _rms_norm(result: Var, call: Any, gradient: Expr) -> Parts:
    """Zhang and Sennrich 2019."""
    value, gamma = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    normalized, inverse = _normalized(value, axes, _epsilon(call), centered=False)
    value_gradient = _through(op.multiply(gradient, gamma), normalized, inverse, axes, centered=False)
    return value_gradient, _sum_leading(op.multiply(gradient, normalized), gamma)


def _batch_norm(result: Var, call: Any, gradient: Expr) -> Parts:
    """Ioffe and Szegedy 2015, algorithm 1; with fixed statistics the operator is linear in its input.

    The result is a tuple of the output and the running statistics, which get no gradient.
    """
    value, gamma, _, moving_mean, moving_variance = call.args
    axis = int(call.attrs.axis) % len(value.ty.shape)
    others = [index for index in range(len(value.ty.shape)) if index != axis]
    output_gradient = gradient.fields[0]
    along = [extent if index == axis else 1 for index, extent in enumerate(shape_of(value))]
    epsilon = _epsilon(call)
    if call.attrs.training:
        normalized, inverse = _normalized(value, others, epsilon, centered=True)
    else:
        spread = op.add(op.reshape(moving_variance, along), epsilon)
        inverse = op.rsqrt(spread)
        normalized = op.multiply(op.subtract(value, op.reshape(moving_mean, along)), inverse)
    scaled = op.multiply(output_gradient, op.reshape(gamma, along)) if call.attrs.scale else output_gradient
    value_gradient = (
        _through(scaled, normalized, inverse, others, centered=True)
        if call.attrs.training
        else op.multiply(scaled, inverse)
    )
    gamma_gradient = op.sum(op.multiply(output_gradient, normalized), others) if call.attrs.scale else None
    beta_gradient = op.sum(output_gradient, others) if call.attrs.center else None
    return value_gradient, gamma_gradient, beta_gradient, None, None


def _group_norm(result: Var, call: Any, gradient: Expr) -> Parts:
    """Wu and He 2018: channels in groups, each normalised over its channels and the axes given."""
    value, gamma, _ = call.args
    shape = shape_of(value)
    channel = int(call.attrs.channel_axis) % len(shape)
    num_groups = int(call.attrs.num_groups)
    reduced = {int(axis) % len(shape) for axis in call.attrs.axes}
    grouped = (*shape[:channel], num_groups, shape[channel] // num_groups, *shape[channel + 1 :])
    axes = sorted({channel + 1} | {axis + 1 if axis > channel else axis for axis in reduced - {channel}})
    along = [extent if index == channel else 1 for index, extent in enumerate(shape)]
    others = [index for index in range(len(shape)) if index != channel]
    split, inverse = _normalized(op.reshape(value, grouped), axes, _epsilon(call), centered=True)
    scaled = op.multiply(gradient, op.reshape(gamma, along)) if call.attrs.scale else gradient
    value_gradient = op.reshape(
        _through(op.reshape(scaled, grouped), split, inverse, axes, centered=True), shape
    )
    normalized = op.reshape(split, shape)
    gamma_gradient = op.sum(op.multiply(gradient, normalized), others) if call.attrs.scale else None
    beta_gradient = op.sum(gradient, others) if call.attrs.center else None
    return value_gradient, gamma_gradient, beta_gradient


def _instance_norm(result: Var, call: Any, gradient: Expr) -> Parts:
    """Ulyanov, Vedaldi and Lempitsky 2016: each channel of each example over the axes given."""
    value, gamma, _ = call.args
    rank = len(value.ty.shape)
    channel = int(call.attrs.channel_axis) % rank
    axes = [int(axis) % rank for axis in call.attrs.axes]
    along = [extent if index == channel else 1 for index, extent in enumerate(shape_of(value))]
    others = [index for index in range(rank) if index != channel]
    normalized, inverse = _normalized(value, axes, _epsilon(call), centered=True)
    scaled = op.multiply(gradient, op.reshape(gamma, along)) if call.attrs.scale else gradient
    return (
        _through(scaled, normalized, inverse, axes, centered=True),
        op.sum(op.multiply(gradient, normalized), others) if call.attrs.scale else None,
        op.sum(gradient, others) if call.attrs.center else None,
    )


def _epsilon(call: Any) -> Expr:
    return constant_like(call.args[0], float(call.attrs.epsilon))


def _normalized(value: Expr, axes: Sequence[int], epsilon: Expr, *, centered: bool) -> tuple[Expr, Expr]:
    """Give x̂ and 1 / σ; without centring, σ is the root mean square."""
    shifted = op.subtract(value, op.mean(value, axes, keepdims=True)) if centered else value
    power = op.mean(op.multiply(shifted, shifted), axes, keepdims=True)
    inverse = op.rsqrt(op.add(power, epsilon))
    return op.multiply(shifted, inverse), inverse


def _through(scaled: Expr, normalized: Expr, inverse: Expr, axes: Sequence[int], *, centered: bool) -> Expr:
    """Give the gradient of x from g = dy γ."""
    projected = op.multiply(normalized, op.mean(op.multiply(scaled, normalized), axes, keepdims=True))
    remainder = op.subtract(scaled, op.mean(scaled, axes, keepdims=True)) if centered else scaled
    return op.multiply(inverse, op.subtract(remainder, projected))


def _sum_leading(gradient: Expr, parameter: Expr) -> Expr:
    """Sum over the leading axes that a parameter was broadcast along."""
    return op.collapse_sum_to(gradient, parameter.ty.shape)


NORMALIZATION: Mapping[str, Gradient] = {
    "nn.batch_norm": _batch_norm,
    "nn.group_norm": _group_norm,
    "nn.instance_norm": _instance_norm,
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
}
