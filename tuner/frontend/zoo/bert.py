"""BERT: an encoder of post-norm blocks with a masked-language-model head (Devlin et al., 2018).

Sequences are full: there is no padding mask. For training, `labels` holds the token of every position and the
loss is the mean over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit_model
from tuner.frontend.layers import (
    CrossEntropy,
    Embedding,
    LayerNorm,
    Linear,
    PositionEmbedding,
    SelfAttention,
    TiedHead,
)
from tuner.frontend.model import InputSpec, Model
from tuner.frontend.shapes import input_shapes, require_positions

_EPSILON = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    num_layers: int
    width: int
    num_heads: int
    vocabulary: int = 30522
    num_positions: int = 512
    length: int = 128


_SIZES = {
    "tiny": _Size(num_layers=4, width=64, num_heads=4, vocabulary=512, num_positions=128, length=32),
    "base": _Size(num_layers=12, width=768, num_heads=12),
    "large": _Size(num_layers=24, width=1024, num_heads=16),
}
SIZES = tuple(_SIZES)
DEFAULT_SIZE = "base"


def load(size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool) -> Model:
    """Return BERT over `input_ids` and `token_type_ids`, and over `labels` of their shape for training."""
    size = _SIZES[size_name]
    name = f"bert:{size_name}"
    shape = input_shapes(name, {"input_ids": (batch, size.length)}, shapes)["input_ids"]
    require_positions(name, shape[1], size.num_positions)
    highs = {"input_ids": size.vocabulary, "token_type_ids": 2}
    if training:
        highs["labels"] = size.vocabulary
    inputs = [InputSpec(name=item, shape=shape, dtype="int64", high=high) for item, high in highs.items()]
    return emit_model(name, _MaskedLanguageModel(size), inputs, training=training)


class _MaskedLanguageModel(Layer):
    def __init__(self, size: _Size) -> None:
        self.embeddings = _Embeddings(size)
        self.encoder = _Encoder(size)
        self.cls = _Head(size, self.embeddings.word_embeddings)
        self.loss = CrossEntropy()

    def forward(
        self, input_ids: nn.Tensor, token_type_ids: nn.Tensor, labels: nn.Tensor | None = None
    ) -> nn.Tensor:
        logits = self.cls(self.encoder(self.embeddings(input_ids, token_type_ids)))
        return logits if labels is None else self.loss(logits, labels)


class _Embeddings(Layer):
    def __init__(self, size: _Size) -> None:
        self.word_embeddings = Embedding(size.vocabulary, size.width)
        self.position_embeddings = PositionEmbedding(size.num_positions, size.width)
        self.token_type_embeddings = Embedding(2, size.width)
        self.norm = LayerNorm(size.width, epsilon=_EPSILON)

    def forward(self, input_ids: nn.Tensor, token_type_ids: nn.Tensor) -> nn.Tensor:
        words = nn.op.add(self.word_embeddings(input_ids), self.token_type_embeddings(token_type_ids))
        return self.norm(nn.op.add(words, self.position_embeddings(input_ids.shape[1])))


class _Encoder(Layer):
    def __init__(self, size: _Size) -> None:
        self.layer = nn.ModuleList([_Block(size) for _ in range(size.num_layers)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        for block in self.layer:
            x = block(x)
        return x


class _Block(Layer):
    def __init__(self, size: _Size) -> None:
        self.attention = SelfAttention(size.width, size.num_heads)
        self.attention_norm = LayerNorm(size.width, epsilon=_EPSILON)
        self.intermediate = Linear(size.width, 4 * size.width)
        self.output = Linear(4 * size.width, size.width)
        self.output_norm = LayerNorm(size.width, epsilon=_EPSILON)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = self.attention_norm(nn.op.add(x, self.attention(x)))
        return self.output_norm(nn.op.add(x, self.output(nn.op.gelu(self.intermediate(x)))))


class _Head(Layer):
    def __init__(self, size: _Size, words: Embedding) -> None:
        self.dense = Linear(size.width, size.width)
        self.norm = LayerNorm(size.width, epsilon=_EPSILON)
        self.decoder = TiedHead(words)
        self.bias = nn.Parameter((size.vocabulary,))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = self.norm(nn.op.gelu(self.dense(x)))
        return nn.op.add(self.decoder(x), self.bias)
