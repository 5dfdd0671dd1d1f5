"""Gradients of products: matrices and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import relax

from tuner.stages.gradients.rule import Gradient, Parts, shape_of
from tuner.stages.program import Expr, Var

op = relax.op


def _matmul(result: Var, call: Any, gradient: Expr) -> Parts:
    """Sum over all leading axes within one product, where a matrix multiplies a batch: dW = Xᵀ dY.

    The general rule makes a product for each element of the batch and sums them afterwards.
    """
    value, weight = call.args
    *leading, num_columns = shape_of(value)
    if len(leading) < 2 or len(weight.ty.shape) != 2:
        return None
    num_rows = math.prod(leading)
    flat_value = op.reshape(value, (num_rows, num_columns))
    flat_gradient = op.reshape(gradient, (num_rows, weight.ty.shape[1]))
    return (
        op.matmul(gradient, op.permute_dims(weight)),
        op.matmul(op.permute_dims(flat_value), flat_gradient),
    )


def _attention(result: Var, call: Any, gradient: Expr) -> Parts:
    """Compute the probabilities P again, so that nothing of the size of P is saved.

    With S = scale Q Kᵀ (+ bias) and P = softmax(S): dV = Pᵀ dY, dP = dY Vᵀ, dS = P (dP - rowsum(P dP)),
    dQ = scale dS K, dK = scale dSᵀ Q (Dao et al. 2022, appendix B.2). Tensors have the shape (batch, length,
    heads, depth).
    """
    if call.attrs.window_size is not None or call.attrs.causal_mask not in (None, "TopLeft"):
        return None
    query, key, value = (op.permute_dims(argument, [0, 2, 1, 3]) for argument in call.args[:3])
    depth, dtype = shape_of(call.args[0])[3], call.args[0].ty.dtype
    scale = depth**-0.5 if call.attrs.scale is None else float(call.attrs.scale.value)
    factor = relax.const(scale, dtype)
    scores = op.multiply(op.matmul(query, _turned(key)), factor)
    biases = call.args[3:]
    if biases:
        scores = op.add(scores, biases[0])
    if call.attrs.causal_mask == "TopLeft":
        lengths = (shape_of(call.args[0])[1], shape_of(call.args[1])[1])
        below = op.tril(op.ones(lengths, dtype))
        hidden = op.multiply(op.subtract(relax.const(1.0, dtype), below), relax.const(-1e9, dtype))
        scores = op.add(scores, hidden)
    probabilities = op.nn.softmax(scores, axis=-1)
    arriving = op.permute_dims(gradient, [0, 2, 1, 3])
    weighted = op.multiply(probabilities, op.matmul(arriving, _turned(value)))
    row_sums = op.sum(weighted, [-1], keepdims=True)
    score_gradient = op.subtract(weighted, op.multiply(probabilities, row_sums))
    parts = (
        op.multiply(op.matmul(score_gradient, key), factor),
        op.multiply(op.matmul(_turned(score_gradient), query), factor),
        op.matmul(_turned(probabilities), arriving),
    )
    return (
        *(op.permute_dims(part, [0, 2, 1, 3]) for part in parts),
        *(op.collapse_sum_to(score_gradient, bias.ty.shape) for bias in biases),
    )


def _turned(matrices: Expr) -> Expr:
    return op.permute_dims(matrices, [0, 1, 3, 2])


PRODUCTS: Mapping[str, Gradient] = {
    "matmul": _matmul,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
}
