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

from tessel.planning.cluster import Optimizer

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
    """

    weights: float
    trained: float
    gathered: float = 0.0
    gradient: float = 0.0


def shares_of(sharding: str, optimizer: Optimizer | None, replicas: int) -> Shares:
    """Return what each of so many replicas holds.

    Args:
        sharding: one of `SHARDINGS`.
        optimizer: what trained weights have beside them; None where nothing is trained.
        replicas: over which it is divided.
    """
    level = SHARDINGS.index(sharding) if replicas > 1 else 0
    weights = 1 / replicas if level >= 3 else 1.0
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
