"""Language models of the `transformers` package in tiny configurations, with random weights.

Every function returns a module that gives one tensor of logits or hidden states, and example inputs. Nothing
is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]

VOCABULARY = 97
LENGTH = 12
BATCH = 2

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Returns(nn.Module):
    """A model of `transformers` that takes tensors by position and gives one of its results.

    Attributes:
        model: the model.
        names: of its arguments, in order.
        result: name of the result.
    """

    def __init__(
        self, model: nn.Module, names: tuple[str, ...], result: str = "logits", **options: Any
    ) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.result = result
        self.options = options

    def forward(self, *tensors: Tensor) -> Tensor:
        """Give the result."""
        given = dict(zip(self.names, tensors, strict=True))
        found: Tensor = getattr(self.model(**given, **self.options), self.result)
        return found


def tokens(batch: int = BATCH, length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def padding_mask(batch: int = BATCH, length: int = LENGTH) -> Tensor:
    """Give a mask in which the last example ends early."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length - 4 :] = 0
    return mask


def decoder(
    config: str, attention: str = "sdpa", *, dtype: torch.dtype = torch.float32, **changes: Any
) -> Callable[[], Built]:
    """Return a builder of a causal language model; without a kind of attention where it has but one."""

    def build() -> Built:
        settings = {**_SMALL, **changes}
        chosen = {"attn_implementation": attention} if attention else {}
        model = transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, config)(**settings), dtype=dtype, **chosen
        )
        return Returns(model, ("input_ids",), use_cache=False), (tokens(),)

    return build


def encoder(
    config: str, *, masked: bool = False, attention: str = "sdpa", **changes: Any
) -> Callable[[], Built]:
    """Return a builder of a model that gives a hidden state for each token."""

    def build() -> Built:
        settings = {**_SMALL, **changes}
        model = transformers.AutoModel.from_config(
            getattr(transformers, config)(**settings), attn_implementation=attention
        )
        names, inputs = ("input_ids",), (tokens(),)
        if masked:
            names, inputs = ("input_ids", "attention_mask"), (tokens(), padding_mask())
        return Returns(model, names, "last_hidden_state"), inputs

    return build


def translator(config: str, **changes: Any) -> Callable[[], Built]:
    """Return a builder of an encoder and decoder over tokens."""

    def build() -> Built:
        settings = {
            "vocab_size": VOCABULARY,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 0,
            **changes,
        }
        model = transformers.AutoModelForSeq2SeqLM.from_config(getattr(transformers, config)(**settings))
        inputs = tokens(), tokens(length=7)
        return Returns(model, ("input_ids", "decoder_input_ids"), use_cache=False), inputs

    return build


_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
}

_KEY_VALUE = {"num_key_value_heads": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, **_KEY_VALUE}

LANGUAGE: dict[str, Callable[[], Built]] = {
    "gpt2": decoder("GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "gpt2-eager": decoder("GPT2Config", "eager", n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "gpt2-bfloat16": decoder(
        "GPT2Config", dtype=torch.bfloat16, n_embd=32, n_layer=2, n_head=4, n_positions=32
    ),
    "llama-2": decoder("LlamaConfig"),
    "llama-2-eager": decoder("LlamaConfig", "eager"),
    "llama-3": decoder(
        "LlamaConfig",
        **_KEY_VALUE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "qwen2-float16": decoder("Qwen2Config", **_KEY_VALUE, dtype=torch.float16),
    "mistral": decoder("MistralConfig", **_KEY_VALUE, sliding_window=8),
    "qwen2": decoder("Qwen2Config", **_KEY_VALUE),
    "qwen3": decoder("Qwen3Config", **_KEY_VALUE, head_dim=8),
    "gemma-2": decoder("Gemma2Config", "eager", **_KEY_VALUE, head_dim=8, sliding_window=8),
    "gemma-3": decoder("Gemma3TextConfig", **_KEY_VALUE, head_dim=8, sliding_window=8),
    "phi-3": decoder("Phi3Config", **_KEY_VALUE),
    "gpt-neox": decoder("GPTNeoXConfig"),
    "opt": decoder("OPTConfig", ffn_dim=48, word_embed_proj_dim=32),
    "bloom": decoder("BloomConfig", "", n_layer=2, n_head=4),
    "falcon": decoder("FalconConfig"),
    "olmo": decoder("OlmoConfig"),
    "starcoder2": decoder("Starcoder2Config", **_KEY_VALUE),
    "granite": decoder("GraniteConfig", **_KEY_VALUE),
    "deepseek-v2": decoder(
        "DeepseekV2Config",
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        topk_method="group_limited_greedy",
        first_k_dense_replace=1,
        n_shared_experts=1,
        moe_intermediate_size=24,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        num_key_value_heads=4,
    ),
    "mixtral": decoder("MixtralConfig", **_KEY_VALUE, num_local_experts=4),
    "qwen2-moe": decoder("Qwen2MoeConfig", **_EXPERTS, shared_expert_intermediate_size=24),
    "olmoe": decoder("OlmoeConfig", **_EXPERTS),
    "mamba": decoder("MambaConfig", "", state_size=8, time_step_rank=4),
    "recurrent-gemma": decoder(
        "RecurrentGemmaConfig", "", **_KEY_VALUE, lru_width=32, attention_window_size=8, num_hidden_layers=3
    ),
    "bert": encoder("BertConfig"),
    "bert-mask": encoder("BertConfig", masked=True),
    "bert-mask-eager": encoder("BertConfig", masked=True, attention="eager"),
    "roberta-mask": encoder("RobertaConfig", masked=True),
    "distilbert-mask": encoder("DistilBertConfig", masked=True, dim=32, hidden_dim=48, n_layers=2, n_heads=4),
    "deberta-v2-mask": encoder("DebertaV2Config", masked=True, attention="eager"),
    "albert-mask": encoder(
        "AlbertConfig", masked=True, embedding_size=16, num_hidden_layers=4, num_hidden_groups=2
    ),
    "electra": encoder("ElectraConfig", embedding_size=16),
    "t5": translator(
        "T5Config", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4
    ),
    "bart": translator("BartConfig", **_BART),
    "marian": translator("MarianConfig", **_BART),
}
"""Builder by name."""
