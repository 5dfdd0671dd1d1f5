"""The layers of the zoo's models, in operators that have gradients and match the rules.

Weights of linear layers are stored as (inputs, outputs), so that no transposition stands between a product
and its weight. Attention is written out in matrix products and a softmax, as training needs it. Checked
against torch in tests/tuner/frontend/test_zoo_language.py and test_zoo_vision.py.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit

_MASKED = -1e9
"""Added to attention scores that must not count: far below any score, and finite in float32."""


class Linear(Layer):
    """`x @ weight + bias`, with weight of shape (inputs, outputs)."""

    def __init__(self, num_inputs: int, num_outputs: int, *, bias: bool = True) -> None:
        self.weight = nn.Parameter((num_inputs, num_outputs))
        self.bias = nn.Parameter((num_outputs,)) if bias else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return shape (…, outputs) from shape (…, inputs)."""
        product = nn.op.matmul(x, self.weight)
        return product if self.bias is None else nn.op.add(product, self.bias)


class Embedding(Layer):
    """Rows of a table, looked up by index."""

    def __init__(self, num_rows: int, width: int) -> None:
        self.weight = nn.Parameter((num_rows, width))

    def forward(self, indices: nn.Tensor) -> nn.Tensor:
        """Return shape (*indices.shape, width)."""
        shape = indices.shape
        if len(shape) == 1:
            return _rows(self.weight, indices)
        rows = _rows(self.weight, nn.op.reshape(indices, (math.prod(shape),)))
        return nn.op.reshape(rows, (*shape, self.weight.shape[1]))


class TiedHead(Layer):
    """Logits from the table of an embedding, so that both are one parameter (Press and Wolf, 2017)."""

    def __init__(self, embedding: Embedding) -> None:
        self.weight = embedding.weight

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return shape (…, rows) from shape (…, width)."""
        return nn.op.matmul(x, nn.op.permute_dims(self.weight, [1, 0]))


class PositionEmbedding(Layer):
    """The first rows of a table, one per position."""

    def __init__(self, num_rows: int, width: int) -> None:
        self.weight = nn.Parameter((num_rows, width))

    def forward(self, length: int) -> nn.Tensor:
        """Return shape (length, width)."""
        # A lookup rather than a slice: it has a gradient.
        positions = nn.Tensor.from_const(np.arange(length, dtype="int64"))
        return _rows(self.weight, positions)


class LayerNorm(Layer):
    """Normalise the last axis, then scale and shift."""

    def __init__(self, width: int, *, epsilon: float = 1e-5) -> None:
        self.weight = nn.Parameter((width,))
        self.bias = nn.Parameter((width,))
        self.epsilon = epsilon

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the shape of x."""
        return nn.op.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(Layer):
    """Divide the last axis by its root mean square, then scale (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, *, epsilon: float = 1e-6) -> None:
        self.weight = nn.Parameter((width,))
        self.epsilon = epsilon

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the shape of x."""
        # Written out: `relax.nn.rms_norm` has no gradient; nor have `rsqrt` and `square`.
        mean_square = emit(relax.op.mean(nn.op.multiply(x, x)._expr, axis=[-1], keepdims=True), "mean_square")
        root = nn.op.sqrt(nn.op.add(mean_square, scalar(self.epsilon)))
        return nn.op.multiply(nn.op.divide(x, root), self.weight)


class CrossEntropy(Layer):
    """The mean of -log softmax(logits)[label]."""

    def forward(self, logits: nn.Tensor, labels: nn.Tensor) -> nn.Tensor:
        """Return a scalar from shape (…, num_classes) and integer labels of shape (…)."""
        num_rows = math.prod(labels.shape)
        rows = nn.op.reshape(logits, (num_rows, logits.shape[-1]))
        classes = nn.op.reshape(labels, (num_rows,))
        log_probabilities = emit(relax.op.nn.log_softmax(rows._expr, axis=-1), "log_softmax")
        return emit(relax.op.nn.nll_loss(log_probabilities._expr, classes._expr, reduction="mean"), "loss")


class SelfAttention(Layer):
    """Attention of a sequence over itself, with four linear layers of its width."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.output = Linear(width, width)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the shape of x, (batch, length, width)."""
        mixed = attend(self.query(x), self.key(x), self.value(x), num_heads=self.num_heads)
        return self.output(mixed)


def attend(
    query: nn.Tensor,
    key: nn.Tensor,
    value: nn.Tensor,
    *,
    num_heads: int,
    causal: bool = False,
    scaled: bool = True,
    bias: nn.Tensor | None = None,
) -> nn.Tensor:
    """Return softmax(query · keyᵀ / √depth + bias) · value, head by head.

    Args:
        query: shape (batch, length, width).
        key: shape (batch, other_length, width).
        value: shape (batch, other_length, width).
        num_heads: which divides the width.
        causal: whether a position sees only itself and earlier ones.
        scaled: whether scores are divided by √depth; T5 does not.
        bias: added to the scores; it broadcasts to (batch, num_heads, length, other_length).

    Returns:
        Shape (batch, length, width).
    """
    batch, length, width = query.shape
    depth = width // num_heads
    scores = nn.op.matmul(
        _split_heads(query, num_heads), nn.op.permute_dims(_split_heads(key, num_heads), [0, 1, 3, 2])
    )
    if scaled:
        scores = nn.op.multiply(scores, scalar(depth**-0.5))
    if bias is not None:
        scores = nn.op.add(scores, bias)
    if causal:
        scores = nn.op.add(scores, causal_mask(length))
    mixed = nn.op.matmul(nn.op.softmax(scores, axis=-1), _split_heads(value, num_heads))
    return nn.op.reshape(nn.op.permute_dims(mixed, [0, 2, 1, 3]), (batch, length, width))


def scalar(value: float) -> nn.Tensor:
    """Return a float32 constant without axes."""
    return nn.Tensor.from_scalar(value, "float32")


def _rows(table: nn.Tensor, indices: nn.Tensor) -> nn.Tensor:
    # TVM's default mode reads out of bounds where an index is; clipping costs nothing that can be measured.
    return emit(relax.op.take(table._expr, indices._expr, axis=0, mode="clip"), "take")


def _split_heads(x: nn.Tensor, num_heads: int) -> nn.Tensor:
    """Return shape (batch, heads, length, depth) from shape (batch, length, width)."""
    batch, length, width = x.shape
    return nn.op.permute_dims(nn.op.reshape(x, (batch, length, num_heads, width // num_heads)), [0, 2, 1, 3])


def causal_mask(length: int) -> nn.Tensor:
    """Return a constant, 0 where a row may look and far below 0 where it may not.

    A constant and not a binding: a binding would be one more tensor for every pipeline stage to send on.
    """
    return nn.Tensor.from_const(np.triu(np.full((1, 1, length, length), _MASKED, dtype="float32"), k=1))
