"""Language models whose head is worth many blocks, in sizes that a machine with two cores measures."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, HEADS, BLOCKS, TOKENS = 256, 4, 8, 64


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, of shape (batch, tokens, width), one block later."""
        batch, tokens, _ = x.shape
        query, key, value = (
            part.reshape(batch, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.attn(self.ln_1(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.ln_2(x))))


class LanguageModel(nn.Module):
    """A GPT whose head is its embedding."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(words, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, words, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return logits, of shape (batch, tokens, words)."""
        x = self.wte(input_ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def words_50k() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the model of GPT-2's vocabulary, with example inputs."""
    return _model(50_257)


def words_256k() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the model of 256 k words, as multilingual models have."""
    return _model(262_144)


def words_1m() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the model of a million words."""
    return _model(1_048_576)


def _model(words: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return LanguageModel(words), (torch.randint(0, words, (1, TOKENS)),)
