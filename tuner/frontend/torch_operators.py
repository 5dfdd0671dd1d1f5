"""torch operators converted here instead of by TVM, which gets them wrong or emits them without gradients.

Attention is written out in matrix products and a softmax as in the zoo, since TVM's fused attention has no
gradient; products keep their type, where TVM's converters turn halves into floats; look-ups clip indices,
where TVM's read out of bounds; and cross-entropy keeps its options, which TVM's drops. Checked against torch
in tests/tuner/frontend/test_torch_operators.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tvm import relax

from tuner.frontend.torch_indexing import INDEXING, IndexImporter

_MASKED = -1e9
"""Added to attention scores that must not count, as in the zoo's attention."""

_ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Positional arguments of torch's `scaled_dot_product_attention`, in order."""

_CROSS_ENTROPY_ARGUMENTS = ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
"""Positional arguments of torch's `cross_entropy_loss`, in order."""

_REDUCTIONS = ("none", "mean", "sum")
"""What torch's numbers for reductions mean."""


def _attention(node: torch.fx.Node, importer: IndexImporter) -> Any:
    """Emit softmax(query · keyᵀ · scale + mask) · value, as torch defines its fused attention."""
    given: dict[str, Any] = dict(zip(_ATTENTION_ARGUMENTS, node.args, strict=False))
    given |= node.kwargs
    query, key, value = (importer.env[given[name]] for name in _ATTENTION_ARGUMENTS[:3])
    if given.get("dropout_p", 0.0):
        raise ValueError("attention has dropout")
    num_axes = len(query.ty.shape)
    emit, dtype = importer.builder.emit, str(query.ty.dtype.dtype)
    if given.get("enable_gqa", False):
        group = int(query.ty.shape[num_axes - 3]) // int(key.ty.shape[num_axes - 3])
        key, value = (emit(relax.op.repeat(item, group, axis=num_axes - 3)) for item in (key, value))
    axes = [*range(num_axes - 2), num_axes - 1, num_axes - 2]
    scores = emit(relax.op.matmul(query, emit(relax.op.permute_dims(key, axes))))
    scale = given.get("scale") or int(query.ty.shape[-1]) ** -0.5
    scores = emit(relax.op.multiply(scores, relax.const(scale, dtype)))
    if given.get("is_causal", False):
        length, other_length = (int(extent) for extent in list(scores.ty.shape)[-2:])
        mask = np.triu(np.full((length, other_length), _MASKED), k=1)
        scores = emit(relax.op.add(scores, relax.const(mask, dtype)))
    if given.get("attn_mask") is not None:
        scores = emit(relax.op.add(scores, _additive_mask(given["attn_mask"], importer, dtype)))
    return emit(relax.op.matmul(emit(relax.op.nn.softmax(scores, axis=-1)), value))


def _linear(node: torch.fx.Node, importer: IndexImporter) -> Any:
    x, weight = importer.env[node.args[0]], importer.env[node.args[1]]
    product = importer.builder.emit(relax.op.matmul(x, importer.builder.emit(relax.op.permute_dims(weight))))
    bias = importer.env.get(node.args[2]) if len(node.args) > 2 else None
    return product if bias is None else importer.builder.emit(relax.op.add(product, bias))


def _matmul(node: torch.fx.Node, importer: IndexImporter) -> Any:
    return importer.builder.emit(relax.op.matmul(importer.env[node.args[0]], importer.env[node.args[1]]))


def _cross_entropy(node: torch.fx.Node, importer: IndexImporter) -> Any:
    given: dict[str, Any] = dict(zip(_CROSS_ENTROPY_ARGUMENTS, node.args, strict=False))
    given |= node.kwargs
    logits, target = importer.env[given["input"]], importer.env[given["target"]]
    if given.get("label_smoothing", 0.0) or not np.issubdtype(str(target.ty.dtype.dtype), np.integer):
        raise ValueError("labels are smoothed, or probabilities instead of classes")
    axis = 0 if len(logits.ty.shape) == 1 else 1
    probabilities = importer.builder.emit(relax.op.nn.log_softmax(logits, axis=axis))
    weight = importer.env[given["weight"]] if given.get("weight") is not None else None
    return importer.builder.emit(
        relax.op.nn.nll_loss(
            probabilities,
            target,
            weight,
            reduction=_REDUCTIONS[given.get("reduction", 1)],
            ignore_index=given.get("ignore_index", -100),
        )
    )


def _additive_mask(node: torch.fx.Node, importer: IndexImporter, dtype: str) -> Any:
    mask = importer.env[node]
    if str(mask.ty.dtype.dtype) != "bool":
        return mask
    kept, masked = relax.const(0.0, dtype), relax.const(_MASKED, dtype)
    return importer.builder.emit(relax.op.where(mask, kept, masked))


def _rows(node: torch.fx.Node, importer: IndexImporter) -> Any:
    """Emit a look-up of rows; TVM's own reads out of bounds where an index is."""
    table, indices = importer.env[node.args[0]], importer.env[node.args[1]]
    shape = list(indices.ty.shape)
    if len(shape) != 1:
        indices = importer.builder.emit(relax.op.reshape(indices, [math.prod(shape)]))
    rows = importer.builder.emit(relax.op.take(table, indices, axis=0, mode="clip"))
    if len(shape) == 1:
        return rows
    return importer.builder.emit(relax.op.reshape(rows, [*shape, table.ty.shape[1]]))


def _dropout(node: torch.fx.Node, importer: IndexImporter) -> Any:
    """Pass values on, as dropout does for inference; TVM's converter would do so while training, too."""
    probability, trains = node.args[1:3]
    if trains and probability:
        raise ValueError(
            f"it drops values at random (p={probability}) in this program; export the module after "
            "module.eval(), or give its dropout `training=False`"
        )
    return importer.env[node.args[0]]


CONVERTERS: Mapping[str, Callable[[torch.fx.Node, IndexImporter], Any]] = {
    "scaled_dot_product_attention.default": _attention,
    "embedding.default": _rows,
    "linear.default": _linear,
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "bmm.default": _matmul,
    "cross_entropy_loss.default": _cross_entropy,
    "dropout.default": _dropout,
    "native_dropout.default": lambda node, importer: [_dropout(node, importer)],
    **INDEXING,
}
"""Converter by name of operator and overload."""
