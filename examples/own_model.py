"""A model of one's own, written in torch, for `tessel tune examples/own_model.py:build`.

The function takes nothing and returns the module and a tuple of example inputs; their shapes are those that
are tuned for. The module returns logits, so training adds the mean cross-entropy; a module that returns its
loss, a scalar, is trained on that.
"""

import torch
from torch import nn


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        return x + self.feed_forward(x)


class LanguageModel(nn.Module):
    """Token embedding, blocks, and a head tied to the embedding."""

    def __init__(
        self, vocabulary: int = 1000, width: int = 128, num_heads: int = 4, num_layers: int = 8
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(token_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model, and example inputs of the shape to tune for."""
    torch.manual_seed(0)
    return LanguageModel(), (torch.zeros(1, 64, dtype=torch.long),)


def few_blocks() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return three wide blocks, which four devices can share evenly only if blocks are cut."""
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=512, width=384, num_heads=6, num_layers=3)
    return model, (torch.zeros(2, 64, dtype=torch.long),)
