"""GPT-2, BERT, mT5 and FLAVA."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.network_models.construction import Built, built, image


def gpt2() -> Built:
    """Return GPT-2 small (Radford et al., 2019) over 128 tokens."""
    return built(lambda: Gpt2(50257, 1024, 768, 12, 12), _tokens(128, 50257))


def bert() -> Built:
    """Return BERT base with its language-model head (Devlin et al., 2019) over 128 tokens."""
    return built(lambda: Bert(30522, 512, 768, 12, 12), _tokens(128, 30522))


def mt5() -> Built:
    """Return an encoder and decoder of mT5 small (Xue et al., 2021): 128 tokens in, 32 out."""
    return built(lambda: T5(32128, 512, 1024, 8, 6), _tokens(128, 32128), _tokens(32, 32128))


def flava() -> Built:
    """Return an image tower, a text tower and what joins them, as in FLAVA (Singh et al., 2022)."""
    return built(lambda: Flava(30522, 768, 12, 12, 6), image(), _tokens(77, 30522))


class SelfAttention(nn.Module):
    def __init__(self, width: int, num_heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int, *, approximate: str = "none") -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(F.gelu(self.widen(x), approximate=self.approximate))


class PreNormBlock(nn.Module):
    def __init__(
        self, width: int, num_heads: int, *, causal: bool = False, approximate: str = "none"
    ) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, num_heads, causal=causal)
        self.feed_forward = FeedForward(width, approximate=approximate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class PostNormBlock(PreNormBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_1(x + self.attention(x))
        return self.norm_2(x + self.feed_forward(x))


class Gpt2(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *(PreNormBlock(width, num_heads, causal=True, approximate="tanh") for _ in range(num_layers))
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.words.weight)


class Bert(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(PostNormBlock(width, num_heads) for _ in range(num_layers)))
        self.head, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]]))
        return F.linear(self.head_norm(F.gelu(self.head(x))), self.words.weight, self.bias)


class T5Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(width, 64 * num_heads, bias=False) for _ in range(3))
        self.output = nn.Linear(64 * num_heads, width, bias=False)

    def forward(self, x: Tensor, other: Tensor, bias: Tensor | None) -> Tensor:
        query, key, value = (
            _heads(layer(y), self.num_heads)
            for layer, y in ((self.query, x), (self.key, other), (self.value, other))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return self.output(mixed.transpose(1, 2).flatten(2))


class T5Block(nn.Module):
    def __init__(self, width: int, inner: int, num_heads: int, *, is_decoder: bool) -> None:
        super().__init__()
        self.attention, self.norm = T5Attention(width, num_heads), nn.RMSNorm(width, 1e-6)
        self.cross = T5Attention(width, num_heads) if is_decoder else None
        self.cross_norm = nn.RMSNorm(width, 1e-6)
        self.gate, self.widen = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.narrow, self.last_norm = nn.Linear(inner, width, bias=False), nn.RMSNorm(width, 1e-6)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, bias)
        if self.cross is not None and encoded is not None:
            x = x + self.cross(self.cross_norm(x), encoded, None)
        normed = self.last_norm(x)
        return x + self.narrow(F.gelu(self.gate(normed), approximate="tanh") * self.widen(normed))


class T5Stack(nn.Module):
    def __init__(
        self, length: int, width: int, inner: int, num_layers: int, num_heads: int, *, is_decoder: bool
    ) -> None:
        super().__init__()
        self.is_decoder = is_decoder
        self.register_buffer("buckets", _distance_buckets(length, two_sided=not is_decoder))
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1))
        self.blocks = nn.ModuleList(
            T5Block(width, inner, num_heads, is_decoder=is_decoder) for _ in range(num_layers)
        )
        self.distances = nn.Embedding(32, num_heads)
        self.norm = nn.RMSNorm(width, 1e-6)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        bias = self.distances(self.buckets).permute(2, 0, 1)
        if self.is_decoder:
            bias = bias + self.mask
        for block in self.blocks:
            x = block(x, bias, encoded)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self, vocabulary: int, width: int, inner: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.encoder = T5Stack(128, width, inner, num_layers, num_heads, is_decoder=False)
        self.decoder = T5Stack(32, width, inner, num_layers, num_heads, is_decoder=True)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, decoder_tokens: Tensor) -> Tensor:
        encoded = self.encoder(self.words(tokens))
        return self.head(self.decoder(self.words(decoder_tokens), encoded))


class Flava(nn.Module):
    def __init__(
        self, vocabulary: int, width: int, num_heads: int, num_layers: int, num_joint_layers: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.places = nn.Parameter(0.02 * torch.randn(196, width))
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(77, width)
        self.image, self.text, self.joint = (
            nn.Sequential(*(PreNormBlock(width, num_heads) for _ in range(count)), nn.LayerNorm(width))
            for count in (num_layers, num_layers, num_joint_layers)
        )
        self.from_image, self.from_text = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1000))

    def forward(self, image: Tensor, tokens: Tensor) -> Tensor:
        seen = self.image(self.patches(image).flatten(2).transpose(1, 2) + self.places)
        read = self.text(self.words(tokens) + self.positions.weight)
        joint = self.joint(torch.cat([self.from_image(seen), self.from_text(read)], 1))
        return self.head(joint.mean(1))


def _tokens(length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(length))


def _heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _distance_buckets(length: int, *, two_sided: bool) -> Tensor:
    """Return the bucket of each pair of positions, shape (length, length), as T5 has them."""
    offset = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    count = 16 if two_sided else 32
    start = count * (offset > 0) if two_sided else torch.zeros_like(offset)
    distance = offset.abs() if two_sided else (-offset).clamp(min=0)
    exact = count // 2
    growth = torch.log(distance.clamp(min=1) / exact) / torch.log(torch.tensor(128 / exact))
    far = (exact + growth * (count - exact)).long().clamp(max=count - 1)
    return start + torch.where(distance < exact, distance, far)
