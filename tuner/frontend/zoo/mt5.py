"""An encoder and decoder after mT5 (Xue et al., 2020; T5 v1.1): two stacks that meet in cross-attention.

Root-mean-square norms, gated GELU, no scaling of scores, and biases of scores by relative position: one table
a stack, looked up once and used by all its layers. Buckets of positions are constants. The head is a matrix
of its own. For training the loss is the mean cross-entropy of `labels`; `decoder_input_ids` are the labels
shifted right by whoever makes the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit_model
from tuner.frontend.layers import CrossEntropy, Embedding, Linear, RMSNorm, attend, causal_mask
from tuner.frontend.model import InputSpec, Model
from tuner.frontend.shapes import input_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    num_layers: int
    width: int
    attention_width: int
    hidden_width: int
    num_heads: int
    vocabulary: int = 250112
    length: int = 128
    decoder_length: int = 32
    num_buckets: int = 32
    max_distance: int = 128


_SIZES = {
    "tiny": _Size(
        num_layers=2,
        width=64,
        attention_width=64,
        hidden_width=128,
        num_heads=4,
        vocabulary=512,
        length=32,
        decoder_length=16,
    ),
    "small": _Size(num_layers=8, width=512, attention_width=384, hidden_width=1024, num_heads=6),
    "base": _Size(num_layers=12, width=768, attention_width=768, hidden_width=2048, num_heads=12),
}
SIZES = tuple(_SIZES)
DEFAULT_SIZE = "small"


def load(size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool) -> Model:
    """Return the model over `input_ids` and `decoder_input_ids`, and `labels` of the latter's shape.

    Raises:
        ValueError: the two inputs are given different batches.
    """
    size = _SIZES[size_name]
    name = f"mt5:{size_name}"
    defaults = {"input_ids": (batch, size.length), "decoder_input_ids": (batch, size.decoder_length)}
    chosen = input_shapes(name, defaults, shapes)
    if chosen["input_ids"][0] != chosen["decoder_input_ids"][0]:
        raise ValueError(
            f"input_ids has batch {chosen['input_ids'][0]} and decoder_input_ids "
            f"{chosen['decoder_input_ids'][0]}, but {name} decodes each sequence it encodes; give one batch"
        )
    if training:
        chosen["labels"] = chosen["decoder_input_ids"]
    inputs = [
        InputSpec(name=item, shape=shape, dtype="int64", high=size.vocabulary)
        for item, shape in chosen.items()
    ]
    return emit_model(name, _EncoderDecoder(size), inputs, training=training)


class _EncoderDecoder(Layer):
    def __init__(self, size: _Size) -> None:
        self.shared = Embedding(size.vocabulary, size.width)
        self.encoder = _Stack(size, is_decoder=False)
        self.decoder = _Stack(size, is_decoder=True)
        self.lm_head = Linear(size.width, size.vocabulary, bias=False)
        self.loss = CrossEntropy()

    def forward(
        self, input_ids: nn.Tensor, decoder_input_ids: nn.Tensor, labels: nn.Tensor | None = None
    ) -> nn.Tensor:
        encoded = self.encoder(self.shared(input_ids))
        logits = self.lm_head(self.decoder(self.shared(decoder_input_ids), encoded))
        return logits if labels is None else self.loss(logits, labels)


class _Stack(Layer):
    def __init__(self, size: _Size, *, is_decoder: bool) -> None:
        self.relative_bias = _RelativeBias(size, is_decoder=is_decoder)
        self.block = nn.ModuleList([_Block(size, is_decoder=is_decoder) for _ in range(size.num_layers)])
        self.final_layer_norm = RMSNorm(size.width)

    def forward(self, x: nn.Tensor, encoded: nn.Tensor | None = None) -> nn.Tensor:
        bias = self.relative_bias(x.shape[1])
        for block in self.block:
            x = block(x, bias, encoded)
        return self.final_layer_norm(x)


class _RelativeBias(Layer):
    def __init__(self, size: _Size, *, is_decoder: bool) -> None:
        self.size = size
        self.is_decoder = is_decoder
        self.table = Embedding(size.num_buckets, size.num_heads)

    def forward(self, length: int) -> nn.Tensor:
        """Return what is added to scores, shape (1, heads, length, length); a decoder's hides the future."""
        offsets = np.arange(length)[None, :] - np.arange(length)[:, None]
        buckets = relative_buckets(
            offsets, self.size.num_buckets, self.size.max_distance, is_two_sided=not self.is_decoder
        )
        rows = self.table(nn.Tensor.from_const(buckets.reshape(-1)))
        by_head = nn.op.reshape(rows, (length, length, self.size.num_heads))
        bias = nn.op.reshape(nn.op.permute_dims(by_head, [2, 0, 1]), (1, self.size.num_heads, length, length))
        return nn.op.add(bias, causal_mask(length)) if self.is_decoder else bias


class _Block(Layer):
    def __init__(self, size: _Size, *, is_decoder: bool) -> None:
        self.attention_norm = RMSNorm(size.width)
        self.attention = _Attention(size)
        if is_decoder:
            self.cross_norm = RMSNorm(size.width)
            self.cross_attention = _Attention(size)
        self.feed_forward_norm = RMSNorm(size.width)
        self.feed_forward = _GatedFeedForward(size)

    def forward(self, x: nn.Tensor, bias: nn.Tensor, encoded: nn.Tensor | None) -> nn.Tensor:
        normed = self.attention_norm(x)
        x = nn.op.add(x, self.attention(normed, normed, bias))
        if encoded is not None:
            x = nn.op.add(x, self.cross_attention(self.cross_norm(x), encoded))
        return nn.op.add(x, self.feed_forward(self.feed_forward_norm(x)))


class _Attention(Layer):
    def __init__(self, size: _Size) -> None:
        self.num_heads = size.num_heads
        self.q = Linear(size.width, size.attention_width, bias=False)
        self.k = Linear(size.width, size.attention_width, bias=False)
        self.v = Linear(size.width, size.attention_width, bias=False)
        self.o = Linear(size.attention_width, size.width, bias=False)

    def forward(self, x: nn.Tensor, other: nn.Tensor, bias: nn.Tensor | None = None) -> nn.Tensor:
        mixed = attend(
            self.q(x), self.k(other), self.v(other), num_heads=self.num_heads, scaled=False, bias=bias
        )
        return self.o(mixed)


class _GatedFeedForward(Layer):
    def __init__(self, size: _Size) -> None:
        self.wi_0 = Linear(size.width, size.hidden_width, bias=False)
        self.wi_1 = Linear(size.width, size.hidden_width, bias=False)
        self.wo = Linear(size.hidden_width, size.width, bias=False)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        gate = nn.op.gelu(self.wi_0(x), approximate="tanh")
        return self.wo(nn.op.multiply(gate, self.wi_1(x)))


def relative_buckets(
    offsets: np.ndarray, num_buckets: int, max_distance: int, *, is_two_sided: bool
) -> np.ndarray:
    """Return the bucket of each offset `key - query`, int64 in [0, num_buckets).

    Half of the buckets of a side hold one distance each, the rest grow logarithmically up to
    `max_distance`. One-sided, offsets to the future share bucket 0.

    Source: Raffel et al., 2019, section 2.1, and the formula of the T5 code as published there.
    """
    side = np.zeros_like(offsets)
    if is_two_sided:
        num_buckets //= 2
        side = (offsets > 0) * num_buckets
        distances = np.abs(offsets)
    else:
        distances = np.maximum(-offsets, 0)
    num_exact = num_buckets // 2
    growth = math.log(max_distance / num_exact)
    large = num_exact + (
        np.log(np.maximum(distances, 1) / num_exact) / growth * (num_buckets - num_exact)
    ).astype(np.int64)
    buckets = np.where(distances < num_exact, distances, np.minimum(large, num_buckets - 1))
    return (side + buckets).astype(np.int64)
