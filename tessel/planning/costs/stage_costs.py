"""Costs of runs of consecutive layers, in constant time each: sums and maxima over a profile's tables.

A plan tries many thousand cuts, and every stage is a run of layers. `LayerSums` holds the running sums of one
table (micro-batch size and tensor-parallel degree), so that a stage's time and bytes are a difference of two.
Recomputation is per layer: each layer keeps its input, runs again right before its own backward, and then
needs its activations while its backward runs. Two layers that share a tensor hold it once where they are on
the same device. Checked in tests/tessel/planning/costs/test_stage_costs.py.

Source of recomputation by layer: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.profiles.profile import Degrees, Profile, StageCosts

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LayerSums:
    """Running sums and maxima of one table of a profile; all float64.

    `x[j] - x[i]` is the sum over layers i..j-1 of what the attribute names; shape (num_layers + 1,).

    Attributes:
        num_layers: layers of the model.
        forward: microseconds.
        backward: microseconds of joint backwards, zeros for inference.
        backward_input: of input halves; zeros where the table has none.
        backward_weight: of weight halves; zeros where the table has none.
        recompute: microseconds of running forwards again.
        update: microseconds of the optimizer's step.
        gradient_pass: microseconds of passing once over all sums of gradients.
        weights: bytes of weights, tied tensors counted in each layer.
        trained: of these, bytes that have gradients and optimizer state.
        reduced: of those, bytes whose gradients are summed over replicas.
        expert_weights: of `weights`, bytes of routed experts; the same holds for
        expert_trained: of `trained`,
        expert_reduced: of `reduced`, and
        expert_update: of `update`, microseconds.
        saved: bytes kept from forward to backward; of inference, to the end of the step.
        kept: the same under recomputation: every layer's input.
        saved_for_weight: bytes kept from the input half of a split backward to its weight half.
        recomputed_for_weight: the same under recomputation.
        peak: bytes by layer that are needed only while it runs; shape (num_layers,), no sums.
        recomputed_peak: the same with what running its forward again brings back; shape (num_layers,).
        boundary: bytes handed on, by layer; shape (num_layers,).
        taken: bytes handed to each layer by the one before it; shape (num_layers,).
        tied: shared tensors.
        has_update: whether the optimizer's step was measured of any layer.
        has_backward: whether backwards were measured.
        is_splittable: whether both halves were measured of every layer.
        work: microseconds of a forward and its faster backward on average, where micro-batches differ and the
            others are what none falls below; None where these say it.
        of_degrees: tables that these are the least of, by tensor-parallel degree; empty of one table.
    """

    num_layers: int
    forward: FloatArray
    backward: FloatArray
    backward_input: FloatArray
    backward_weight: FloatArray
    recompute: FloatArray
    update: FloatArray
    gradient_pass: FloatArray
    weights: FloatArray
    trained: FloatArray
    reduced: FloatArray
    expert_weights: FloatArray
    expert_trained: FloatArray
    expert_reduced: FloatArray
    expert_update: FloatArray
    saved: FloatArray
    kept: FloatArray
    saved_for_weight: FloatArray
    recomputed_for_weight: FloatArray
    peak: FloatArray
    recomputed_peak: FloatArray
    boundary: FloatArray
    taken: FloatArray
    tied: tuple[TiedTensor, ...]
    has_update: bool
    has_backward: bool
    is_splittable: bool
    work: FloatArray | None = None
    of_degrees: tuple[tuple[int, LayerSums], ...] = ()

    def twice_held(self, runs: Iterable[tuple[int, int]]) -> tuple[float, float]:
        """Return bytes of tied tensors that these layers of one device would count more than once.

        Args:
            runs: first and last layer of each stage of the device, inclusive.

        Returns:
            Bytes of weights, and of those that are trained.
        """
        held = list(runs) if self.tied else []
        weights, trained = 0.0, 0.0
        for tensor in self.tied:
            times = sum(first <= layer <= last for layer in tensor.layers for first, last in held) - 1
            weights += max(0, times) * tensor.num_bytes
            trained += max(0, times) * tensor.trained_bytes
        return weights, trained


BY_LAYER = (
    "num_layers",
    "peak",
    "recomputed_peak",
    "boundary",
    "taken",
    "tied",
    "has_update",
    "has_backward",
    "is_splittable",
    "work",
    "of_degrees",
)
"""Attributes of `LayerSums` that are no running sums."""


class TiedTensor(NamedTuple):
    """A weight that several layers share.

    Attributes:
        name: of the tie.
        layers: that hold it, ascending.
        num_bytes: of the tensor: those of the smallest layer that holds it.
        trained_bytes: of these, bytes that have gradients, on whichever layer trains most of it.
    """

    name: str
    layers: tuple[int, ...]
    num_bytes: float
    trained_bytes: float


class TableKey(NamedTuple):
    """Which figures of a profile a layout runs with.

    Attributes:
        micro_batch: samples of a micro-batch.
        tensor_parallel: devices over which every layer is split.
        shards: devices over which first and last layer are divided instead, whose figures are then those of
            one device; 0 for none.
        joined: devices over which the layers that join two branches are divided instead, where these run side
            by side; 0 where they do not.
        context_parallel: devices over which the sequence of each sample is split.
        expert_parallel: devices over which the routed experts are divided.
    """

    micro_batch: int
    tensor_parallel: int = 1
    shards: int = 0
    joined: int = 0
    context_parallel: int = 1
    expert_parallel: int = 1

    @property
    def degrees(self) -> Degrees:
        """Which table its layers stand in, but for those that are divided otherwise."""
        return Degrees(self.micro_batch, self.tensor_parallel, self.context_parallel, self.expert_parallel)


def costs_of(profile: Profile, key: TableKey) -> tuple[StageCosts, ...]:
    """Return the costs of every layer, in model order.

    Raises:
        ScheduleError: the profile has no such table.
    """
    if key.joined:
        return profile.costs_of_branches(key.degrees, joined=key.joined)
    if key.shards:
        return profile.costs_with_shards(micro_batch=key.micro_batch, shards=key.shards)
    return profile.costs(**key.degrees._asdict())


def layer_sums(profile: Profile, key: TableKey) -> LayerSums:
    """Return the sums of one table.

    Raises:
        ScheduleError: the profile has no such table.
    """
    costs = costs_of(profile, key)
    inputs = _taken_bytes(profile, key)
    forward = [cost.forward_us for cost in costs]
    recompute = [cost.forward_us if cost.recompute_us is None else cost.recompute_us for cost in costs]
    kept = [min(cost.saved_bytes, taken) for cost, taken in zip(costs, inputs, strict=True)]
    halved = [
        cost.saved_bytes if cost.saved_for_weight_bytes is None else cost.saved_for_weight_bytes
        for cost in costs
    ]
    return LayerSums(
        num_layers=len(costs),
        forward=_sums(forward),
        backward=_sums([cost.joint_backward_us or 0.0 for cost in costs]),
        backward_input=_sums([cost.backward_input_us or 0.0 for cost in costs]),
        backward_weight=_sums([cost.backward_weight_us or 0.0 for cost in costs]),
        recompute=_sums(recompute),
        update=_sums([cost.update_us or 0.0 for cost in costs]),
        gradient_pass=_sums([cost.gradient_pass_us for cost in costs]),
        weights=_sums([cost.weight_bytes for cost in costs]),
        trained=_sums([cost.updated_bytes for cost in costs]),
        reduced=_sums([cost.summed_bytes for cost in costs]),
        expert_weights=_sums([cost.expert_bytes for cost in costs]),
        expert_trained=_sums([cost.expert_ratio * cost.updated_bytes for cost in costs]),
        expert_reduced=_sums([cost.expert_ratio * cost.summed_bytes for cost in costs]),
        expert_update=_sums([cost.expert_ratio * (cost.update_us or 0.0) for cost in costs]),
        saved=_sums([cost.saved_bytes for cost in costs]),
        kept=_sums(kept),
        saved_for_weight=_sums(halved),
        # Layers run their forwards again one by one, and keep their inputs until the last of them has.
        recomputed_for_weight=_sums([max(pair) for pair in zip(kept, halved, strict=True)]),
        peak=np.array([cost.peak_bytes for cost in costs], dtype=np.float64),
        recomputed_peak=np.array(
            [cost.peak_bytes + cost.saved_bytes - held for cost, held in zip(costs, kept, strict=True)],
            dtype=np.float64,
        ),
        boundary=np.array([cost.boundary_bytes for cost in costs], dtype=np.float64),
        taken=np.array([0.0, *(cost.boundary_bytes for cost in costs[:-1])]),
        tied=_tied(profile, costs),
        has_update=any(cost.update_us is not None for cost in costs),
        has_backward=profile.is_training,
        is_splittable=all(cost.is_splittable for cost in costs),
    )


def _taken_bytes(profile: Profile, key: TableKey) -> list[int]:
    """Return the bytes that each layer takes, without those that it relays for another branch."""
    chain = costs_of(profile, key._replace(joined=0))
    handed_on = [0, *(cost.boundary_bytes for cost in chain[:-1])]
    return [max(0, taken - cost.relayed_bytes) for taken, cost in zip(handed_on, chain, strict=True)]


def _sums(values: Sequence[float]) -> FloatArray:
    return np.concatenate(([0.0], np.cumsum(np.array(values, dtype=np.float64))))


def _tied(profile: Profile, costs: Sequence[StageCosts]) -> tuple[TiedTensor, ...]:
    layers: dict[str, list[int]] = {}
    for index, layer in enumerate(profile.layers):
        if layer.tie:
            layers.setdefault(layer.tie, []).append(index)
    return tuple(
        TiedTensor(
            name,
            tuple(held),
            num_bytes := float(min(costs[index].weight_bytes for index in held)),
            min(num_bytes, float(max(costs[index].updated_bytes for index in held))),
        )
        for name, held in sorted(layers.items())
        if len(held) > 1
    )


def largest(values: FloatArray, cuts: Sequence[tuple[int, int]]) -> FloatArray:
    """Return the largest value of each run of layers; the runs are consecutive from the first layer on."""
    starts = [first for first, _ in cuts]
    found: FloatArray = np.maximum.reduceat(values, starts)
    return found


def cuts_at(bounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return first and last layer of each stage for `bounds` 0, …, number of layers."""
    return tuple((first, after - 1) for first, after in pairwise(bounds))
