"""Normalisations that Relax has as one operator, with ones and zeros where they have no scale and shift.

Checked against torch in tests/tuner/frontend/converters/test_layers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, dtype_of, rank_of, shape_of


def _layer_norm(call: Call) -> Expr:
    x, shape = call["input"], call["normalized_shape"]
    scale, shift = _affine(call, x, shape)
    axes = list(range(-len(shape), 0))
    return call.emit(relax.op.nn.layer_norm(x, scale, shift, axes=axes, epsilon=call["eps"]))


def _native_layer_norm(call: Call) -> list[Expr | None]:
    """Emit the normalised tensor; what only a backward reads is left out."""
    return [_layer_norm(call), None, None]


def _group_norm(call: Call) -> Expr:
    x = call["input"]
    groups = call["num_groups"] if "num_groups" in call.names else call["group"]
    scale, shift = _affine(call, x, shape_of(x)[1:2])
    axes = list(range(2, rank_of(x)))
    if not axes:  # a group's channels alone
        wide = call.reshaped(x, [*shape_of(x), 1])
        return call.reshaped(_grouped(call, wide, scale, shift, groups, [2]), shape_of(x))
    return _grouped(call, x, scale, shift, groups, axes)


def _grouped(call: Call, x: Expr, scale: Expr, shift: Expr, groups: int, axes: Sequence[int]) -> Expr:
    return call.emit(
        relax.op.nn.group_norm(
            x, scale, shift, num_groups=groups, channel_axis=1, axes=list(axes), epsilon=call["eps"]
        )
    )


def _native_group_norm(call: Call) -> list[Expr | None]:
    return [_group_norm(call), None, None]


def _batch_norm(call: Call) -> list[Expr | None]:
    """Emit the normalised tensor, by the running statistics.

    Raises:
        ValueError: it normalises by the batch's own statistics, and keeps them.
    """
    x = call["input"]
    scale, shift = _affine(call, x, shape_of(x)[1:2])
    found = call.emit(
        relax.op.nn.batch_norm(
            data=x,
            gamma=scale,
            beta=shift,
            moving_mean=call.cast(call["running_mean"], dtype_of(x)),
            moving_var=call.cast(call["running_var"], dtype_of(x)),
            axis=1,
            epsilon=call["eps"],
            momentum=call["momentum"],
            training=False,
        )
    )
    return [call.emit(relax.TupleGetItem(found, 0)), None, None]


def _by_batch(call: Call) -> list[Expr | None]:
    """Emit a normalisation over the batch and all places, which is how torch exports one by instance."""
    x = call["input"]
    scale, shift = _affine(call, x, shape_of(x)[1:2])
    axes = [0, *range(2, rank_of(x))]
    normalised = relax.op.nn.instance_norm(x, scale, shift, channel_axis=1, axes=axes, epsilon=call["eps"])
    return [call.emit(normalised), None, None]


def _affine(call: Call, x: Expr, shape: Sequence[int]) -> tuple[Expr, Expr]:
    """Return scale and shift of a normalisation, ones and zeros where it has none."""
    dtype = dtype_of(x)
    scale = call["weight"] if call.has("weight") else relax.const(np.ones(tuple(shape)), dtype)
    shift = call["bias"] if call.has("bias") else relax.const(np.zeros(tuple(shape)), dtype)
    return call.cast(scale, dtype), call.cast(shift, dtype)


NORMALIZATION: Mapping[str, Converter] = {
    "layer_norm.default": _layer_norm,
    "native_layer_norm.default": _native_layer_norm,
    "group_norm.default": _group_norm,
    "native_group_norm.default": _native_group_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "_native_batch_norm_legit.no_stats": _by_batch,
}
"""Converter by name of operator and overload."""
