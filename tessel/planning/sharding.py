"""Sharded training state: what each replica keeps of weights, gradients and optimizer state, and its costs.

    none         each replica holds all; an all-reduce sums gradients after the last block
    optimizer    state is divided (ZeRO-1, Megatron's distributed optimizer): a reduce-scatter after the last
                 block, the update of a part, then an all-gather of weights
    gradients    and gradients (ZeRO-2): each backward has a reduce-scatter beside it, which counts as far as
                 it is longer; a layer's whole gradient exists while it is computed
    parameters   and weights (ZeRO-3, FSDP that reshards after the forward): a stage's weights are gathered
                 for its forward and for its backward, a layer ahead, beside these likewise

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (SC 2020),
sections 5 and 7; Zhao et al., PyTorch FSDP (VLDB 2023). Checked in
tests/tessel/planning/costs/test_sharding.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tessel.planning.cluster import Optimizer

_Bytes = TypeVar("_Bytes", float, npt.NDArray[np.float64])

SHARDINGS = ("none", "optimizer", "gradients", "parameters")
"""What is divided over replicas, each with all before it."""

GATHERED_LAYERS = 2
"""Layers whose weights are whole at once: the one that runs, and the next, which is gathered meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What a replica holds throughout for each byte of weights.

    Attributes:
        weights: bytes of all weights.
        trained: bytes of gradients and state, for each byte of trained weights.
        gathered: bytes beside them for each byte of the largest layer's weights.
        gradient: bytes beside them for each byte of the largest layer's trained weights.
        experts: the same of routed experts, which have replicas of their own; as all others if None.
    """

    weights: float
    trained: float
    gathered: float = 0.0
    gradient: float = 0.0
    experts: Shares | None = None

    def held(self, weights: _Bytes, trained: _Bytes, experts: _Bytes, expert_trained: _Bytes) -> _Bytes:
        """Return what is held throughout.

        Args:
            weights: bytes of weights, experts included.
            trained: of these, bytes that are trained.
            experts: of the weights, those of routed experts.
            expert_trained: of these, bytes that are trained.
        """
        own = self.experts or self
        held = self.weights * (weights - experts) + self.trained * (trained - expert_trained)
        return held + own.weights * experts + own.trained * expert_trained

    @property
    def divides_experts(self) -> bool:
        """Whether experts are whole only while their layer runs, where other weights are."""
        return self.experts is None or bool(self.experts.gathered or self.experts.gradient)


def shares_of(sharding: str, optimizer: Optimizer | None, replicas: int) -> Shares:
    """Return what each of so many replicas holds.

    Args:
        sharding: one of `SHARDINGS`.
        optimizer: what trained weights have beside them; None where nothing is trained.
        replicas: over which it is divided.
    """
    level = SHARDINGS.index(sharding) if replicas > 1 else 0
    weights = (1.0 if optimizer is None else optimizer.weight_ratio) / (replicas if level >= 3 else 1)
    gathered = float(GATHERED_LAYERS) if level >= 3 else 0.0
    if optimizer is None:
        return Shares(weights=weights, trained=0.0, gathered=gathered)
    state = optimizer.state_ratio / (replicas if level >= 1 else 1)
    gradients = optimizer.gradient_ratio / (replicas if level >= 2 else 1)
    return Shares(
        weights=weights,
        trained=gradients + state,
        gathered=gathered,
        gradient=optimizer.gradient_ratio if level >= 2 else 0.0,
    )
