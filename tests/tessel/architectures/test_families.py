from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tessel.architectures.config import Config
from tessel.architectures.families import FAMILIES, architecture_of, load_architecture
from tessel.errors import DocumentError

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"

PUBLISHED = {
    # Billions of parameters and of those that a token uses, as the model's card or paper states them.
    "llama-2-7b": (6.738, 6.738),
    "llama-3.1-8b": (8.030, 8.030),
    "llama-3.1-70b": (70.554, 70.554),
    "llama-3.1-405b": (405.85, 405.85),
    "gpt-3-175b": (174.6, 174.6),
    "mixtral-8x7b": (46.70, 12.9),
    "mixtral-8x22b": (140.6, 39.1),
    "deepseek-v2": (235.7, 21.4),
    "deepseek-v3": (671.0, 37.6),
    "kimi-k2": (1026.0, 32.9),
    "qwen3-30b-a3b": (30.53, 3.35),
    "qwen3-235b-a22b": (235.1, 22.2),
    "gpt-oss-120b": (116.83, 5.7),
    "nemotron-3-nano": (31.6, 3.6),
    "nemotron-3-super": (120.6, 12.7),
    "gemma-3-27b": (27.43, 27.01),
    "qwen2.5-vl-7b": (8.292, 7.616),
}

SMALL: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"head_dim": 24},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "gemma": {"head_dim": 24},
    "gemma2": {"head_dim": 24},
    "gemma3_text": {"head_dim": 24},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 32},
    "gpt_oss": {"num_local_experts": 6},
    "mixtral": {"num_local_experts": 6},
    "qwen2_moe": {
        "num_experts": 6,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "decoder_sparse_step": 2,
    },
    "qwen3_moe": {"num_experts": 6, "moe_intermediate_size": 40, "mlp_only_layers": [1]},
    "deepseek_v2": {
        "n_routed_experts": 6,
        "moe_intermediate_size": 40,
        "q_lora_rank": None,
        "kv_lora_rank": 24,
        "first_k_dense_replace": 1,
        "num_experts_per_tok": 2,
    },
    "deepseek_v3": {
        "n_routed_experts": 8,
        "moe_intermediate_size": 40,
        "q_lora_rank": 32,
        "kv_lora_rank": 24,
        "first_k_dense_replace": 1,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 0,
    },
    "jamba": {
        "num_experts": 4,
        "num_hidden_layers": 8,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
    },
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 24,
        "moe_latent_size": 32,
        "n_routed_experts": 4,
    },
}
"""A small model of each family that transformers knows, with what tells its layers apart."""


def published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_model_has_its_published_parameters(name: str) -> None:
    found = load_architecture(CONFIGS / f"{name}.json")
    total, used = PUBLISHED[name]
    assert found.parameters == pytest.approx(total * 1e9, rel=2e-3)
    assert found.used_parameters == pytest.approx(used * 1e9, rel=0.02)


def test_every_example_is_held_against_its_published_total() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(PUBLISHED)


def test_deepseek_v3_predicts_with_the_published_further_parameters() -> None:
    (predictor,) = load_architecture(CONFIGS / "deepseek-v3.json").predictors
    # The checkpoint has 14 billion more, of which embedding and head are shared copies of 0.9 billion each.
    assert predictor.parameters == pytest.approx(11.6e9, rel=0.01)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("family", sorted(SMALL))
def test_parameters_are_those_of_the_module_that_transformers_makes(family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    usual = {
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 100,
    }
    if family.startswith("deepseek"):
        del usual["head_dim"]
        usual["num_key_value_heads"] = 4
    if family == "gpt2":
        usual = {"vocab_size": 100}
    if family == "nemotron_h":
        del usual["num_hidden_layers"]
    settings = transformers.AutoConfig.for_model(family, **{**usual, **SMALL[family]})
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(settings)
    held = {id(each): each.numel() for each in module.parameters()}
    found = architecture_of(Config(settings.to_dict(), Path("config.json")))
    assert found.parameters == sum(held.values())


def test_families_of_transformers_are_all_tried() -> None:
    # The first has the module of deepseek_v3, the others that of test_towers.py.
    assert set(FAMILIES) - set(SMALL) == {"kimi_k2", "qwen2_5_vl", "qwen2_5_vl_text"}


def test_an_unknown_model_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mambo"}')
    with pytest.raises(DocumentError, match="model_type 'mambo' is not known; known are deepseek_v2"):
        load_architecture(path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": "8k"}, "hidden_size is 8k"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"vocab_size": None}, "it has no vocab_size"),
        ({"num_key_value_heads": 5}, "num_attention_heads is 32, no multiple of the 5"),
        ({"attention_bias": 3}, "attention_bias is 3"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000"),
    ],
)
def test_an_impossible_value_is_refused_by_its_key(changed: dict[str, Any], said: str) -> None:
    values = {**published("llama-3.1-8b"), **changed}
    with pytest.raises(DocumentError, match=said) as refused:
        architecture_of(Config(values, Path("config.json")))
    assert "\n" not in str(refused.value)


def test_a_model_with_towers_is_read_as_its_language_model() -> None:
    inner = published("llama-3.1-8b")
    found = architecture_of(Config({"model_type": "gemma3", "text_config": inner}, Path("config.json")))
    assert found.parameters == load_architecture(CONFIGS / "llama-3.1-8b.json").parameters
    assert found.notes
