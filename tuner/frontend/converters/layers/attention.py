"""Attention, written out in matrix products and a softmax as in the zoo, since TVM's has no gradient.

Checked against torch in tests/tuner/frontend/converters/test_layers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, constant, dtype_of, rank_of, shape_of

_MASKED = {"float16": -6e4}
"""Added to attention scores that must not count, by type; as in the zoo's attention where nothing stands."""


def _attention(call: Call) -> Expr:
    """Emit softmax(query · keyᵀ · scale + mask) · value, as torch defines its fused attention.

    Raises:
        ValueError: attention drops weights at random.
    """
    query, key, value = call["query"], call["key"], call["value"]
    if call["dropout_p"]:
        raise ValueError("attention has dropout")
    rank, dtype = rank_of(query), dtype_of(query)
    if call["enable_gqa"]:
        group = shape_of(query)[rank - 3] // shape_of(key)[rank - 3]
        if group > 1:
            key, value = (call.emit(relax.op.repeat(item, group, axis=rank - 3)) for item in (key, value))
    axes = [*range(rank_of(key) - 2), rank_of(key) - 1, rank_of(key) - 2]
    scores = call.emit(relax.op.matmul(query, call.emit(relax.op.permute_dims(key, axes))))
    scale = call["scale"] if call.has("scale") else shape_of(query)[-1] ** -0.5
    scores = call.emit(relax.op.multiply(scores, relax.const(scale, dtype)))
    if call["is_causal"]:
        mask = np.triu(np.full(shape_of(scores)[-2:], _masked(dtype)), k=1)
        scores = call.emit(relax.op.add(scores, relax.const(mask, dtype)))
    attends = None
    if call.has("attn_mask"):
        mask, attends = call["attn_mask"], _attending(call)
        if dtype_of(mask) == "bool":
            kept, masked = relax.const(0.0, dtype), relax.const(_masked(dtype), dtype)
            mask = call.emit(relax.op.where(mask, kept, masked))
        scores = call.emit(relax.op.add(scores, call.cast(mask, dtype)))
    weights = call.emit(relax.op.nn.softmax(scores, axis=-1))
    found = call.emit(relax.op.matmul(weights, value))
    return found if attends is None else call.emit(relax.op.where(attends, found, relax.const(0.0, dtype)))


def _attending(call: Call) -> Expr | None:
    """Return which rows attend to anything, since torch gives zeros for the others; None if all do.

    A mask of numbers that is not known is added as it is: a row of it that is all negative infinity is NaN.
    """
    known, mask = call.known("attn_mask"), call["attn_mask"]
    if known is not None:
        rows = (known if known.dtype == torch.bool else known > -math.inf).any(-1, keepdim=True)
        return None if bool(rows.all()) else constant(rows.numpy())
    if dtype_of(mask) != "bool":
        return None
    mask = call.cast(mask, "int8")
    return call.cast(call.emit(relax.op.max(mask, axis=[rank_of(mask) - 1], keepdims=True)), "bool")


def _masked(dtype: str) -> float:
    return _MASKED.get(dtype, -1e9)


ATTENTION: Mapping[str, Converter] = {"scaled_dot_product_attention.default": _attention}
"""Converter by name of operator and overload."""
