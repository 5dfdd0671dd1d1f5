"""GPT-2: a decoder of pre-norm blocks with a head tied to the token embedding (Radford et al., 2019).

For training the loss is the mean cross-entropy over all positions; `labels` holds each position's next token.
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
    TiedHead,
    attend,
)
from tuner.frontend.model import InputSpec, Model
from tuner.frontend.shapes import input_shapes, require_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    num_layers: int
    width: int
    num_heads: int
    vocabulary: int = 50257
    num_positions: int = 1024
    length: int = 128


_SIZES = {
    "tiny": _Size(num_layers=4, width=64, num_heads=4, vocabulary=512, num_positions=128, length=32),
    "small": _Size(num_layers=12, width=768, num_heads=12),
    "medium": _Size(num_layers=24, width=1024, num_heads=16),
    "large": _Size(num_layers=36, width=1280, num_heads=20),
}
SIZES = tuple(_SIZES)
DEFAULT_SIZE = "small"


def load(size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool) -> Model:
    """Return GPT-2 over `input_ids`, and over `labels` of the same shape for training."""
    size = _SIZES[size_name]
    name = f"gpt2:{size_name}"
    shape = input_shapes(name, {"input_ids": (batch, size.length)}, shapes)["input_ids"]
    require_positions(name, shape[1], size.num_positions)
    names = ("input_ids", "labels") if training else ("input_ids",)
    inputs = [InputSpec(name=item, shape=shape, dtype="int64", high=size.vocabulary) for item in names]
    return emit_model(name, _LanguageModel(size), inputs, training=training)


class _LanguageModel(Layer):
    def __init__(self, size: _Size) -> None:
        self.transformer = _Transformer(size)
        self.lm_head = TiedHead(self.transformer.wte)
        self.loss = CrossEntropy()

    def forward(self, input_ids: nn.Tensor, labels: nn.Tensor | None = None) -> nn.Tensor:
        logits = self.lm_head(self.transformer(input_ids))
        return logits if labels is None else self.loss(logits, labels)


class _Transformer(Layer):
    def __init__(self, size: _Size) -> None:
        self.wte = Embedding(size.vocabulary, size.width)
        self.wpe = PositionEmbedding(size.num_positions, size.width)
        self.h = nn.ModuleList([_Block(size) for _ in range(size.num_layers)])
        self.ln_f = LayerNorm(size.width)

    def forward(self, input_ids: nn.Tensor) -> nn.Tensor:
        x = nn.op.add(self.wte(input_ids), self.wpe(input_ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class _Block(Layer):
    def __init__(self, size: _Size) -> None:
        self.ln_1 = LayerNorm(size.width)
        self.attn = _Attention(size)
        self.ln_2 = LayerNorm(size.width)
        self.mlp = _FeedForward(size)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = nn.op.add(x, self.attn(self.ln_1(x)))
        return nn.op.add(x, self.mlp(self.ln_2(x)))


class _Attention(Layer):
    def __init__(self, size: _Size) -> None:
        self.num_heads = size.num_heads
        self.c_attn = Linear(size.width, 3 * size.width)
        self.c_proj = Linear(size.width, size.width)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        query, key, value = nn.op.split(self.c_attn(x), 3, axis=-1)
        return self.c_proj(attend(query, key, value, num_heads=self.num_heads, causal=True))


class _FeedForward(Layer):
    def __init__(self, size: _Size) -> None:
        self.c_fc = Linear(size.width, 4 * size.width)
        self.c_proj = Linear(4 * size.width, size.width)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.c_proj(nn.op.gelu(self.c_fc(x), approximate="tanh"))
