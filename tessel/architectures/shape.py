"""At what sizes, degrees and with which recipe a layer runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tessel.errors import UsageError

RECOMPUTED = ("layernorm", "core_attn", "mla_up_proj", "mlp", "moe_act", "shared_experts", "moe")
"""Parts whose forward can run again in place of keeping what it makes, by Megatron-Core's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is trained, apart from its degrees.

    Attributes:
        tokens: of a sequence.
        dtype: of products; in `fp8`, what they keep takes a byte an element.
        recompute: of `RECOMPUTED`, what runs its forward again.
        has_sequence_parallel: whether what tensor parallelism leaves whole is split by tokens.
        has_flash_attention: whether scores are never stored.
        has_dropout: whether attention and each part before the residual drop elements, whose masks are kept.
        has_fused_loss: whether the loss keeps its gradient in place of logits, in 16 bits.
        has_compiled_loss: of a loss that does not: whether it is compiled, as Megatron-Core's own fusion
            is, whose kernels write beside the 32-bit logits what else is made in their place.
        context_exchange: how devices of a context-parallel group see each other's keys: `ring`, passed on
            beside attention, or `all_to_all`, each device with all tokens of some heads.
        overlaps_tensor: whether exchanges of tensor parallelism run in parts beside the products next to
            them, as with TransformerEngine's user buffers or asynchronous tensor parallelism; if not, all are
            waited for.
        imbalance: rows of the fullest device's experts over the mean.
        dispatch: how tokens go to experts: `nccl`, once for each expert; `deepep`, once for each node over
            the network, and on from there within it.
        splits_experts: whether tensor parallelism divides each routed expert; if not, its devices have
            whole experts each, as with Megatron's expert tensor parallelism of 1.
        fuses_sums: whether products add a weight's gradient to its 32-bit sum themselves.
    """

    tokens: int
    dtype: Literal["bf16", "fp8"] = "bf16"
    recompute: frozenset[str] = frozenset()
    has_sequence_parallel: bool = True
    has_flash_attention: bool = True
    has_dropout: bool = False
    has_fused_loss: bool = True
    has_compiled_loss: bool = True
    context_exchange: Literal["ring", "all_to_all"] = "ring"
    overlaps_tensor: bool = False
    imbalance: float = 1.0
    dispatch: Literal["nccl", "deepep"] = "deepep"
    splits_experts: bool = True
    fuses_sums: bool = True

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"--seq is {self.tokens}; give the tokens of a sequence, at least 1")
        if not 1 <= self.imbalance <= 1000:
            raise UsageError(
                f"--imbalance is {self.imbalance:g}; give the rows of the fullest device's experts over the "
                "mean, at least 1"
            )
        if unknown := sorted(self.recompute - set(RECOMPUTED)):
            raise UsageError(f"--recompute has {unknown[0]!r}; choose of {', '.join(RECOMPUTED)}")

    @property
    def kept_bytes(self) -> float:
        """Bytes of an element that a product keeps for its weight's gradient."""
        return 1.03125 if self.dtype == "fp8" else 2.0  # a scale for each 32 elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One point at which a table gives the layers' costs.

    Attributes:
        recipe: how the model is trained.
        micro_batch: sequences.
        tensor_parallel: devices over which layers are split. The same holds for
        context_parallel: sequences, and
        expert_parallel: routed experts, among devices of tensor-parallel groups each.
    """

    recipe: Recipe
    micro_batch: int
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1

    @property
    def rows(self) -> float:
        """Tokens of a tensor-parallel group."""
        return self.micro_batch * self.recipe.tokens / self.context_parallel

    @property
    def own_rows(self) -> float:
        """Tokens of a device, where what tensor parallelism leaves whole is split by tokens."""
        return self.rows / (self.tensor_parallel if self.recipe.has_sequence_parallel else 1)
