"""Families of language models: which keys of a config say what, one function each.

Parameters are those of the module that transformers makes of the same config. Of a model with a tower, the
language model is read from `text_config`, or beside the tower; a tower of a kind that is not known is left
out with a note. Checked in tests/tessel/architectures/test_families.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tessel.architectures.architecture import (
    Architecture,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    Linear,
    Part,
    StateSpace,
)
from tessel.architectures.config import Config, read_config
from tessel.architectures.towers import tower_of
from tessel.errors import shown
from tessel.names import name_of_path

MAX_BLOCKS = 5000
"""Most layers of a model; the deepest published have some 200."""


def load_architecture(path: str | Path) -> Architecture:
    """Read a `config.json`, or the folder that holds it.

    Raises:
        DocumentError: it cannot be read, its `model_type` is unknown, or a value is missing or impossible.
    """
    return architecture_of(read_config(Path(path)))


def architecture_of(config: Config) -> Architecture:
    """Return the model that a config describes.

    Raises:
        DocumentError: its `model_type` is unknown, or a value is missing or impossible.
    """
    notes: tuple[str, ...] = ()
    family, whole = config.text("model_type"), config
    tower = tower_of(config)
    inner = config.inner("text_config")
    if inner is not None:
        if tower is None:
            notes = (f"{family}: the language model alone is planned, as its towers are of no known kind",)
        config, family = inner, inner.text("model_type") or family
    if family not in FAMILIES:
        raise config.refusal(
            f"model_type {shown(family)!r} is not known", f"known are {', '.join(sorted(FAMILIES))}"
        )
    found = FAMILIES[family](config)
    is_tied = whole.flag("tie_word_embeddings", default=found.is_tied)
    return replace(found, tower=tower, is_tied=is_tied, notes=notes)


def _model(
    config: Config,
    blocks: Iterable[Block],
    *,
    tied: bool = False,
    norm_width: int = 1,
    predictors: tuple[Block, ...] = (),
    positions: int = 0,
) -> Architecture:
    hidden = _hidden(config)
    path = config.path
    stem = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return Architecture(
        name=name_of_path(stem),
        family=config.text("model_type"),
        hidden=hidden,
        vocabulary=config.count("vocab_size"),
        blocks=tuple(blocks),
        is_tied=config.flag("tie_word_embeddings", default=tied),
        norm_parameters=norm_width * hidden,
        predictors=predictors,
        positions=positions,
        max_tokens=config.count("max_position_embeddings", "n_positions", default=0, least=0),
    )


def _hidden(config: Config) -> int:
    return config.count("hidden_size", "n_embd")


def _num_blocks(config: Config) -> int:
    count = config.count("num_hidden_layers", "n_layer")
    if count > MAX_BLOCKS:
        raise config.refusal(f"num_hidden_layers is {count}", f"{MAX_BLOCKS} are the most")
    return count


def _attention(
    config: Config,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    head_dim: int | None = None,
    has_norms: bool = False,
    window: int = 0,
    has_sinks: bool = False,
) -> Attention:
    heads = config.count("num_attention_heads", "n_head")
    size = config.count("head_dim", default=head_dim or max(1, _hidden(config) // heads))
    kv_heads = config.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.refusal(
            f"num_attention_heads is {heads}, no multiple of the {kv_heads} num_key_value_heads",
            "correct one of them",
        )
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        window=window,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        norm_parameters=2 * size if has_norms else 0,
        has_sinks=has_sinks,
    )


def _block(config: Config, *parts: Part, norms: int = 2) -> Block:
    hidden = _hidden(config)
    return Block(hidden=hidden, parts=parts, norm_parameters=norms * hidden)


def _dense(config: Config, *, has_bias: bool = False, is_gated: bool = True) -> FeedForward:
    return FeedForward(width=config.count("intermediate_size"), is_gated=is_gated, has_bias=has_bias)


def _windows(config: Config, default_pattern: int = 0) -> tuple[int, ...]:
    """Return the tokens that each layer's queries see, 0 for all."""
    count, window = _num_blocks(config), config.count("sliding_window", default=0, least=0)
    types = config.words("layer_types")
    if types and len(types) != count:
        raise config.refusal(f"layer_types names {len(types)} of {count} layers", "name every layer")
    if types:
        return tuple(window if each == "sliding_attention" else 0 for each in types)
    pattern = config.count("sliding_window_pattern", default=default_pattern, least=0)
    return tuple(window if pattern and (index + 1) % pattern else 0 for index in range(count))


def _llama(config: Config) -> Architecture:
    has_bias = config.flag("attention_bias", default=False)
    attention = _attention(config, qkv_bias=has_bias, out_bias=has_bias)
    dense = _dense(config, has_bias=config.flag("mlp_bias", default=False))
    return _model(config, [_block(config, attention, dense)] * _num_blocks(config))


def _mistral(config: Config) -> Architecture:
    attention = _attention(config, window=config.count("sliding_window", default=0, least=0))
    return _model(config, [_block(config, attention, _dense(config))] * _num_blocks(config))


def _qwen2(config: Config) -> Architecture:
    return _model(
        config, [_block(config, _attention(config, qkv_bias=True), _dense(config))] * _num_blocks(config)
    )


def _qwen3_attention(config: Config) -> Attention:
    has_bias = config.flag("attention_bias", default=False)
    return _attention(config, qkv_bias=has_bias, out_bias=has_bias, head_dim=128, has_norms=True)


def _qwen3(config: Config) -> Architecture:
    return _model(config, [_block(config, _qwen3_attention(config), _dense(config))] * _num_blocks(config))


def _gemma(config: Config) -> Architecture:
    attention = _attention(config, head_dim=256)
    return _model(config, [_block(config, attention, _dense(config))] * _num_blocks(config), tied=True)


def _gemma2(config: Config) -> Architecture:
    blocks = [
        _block(config, _attention(config, head_dim=256, window=window), _dense(config), norms=4)
        for window in _windows(config, default_pattern=2)
    ]
    return _model(config, blocks, tied=True)


def _gemma3(config: Config) -> Architecture:
    # Published configs leave out what transformers has as defaults.
    config = config.filled(vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4)
    blocks = [
        _block(
            config,
            _attention(config, head_dim=256, has_norms=True, window=window),
            _dense(config),
            norms=4,
        )
        for window in _windows(config, default_pattern=6)
    ]
    return _model(config, blocks, tied=True)


def _gpt2(config: Config) -> Architecture:
    hidden = _hidden(config)
    attention = replace(_attention(config, qkv_bias=True, out_bias=True), has_rotary=False)
    dense = FeedForward(
        width=config.count("n_inner", default=4 * hidden),
        is_gated=False,
        has_bias=True,
    )
    return _model(
        config,
        [_block(config, attention, dense, norms=4)] * _num_blocks(config),
        tied=True,
        norm_width=2,
        positions=config.count("n_positions", "max_position_embeddings"),
    )


def _gpt_oss(config: Config) -> Architecture:
    experts = Experts(
        count=config.count("num_local_experts", "num_experts"),
        top_k=config.count("num_experts_per_tok", "experts_per_token"),
        expert=FeedForward(width=config.count("intermediate_size"), has_bias=True),
        router_bias=True,
    )
    has_bias = config.flag("attention_bias", default=True)
    blocks = [
        _block(
            config,
            _attention(config, qkv_bias=has_bias, out_bias=has_bias, window=window, has_sinks=True),
            experts,
        )
        for window in _windows(config, default_pattern=2)
    ]
    return _model(config, blocks)


def _mixtral(config: Config) -> Architecture:
    experts = Experts(
        count=config.count("num_local_experts"),
        top_k=config.count("num_experts_per_tok"),
        expert=_dense(config),
    )
    attention = _attention(config, window=config.count("sliding_window", default=0, least=0))
    return _model(config, [_block(config, attention, experts)] * _num_blocks(config))


def _qwen_experts(config: Config, shared_width: int) -> Experts:
    return Experts(
        count=config.count("num_experts", "num_local_experts"),
        top_k=config.count("num_experts_per_tok"),
        expert=FeedForward(width=config.count("moe_intermediate_size")),
        shared=FeedForward(width=shared_width) if shared_width else None,
        has_shared_gate=bool(shared_width),
    )


def _qwen_moe(config: Config, attention: Attention, experts: Experts) -> Architecture:
    step = config.count("decoder_sparse_step", default=1)
    dense_layers = config.numbers("mlp_only_layers")
    blocks = []
    for index in range(_num_blocks(config)):
        is_sparse = index not in dense_layers and (index + 1) % step == 0
        blocks.append(_block(config, attention, experts if is_sparse else _dense(config)))
    return _model(config, blocks)


def _qwen2_moe(config: Config) -> Architecture:
    attention = _attention(config, qkv_bias=config.flag("qkv_bias", default=True))
    return _qwen_moe(
        config, attention, _qwen_experts(config, config.count("shared_expert_intermediate_size"))
    )


def _qwen3_moe(config: Config) -> Architecture:
    return _qwen_moe(config, _qwen3_attention(config), _qwen_experts(config, 0))


def _deepseek(config: Config) -> Architecture:
    has_bias = config.flag("attention_bias", default=False)
    attention = LatentAttention(
        heads=config.count("num_attention_heads"),
        query_rank=config.count("q_lora_rank", default=0, least=0),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        value_dim=config.count("v_head_dim"),
        has_bias=has_bias,
    )
    width = config.count("moe_intermediate_size")
    shared = config.count("n_shared_experts", default=0, least=0)
    experts = Experts(
        count=config.count("n_routed_experts", "num_local_experts"),
        top_k=config.count("num_experts_per_tok"),
        expert=FeedForward(width=width),
        shared=FeedForward(width=shared * width) if shared else None,
    )
    first = config.count("first_k_dense_replace", default=0, least=0)
    blocks = [
        _block(config, attention, _dense(config) if index < first else experts)
        for index in range(_num_blocks(config))
    ]
    hidden = _hidden(config)
    predictor = replace(
        _block(config, attention, experts, norms=5), joint=(Linear(2 * hidden, hidden, "outputs"),)
    )
    count = config.count("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0)
    return _model(config, blocks, predictors=(predictor,) * min(count, MAX_BLOCKS))


def _jamba(config: Config) -> Architecture:
    hidden = _hidden(config)
    mixer = StateSpace(
        inner=config.count("mamba_expand", default=2) * hidden,
        state=config.count("mamba_d_state", default=16),
        conv=config.count("mamba_d_conv", default=4),
        step_rank=math.ceil(hidden / 16)
        if config.text("mamba_dt_rank") == "auto"
        else config.count("mamba_dt_rank", default=math.ceil(hidden / 16)),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        has_bias=config.flag("mamba_proj_bias", default=False),
        has_inner_norms=True,
    )
    dense = _dense(config)
    experts = Experts(
        count=config.count("num_experts", "num_local_experts"),
        top_k=config.count("num_experts_per_tok"),
        expert=dense,
    )
    attention = replace(_attention(config), has_rotary=False)
    attends = (config.count("attn_layer_period"), config.count("attn_layer_offset", least=0))
    routes = (config.count("expert_layer_period"), config.count("expert_layer_offset", least=0))
    blocks = [
        _block(
            config,
            attention if index % attends[0] == attends[1] else mixer,
            experts if experts.count > 1 and index % routes[0] == routes[1] else dense,
        )
        for index in range(_num_blocks(config))
    ]
    return _model(config, blocks)


_HYBRID = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
    **{name: name for name in ("mamba", "attention", "mlp", "moe")},
}
"""Kinds of layers of hybrids by the letter of a pattern or the word of a list."""


def _nemotron_h(config: Config) -> Architecture:
    def kinds(name: str, pattern: str) -> tuple[str, ...]:
        given = config.words(name) or tuple(config.text(pattern))
        if unknown := next((each for each in given if each not in _HYBRID), None):
            raise config.refusal(
                f"it has a layer of kind {shown(unknown)!r}", f"known are {', '.join(_HYBRID)}"
            )
        return tuple(_HYBRID[each] for each in given)

    has_bias = config.flag("use_bias", default=False)
    heads = config.count("mamba_num_heads")
    mlp_bias = config.flag("mlp_bias", default=False)
    shared = config.count("moe_shared_expert_intermediate_size", default=0, least=0)
    parts: dict[str, Callable[[], Part]] = {
        "mamba": lambda: StateSpace(
            inner=heads * config.count("mamba_head_dim"),
            state=config.count("ssm_state_size"),
            conv=config.count("conv_kernel", default=4),
            groups=config.count("n_groups", default=8),
            heads=heads,
            conv_bias=config.flag("use_conv_bias", default=True),
            has_bias=has_bias,
        ),
        "attention": lambda: replace(_attention(config, head_dim=128), has_rotary=False),
        "mlp": lambda: _dense(config, has_bias=mlp_bias, is_gated=False),
        "moe": lambda: Experts(
            count=config.count("n_routed_experts"),
            top_k=config.count("num_experts_per_tok"),
            expert=FeedForward(width=config.count("moe_intermediate_size"), is_gated=False),
            shared=FeedForward(width=shared, is_gated=False, has_bias=mlp_bias) if shared else None,
            latent=config.count("moe_latent_size", default=0, least=0),
        ),
    }
    order = kinds("layers_block_type", "hybrid_override_pattern")
    if not order:
        raise config.refusal("it has no hybrid_override_pattern", "give the config.json of the model")
    made = {kind: _block(config, parts[kind](), norms=1) for kind in dict.fromkeys(order)}
    predictors: tuple[Block, ...] = ()
    count = config.count("num_nextn_predict_layers", default=0, least=0)
    if count:
        hidden = _hidden(config)
        inner = kinds("mtp_layers_block_type", "mtp_hybrid_override_pattern") or ("attention", "moe")
        predictor = Block(
            hidden=hidden,
            parts=tuple(parts[kind]() for kind in inner),
            norm_parameters=(len(inner) + 3) * hidden,
            joint=(Linear(2 * hidden, hidden, "outputs"),),
        )
        predictors = (predictor,) * min(count, MAX_BLOCKS)
    return _model(config, [made[kind] for kind in order], predictors=predictors)


FAMILIES: dict[str, Callable[[Config], Architecture]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "jamba": _jamba,
    "nemotron_h": _nemotron_h,
}
"""By `model_type`."""
