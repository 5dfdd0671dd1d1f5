"""An encoder–decoder whose two embeddings and head are one tensor, in stages on two or four ranks.

    tessel tune examples/encoder_decoder.py:build --devices 2 --micro-batches 4 --out out/translation
    tessel run out/translation/plan.json --model examples/encoder_decoder.py:build
    tessel run out/translation/plan.json --model examples/encoder_decoder.py:build --stages torch

The tied weight is read in the first stage, where the decoder begins, and in the last: each makes its part of
the gradient, and `tessel run` compares their sum with the whole model's. What the encoder made is relayed
through every stage of the decoder.
"""

from __future__ import annotations

import torch
from torch import nn


class Attention(nn.Module):
    """Attention with several heads; what is looked up may come from elsewhere."""

    def __init__(self, width: int, num_heads: int, *, is_causal: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A pre-norm layer, of the encoder or, with attention to what the encoder made, of the decoder."""

    def __init__(self, width: int, num_heads: int, *, is_decoder: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, is_causal=is_decoder)
        self.cross_norm = nn.LayerNorm(width) if is_decoder else None
        self.cross_attention = Attention(width, num_heads) if is_decoder else None
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed)
        if self.cross_attention is not None and self.cross_norm is not None and memory is not None:
            x = x + self.cross_attention(self.cross_norm(x), memory)
        return x + self.feed_forward(x)


class Translation(nn.Module):
    """Encoder, decoder, and one tensor for both embeddings and the head."""

    def __init__(
        self, vocabulary: int = 500, width: int = 64, num_heads: int = 4, num_layers: int = 2
    ) -> None:
        super().__init__()
        self.shared = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(Layer(width, num_heads, is_decoder=False) for _ in range(num_layers))
        self.decoder = nn.ModuleList(Layer(width, num_heads, is_decoder=True) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.shared.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.shared(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.shared(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.norm(x))


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model, and example inputs of the shapes to tune for."""
    torch.manual_seed(0)
    return Translation(), (torch.full((2, 16), 499), torch.full((2, 16), 499))
