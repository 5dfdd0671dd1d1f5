"""Families of towers for pictures: which keys of a config say what, one function each.

Parameters are those of the module that transformers makes of the same config. Checked in
tests/tessel/architectures/test_towers.py.
Source: Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023); Agrawal et al., Pixtral 12B (2024),
section 2; Bai et al., Qwen2.5-VL (2025), section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable

from tessel.architectures.architecture import Attention, Block, FeedForward, Linear, Tower
from tessel.architectures.config import Config

COLOURS = 3
MAX_DEPTH = 1000
"""Most blocks of a tower; the deepest published have some 60."""


def tower_of(config: Config) -> Tower | None:
    """Return the tower that a config describes; None where it has none, or one of a kind that is not known.

    Raises:
        DocumentError: a value of a known tower is missing or impossible.
    """
    vision = config.inner("vision_config")
    family = TOWERS.get(config.text("model_type"))
    return None if vision is None or family is None else family(config, vision)


def _width(config: Config) -> int:
    """Return the elements of the language model's tokens."""
    return (config.inner("text_config") or config).count("hidden_size")


def _blocks(
    vision: Config, *, has_bias: bool, is_gated: bool, norms: int, has_rotary: bool, windows: tuple[int, ...]
) -> tuple[Block, ...]:
    hidden, heads = vision.count("hidden_size"), vision.count("num_attention_heads", "num_heads")
    if hidden % heads:
        raise vision.refusal(
            f"the tower's hidden_size is {hidden}, no multiple of its {heads} heads", "correct one of them"
        )
    dense = FeedForward(width=vision.count("intermediate_size"), is_gated=is_gated, has_bias=has_bias)
    return tuple(
        Block(
            hidden=hidden,
            parts=(
                Attention(
                    heads=heads,
                    kv_heads=heads,
                    head_dim=hidden // heads,
                    window=window,
                    qkv_bias=has_bias,
                    out_bias=has_bias,
                    has_rotary=has_rotary,
                    is_causal=False,
                ),
                dense,
            ),
            norm_parameters=norms * hidden,
        )
        for window in windows
    )


def _depth(vision: Config) -> int:
    depth = vision.count("num_hidden_layers", "depth")
    if depth > MAX_DEPTH:
        raise vision.refusal(f"the tower has {depth} blocks", f"{MAX_DEPTH} are the most")
    return depth


def _side(vision: Config) -> int:
    """Return the patches along the side of the largest picture."""
    return vision.count("image_size") // vision.count("patch_size")


def _patch(vision: Config, *, has_bias: bool, frames: int = 1) -> Linear:
    colours = vision.count("num_channels", "in_channels", "in_chans", default=COLOURS)
    pixels = frames * colours * vision.count("patch_size") ** 2
    return Linear(pixels, vision.count("hidden_size"), has_bias=has_bias)


def _gemma3(config: Config, vision: Config) -> Tower:
    hidden, patches = vision.count("hidden_size"), _side(vision) ** 2
    tokens = config.count("mm_tokens_per_image", default=256)
    if patches % tokens:
        raise config.refusal(
            f"mm_tokens_per_image is {tokens}, which does not divide a picture's {patches} patches",
            "correct one of them",
        )
    return Tower(
        patch=_patch(vision, has_bias=True),
        vectors=patches * hidden,
        blocks=_blocks(
            vision, has_bias=True, is_gated=False, norms=4, has_rotary=False, windows=(0,) * _depth(vision)
        ),
        projector=(Linear(hidden, _width(config)),),
        projector_vectors=3 * hidden,
        merged=patches // tokens,
        tokens=tokens,
    )


def _mistral3(config: Config, vision: Config) -> Tower:
    hidden, width = vision.count("hidden_size"), _width(config)
    merge = config.count("spatial_merge_size", default=2)
    has_bias = config.flag("multimodal_projector_bias", default=False)
    return Tower(
        patch=_patch(vision, has_bias=False),
        vectors=hidden,
        blocks=_blocks(
            vision, has_bias=False, is_gated=True, norms=2, has_rotary=True, windows=(0,) * _depth(vision)
        ),
        projector=(
            Linear(merge**2 * hidden, hidden),
            Linear(hidden, width, has_bias=has_bias),
            Linear(width, width, has_bias=has_bias),
        ),
        projector_vectors=hidden,
        merged=merge**2,
        tokens=0,
    )


def _qwen2_5_vl(config: Config, vision: Config) -> Tower:
    hidden, depth = vision.count("hidden_size"), _depth(vision)
    merge = vision.count("spatial_merge_size", default=2)
    window = (vision.count("window_size", default=112) // vision.count("patch_size")) ** 2
    whole = vision.numbers("fullatt_block_indexes") or (7, 15, 23, 31)
    joined = merge**2 * hidden
    return Tower(
        patch=_patch(vision, has_bias=False, frames=vision.count("temporal_patch_size", default=2)),
        blocks=_blocks(
            vision,
            has_bias=True,
            is_gated=True,
            norms=2,
            has_rotary=True,
            windows=tuple(0 if index in whole else window for index in range(depth)),
        ),
        projector=(Linear(joined, joined, has_bias=True), Linear(joined, _width(config), has_bias=True)),
        projector_vectors=hidden,
        merged=merge**2,
        tokens=0,
    )


TOWERS: dict[str, Callable[[Config, Config], Tower]] = {
    "gemma3": _gemma3,
    "mistral3": _mistral3,
    "qwen2_5_vl": _qwen2_5_vl,
}
"""By `model_type` of the whole model."""
