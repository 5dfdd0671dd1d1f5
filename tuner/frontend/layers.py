"""The layers of the zoo's models, in operators that have gradients and match the rules.

Weights of linear layers are stored as (inputs, outputs), so that no transposition stands between a product
and its weight. Attention is written out in matrix products and a softmax, as training needs it. Batch
normalisation is one operator for inference, which rules can fuse into a convolution, and is written out for
training, as TVM has no gradient for it. Checked against torch in tests/tuner/frontend/test_zoo_language.py
and test_zoo_vision.py.
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


_EPSILON = 1e-5


class _Convolution(Layer):
    """A square filter over images, layout NCHW, without bias, padded so that stride 1 keeps the extents."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        self.weight = nn.Parameter((num_outputs, num_inputs // groups, kernel, kernel))
        self.stride = stride
        self.padding = kernel // 2
        self.groups = groups

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return shape (batch, outputs, ⌈height / stride⌉, ⌈width / stride⌉)."""
        return nn.op.conv2d(x, self.weight, None, self.stride, self.padding, 1, self.groups)


class _BatchNorm(Layer):
    """Normalise each channel, by running statistics or by the batch's own.

    For training, running statistics are neither parameters nor updated: they do not reach the loss.
    """

    def __init__(self, num_channels: int, *, training: bool) -> None:
        self.weight = nn.Parameter((num_channels,))
        self.bias = nn.Parameter((num_channels,))
        self.training = training
        if not training:
            self.running_mean = nn.Parameter((num_channels,))
            self.running_var = nn.Parameter((num_channels,))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the shape of x."""
        return self._by_batch(x) if self.training else self._by_running_statistics(x)

    def _by_running_statistics(self, x: nn.Tensor) -> nn.Tensor:
        parameters = (self.weight, self.bias, self.running_mean, self.running_var)
        results = relax.op.nn.batch_norm(
            x._expr, *(parameter._expr for parameter in parameters), axis=1, epsilon=_EPSILON, training=False
        )
        results = relax.BlockBuilder.current().emit(results, "batch_norm")
        return emit(relax.TupleGetItem(results, 0), "normed")

    def _by_batch(self, x: nn.Tensor) -> nn.Tensor:
        axes, num_channels = [0, 2, 3], self.weight.shape[0]
        mean = emit(relax.op.mean(x._expr, axis=axes, keepdims=True), "mean")
        variance = emit(relax.op.variance(x._expr, axis=axes, keepdims=True), "variance")
        deviation = nn.op.sqrt(nn.op.add(variance, scalar(_EPSILON)))
        normed = nn.op.divide(nn.op.subtract(x, mean), deviation)
        weight, bias = (nn.op.reshape(item, (1, num_channels, 1, 1)) for item in (self.weight, self.bias))
        return nn.op.add(nn.op.multiply(normed, weight), bias)


class NormedConvolution(Layer):
    """Convolution, batch normalisation, and an activation where one is asked for."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        kernel: int,
        training: bool,
        stride: int = 1,
        groups: int = 1,
        activation: str | None = "relu",
    ) -> None:
        self.conv = _Convolution(num_inputs, num_outputs, kernel=kernel, stride=stride, groups=groups)
        self.norm = _BatchNorm(num_outputs, training=training)
        self.activation = activation

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return shape (batch, outputs, ⌈height / stride⌉, ⌈width / stride⌉)."""
        x = self.norm(self.conv(x))
        match self.activation:
            case "relu":
                return nn.op.relu(x)
            case "relu6":
                # Not `relax.nn.relu6`, which has no gradient.
                return nn.op.minimum(nn.op.relu(x), scalar(6.0))
        return x


def max_pool(x: nn.Tensor, *, kernel: int, stride: int) -> nn.Tensor:
    """Return the largest of each square, over images padded by half of its extent."""
    return emit(relax.op.nn.max_pool2d(x._expr, [kernel, kernel], [stride, stride], kernel // 2), "max_pool")


def average(x: nn.Tensor) -> nn.Tensor:
    """Return each channel's mean over the image, shape (batch, channels)."""
    return emit(relax.op.mean(x._expr, axis=[2, 3]), "average")
