"""Models of speech, of several kinds of input, and of kinds that are neither language nor vision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures.language import VOCABULARY, Built, Returns, tokens

_BODY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def speech(config: str, **changes: Any) -> Callable[[], Built]:
    """Return a builder of a model over a wave."""

    def build() -> Built:
        settings = {
            **_BODY,
            "conv_dim": (16, 16, 16),
            "conv_kernel": (10, 3, 3),
            "conv_stride": (5, 2, 2),
            "num_feat_extract_layers": 3,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
            **changes,
        }
        model = transformers.AutoModel.from_config(getattr(transformers, config)(**settings))
        return Returns(model, ("input_values",), "last_hidden_state"), (torch.randn(1, 800),)

    return build


def whisper() -> Built:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=20,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    names = ("input_features", "decoder_input_ids")
    return Returns(model, names, use_cache=False), (torch.randn(1, 8, 40), tokens(1, 7))


def paired(kind: str, result: str) -> Callable[[], Built]:
    """Return a builder of a model that compares texts with pictures."""

    def build() -> Built:
        text = {
            **_BODY,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 16,
            "eos_token_id": 2,
            "bos_token_id": 1,
            "pad_token_id": 0,
        }
        vision = {**_BODY, "image_size": 32, "patch_size": 8}
        settings: dict[str, Any] = {"text_config": text, "vision_config": vision}
        if kind == "CLIP":
            settings["projection_dim"] = 16
        config = getattr(transformers, f"{kind}Config")(**settings)
        model = getattr(transformers, f"{kind}Model")(config)
        return Returns(model, ("input_ids", "pixel_values"), result), (
            tokens(2, 8),
            torch.randn(2, 3, 32, 32),
        )

    return build


def llava() -> Built:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_BODY, image_size=16, patch_size=8, projection_dim=16),
        text_config=transformers.LlamaConfig(
            **_BODY, vocab_size=VOCABULARY, max_position_embeddings=32, pad_token_id=0
        ),
        image_token_id=3,
        image_token_index=3,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    ids = torch.randint(4, VOCABULARY, (1, 12))
    ids[0, 2:6] = 3  # a picture's four patches
    return Returns(model, ("input_ids", "pixel_values"), use_cache=False), (ids, torch.randn(1, 3, 16, 16))


class Recurrent(nn.Module):
    """Words, a recurrent network of two layers, and scores of the next word."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 16)
        self.cells = kind(16, 24, 2, batch_first=True, **options)
        self.head = nn.Linear(48 if options.get("bidirectional") else 24, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Give scores."""
        scores: Tensor = self.head(self.cells(self.words(ids))[0])
        return scores


def recurrent(kind: type[nn.Module], **options: Any) -> Callable[[], Built]:
    """Return a builder of a recurrent language model."""
    return lambda: (Recurrent(kind, **options), (tokens(2, 6),))


class Residual(nn.Module):
    """A block of a diffusion U-Net: two convolutions, the time between them (Ho et al. 2020)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Linear(32, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(4, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Give features."""
        y = self.first(x) + self.time(functional.silu(time))[:, :, None, None]
        found: Tensor = self.skip(x) + self.second(y)
        return found


class UNet(nn.Module):
    """A denoiser with one level below, and attention there."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down = Residual(16, 16)
        self.shrink = nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.middle = Residual(24, 24)
        self.norm = nn.GroupNorm(4, 24)
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)
        self.grow = nn.Conv2d(24, 16, 3, padding=1)
        self.up = Residual(32, 16)
        self.leave = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Give the noise of a picture at a step."""
        rates = torch.exp(-torch.arange(8, dtype=torch.float32))
        angles = step[:, None].float() * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        fine = self.down(self.enter(x), time)
        y = self.middle(self.shrink(fine), time)
        flat = self.norm(y).flatten(2).transpose(1, 2)
        y = y + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(y.shape)
        y = self.grow(functional.interpolate(y, scale_factor=2.0, mode="nearest"))
        found: Tensor = self.leave(self.up(torch.cat([y, fine], 1), time))
        return found


def unet() -> Built:
    return UNet(), (torch.randn(1, 3, 16, 16), torch.tensor([7]))


class GraphConvolution(nn.Module):
    """Messages along edges, summed at the nodes that they reach, and a share of their mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.GRUCell(width, width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Give the nodes' new features."""
        messages = functional.relu(self.message(torch.cat([x[source], x[target]], -1)))
        total = torch.zeros_like(x).index_add(0, target, messages)
        count = torch.zeros(x.shape[0], 1).scatter_add(0, target[:, None], torch.ones(len(target), 1))
        found: Tensor = self.update(total / count.clamp(min=1), x)
        return found


class GraphNetwork(nn.Module):
    """Three rounds of messages and a score for each node."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = nn.ModuleList([GraphConvolution(16) for _ in range(3)])
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Give scores."""
        for each in self.rounds:
            x = each(x, edges[0], edges[1])
        found: Tensor = self.head(x)
        return found


def graph_network() -> Built:
    return GraphNetwork(), (torch.randn(10, 16), torch.randint(10, (2, 24)))


OTHER: dict[str, Callable[[], Built]] = {
    "wav2vec2": speech("Wav2Vec2Config"),
    "hubert": speech("HubertConfig"),
    "conformer": speech("Wav2Vec2ConformerConfig", position_embeddings_type="relative"),
    "whisper": whisper,
    "clip": paired("CLIP", "logits_per_image"),
    "siglip": paired("Siglip", "logits_per_image"),
    "llava": llava,
    "lstm": recurrent(nn.LSTM),
    "lstm-bidirectional": recurrent(nn.LSTM, bidirectional=True),
    "gru": recurrent(nn.GRU),
    "unet": unet,
    "graph-network": graph_network,
}
"""Builder by name."""
