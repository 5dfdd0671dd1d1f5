"""Figures of the measured stages of a model, in the terms in which every step is planned.

`tessel.planning.costs` makes blocks of these figures, adds up memory, and ends the step, for measured stages
as for a table of timings. Stages run on the devices that they were cut for: in order, several on each, or, if
divided into shards, on all of them at once.

    device 0   f0 .  b0 .  |  sum  | update       weights that stages on several devices share, such as those
    device 1   .  f1 b1 .  |       | update       of replicas: an all-reduce of their gradients each

Weights that the same stages share on the same devices are summed at once, as soon as the last of these stages
is done and the devices are free. A weight that is divided is summed part by part; one that is divided in one
stage and whole in another, as a whole over all of its devices. Checked in
tests/tessel/tuned_model/test_model_figures.py and tests/tessel/test_one_builder.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tessel.planning.cluster import OPTIMIZERS, Link
from tessel.planning.costs.collectives import Collective
from tessel.planning.costs.held_bytes import HeldBytes, static_bytes
from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.costs.stage_figures import (
    StageFigures,
    halves_replace_joint,
)
from tessel.planning.sharding import shares_of
from tessel.profiles.profile import StageCosts
from tessel.profiles.stage_cost import costs_of_stages
from tuner.plan import ModelPlan, StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSum:
    """One all-reduce of gradients.

    Attributes:
        devices: that take part, ascending.
        stages: whose gradients are summed.
        num_bytes: of each device.
    """

    devices: tuple[int, ...]
    stages: tuple[int, ...]
    num_bytes: int


def figures_of_model(
    tuned: ModelPlan,
    *,
    optimizer: str = "sgd",
    memory_limit_bytes: int | None = None,
    link: Link | None = None,
    update_us_a_byte: float = 0.0,
    keeps_joint: bool = False,
    sharding: str = "none",
) -> StageFigures:
    """Return what measured stages take and hold, and what follows their last blocks.

    Args:
        tuned: the stages, where they run, and their hop latencies.
        optimizer: a key of `OPTIMIZERS`.
        memory_limit_bytes: memory of one device; None for no limit.
        link: between any two devices, over which gradients are summed round a ring; None to leave that out.
        update_us_a_byte: microseconds of the update for each byte of trained weights.
        keeps_joint: whether joint backwards stay where their halves take no longer.
        sharding: what copies of the pipeline divide among them: `none`, or `optimizer`, its state.
    """
    shares = shares_of(sharding, OPTIMIZERS[optimizer] if tuned.training else None, tuned.replicas)
    parts = 1 if sharding == "none" else tuned.replicas
    costs = costs_of_stages(tuned.stages)
    recomputes = np.array([stage.recomputes for stage in tuned.stages])
    again = np.where(recomputes, [cost.forward_us for cost in costs], 0.0)
    joint, halves = _backwards(costs, again)
    is_dominated = halves is not None and halves_replace_joint(joint, *halves, recomputes)
    groups = devices_of(tuned)
    held = held_by_device(tuned)
    num_stages = len(costs) // tuned.replicas
    return StageFigures(
        groups=groups,
        forward_us=_array(cost.forward_us for cost in costs),
        backward_us=joint if tuned.training and (keeps_joint or not is_dominated) else None,
        backward_input_us=halves[0] if halves else None,
        backward_weight_us=halves[1] if halves else None,
        hop_us=_array((*tuned.hop_latency_us, 0.0)),
        kept_bytes=_array(stage.kept_bytes * tuned.training for stage in tuned.stages),
        halved_bytes=_array(map(_halved_bytes, tuned.stages, costs)),
        trained_bytes=tuple(round(each.trained) for each in held),
        frozen_bytes=tuple(round(each.weights - each.trained) for each in held),
        static_bytes=tuple(
            static_bytes(each, OPTIMIZERS[optimizer] if tuned.training else None, shares=shares)
            for each in held
        ),
        memory_bytes=None if memory_limit_bytes is None else (memory_limit_bytes,) * len(held),
        synchronisations=()
        if link is None or not tuned.training
        else _synchronisations(tuned, link, sharding),
        ties=(),
        update_us=tuple(update_us_a_byte * each.trained / parts for each in held),
        gather_us=_gathers(tuned, groups, optimizer, link if parts > 1 else None),
        chains=tuple(tuple(range(first, first + num_stages)) for first in range(0, len(costs), num_stages)),
        next_stages=_next_stages(tuned),
    )


def devices_of(tuned: ModelPlan) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each stage: those that it was cut for, or else as `devices_of_stages` says.

    Raises:
        ValueError: they are not those of its shards, or a device is left out.
    """
    devices = tuned.stage_devices or devices_of_stages(tuned.stages)
    used = {device for each in devices for device in each}
    counts = [1 if stage.shards is None else stage.shards.num_shards for stage in tuned.stages]
    if [len(each) for each in devices] != counts or used != set(range(len(used))):
        raise ValueError(
            f"the stages lie on devices {devices}, which are not one for each shard or leave a device out; "
            "tune the model again"
        )
    return devices


def devices_of_stages(stages: Sequence[StagePlan]) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each stage: the next one by itself, or all of them for a stage with shards.

    Raises:
        ValueError: a stage has more or fewer shards than there are other stages, one for each device.
    """
    alone = [stage for stage in stages if stage.shards is None]
    every = tuple(range(len(alone)))
    for stage in stages:
        if stage.shards is not None and stage.shards.num_shards != len(every):
            raise ValueError(
                f"{stage.name} has {stage.shards.num_shards} shards, and the stages without fill "
                f"{len(every)} devices; tune the model again"
            )
    following = iter(every)
    return tuple((next(following),) if stage.shards is None else every for stage in stages)


def held_by_device(tuned: ModelPlan) -> tuple[HeldBytes, ...]:
    """Return the weights of each device, and what the recomputing backward that holds most adds to them.

    A tied tensor counts once on each device. What is made once of weights that stay as they are is held
    beside them.
    """
    devices = devices_of(tuned)
    every = range(1 + max(max(each) for each in devices))
    weights, bound, running = [0] * len(every), [0] * len(every), [0] * len(every)
    for stage, own in zip(tuned.stages, devices, strict=True):
        for device in own:
            weights[device] += stage.weight_bytes
            bound[device] += stage.bound_bytes
            if stage.recomputes:
                running[device] = max(running[device], stage.saved_bytes - stage.kept_bytes)
    for group, num_bytes in zip(tuned.tied, tuned.tied_bytes, strict=bool(tuned.tied_bytes)):
        holders = Counter(device for member in group for device in devices[member.stage])
        for device, times in holders.items():
            weights[device] -= (times - 1) * num_bytes
    return tuple(
        HeldBytes(
            weights=weights[device] + bound[device],
            trained=weights[device] if tuned.training else 0,
            running=running[device],
        )
        for device in every
    )


def gradient_sums(tuned: ModelPlan) -> tuple[GradientSum, ...]:
    """Return the sums of gradients of a step over several devices, those of most bytes first."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for stages, num_bytes in _shared(tuned):
        for own in _holders(tuned, stages):
            if len(own) > 1 and num_bytes:
                found[own, stages] = found.get((own, stages), 0) + num_bytes
    sums = (
        GradientSum(devices=own, stages=stages, num_bytes=num_bytes)
        for (own, stages), num_bytes in found.items()
    )
    return tuple(sorted(sums, key=lambda each: (-each.num_bytes, each.devices, each.stages)))


def _array(values: Iterable[float]) -> FloatArray:
    return np.array(list(values), dtype=np.float64)


def _backwards(
    costs: Sequence[StageCosts], again_us: FloatArray
) -> tuple[FloatArray, tuple[FloatArray, FloatArray] | None]:
    """Return joint backwards and, where every stage has them, halves, each with its recomputation."""
    joint = _array(cost.joint_backward_us or 0.0 for cost in costs) + again_us
    if not all(cost.is_splittable for cost in costs):
        return joint, None
    first = _array(cost.backward_input_us or 0.0 for cost in costs) + again_us
    return joint, (first, _array(cost.backward_weight_us or 0.0 for cost in costs))


def _halved_bytes(stage: StagePlan, cost: StageCosts) -> int:
    """Return what a stage holds from its input half to its weight half."""
    halved = cost.saved_bytes if cost.saved_for_weight_bytes is None else cost.saved_for_weight_bytes
    return max(stage.kept_bytes, halved) if stage.recomputes else halved


def _next_stages(tuned: ModelPlan) -> tuple[tuple[int, ...], ...]:
    after: list[list[int]] = [[] for _ in tuned.stages]
    for stage, earlier in enumerate(tuned.before):
        for source in earlier:
            after[source].append(stage)
    return tuple(map(tuple, after))


def _synchronisations(tuned: ModelPlan, link: Link, sharding: str) -> tuple[Collective, ...]:
    """Return the sums of gradients; copies of a stage that divide the state keep their part of theirs."""
    found = []
    for each in gradient_sums(tuned):
        is_of_copies = len({stage % tuned.stages_of_copy for stage in each.stages}) == 1
        exchange = link.scatter_us if sharding != "none" and is_of_copies else link.all_reduce_us
        us = exchange(each.num_bytes, len(each.devices))
        found.append(Collective(stages=each.stages, us=us, devices=each.devices))
    return tuple(found)


def _gathers(
    tuned: ModelPlan, groups: Sequence[Sequence[int]], optimizer: str, link: Link | None
) -> tuple[float, ...]:
    """Return microseconds by device of gathering the weights that copies have updated a part of each."""
    found = [0.0] * (1 + max(max(group) for group in groups))
    if link is None or not tuned.training or not OPTIMIZERS[optimizer].updates:
        return tuple(found)
    count = tuned.stages_of_copy
    for number, (stage, group) in enumerate(zip(tuned.stages, groups, strict=True)):
        holders = {each for other in groups[number % count :: count] for each in other}
        num_bytes = stage.weight_bytes * OPTIMIZERS[optimizer].exchanged_ratio
        for device in group:
            found[device] += link.scatter_us(num_bytes, len(holders) // len(group))
    return tuple(found)


def _shared(tuned: ModelPlan) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield stages that share weights, and the bytes of these on one device.

    Of weights that only copies share, a plan has no bytes by themselves: they are the rest of a stage's.
    """
    num_stages = len(tuned.stages) // tuned.replicas
    rest = [stage.weight_bytes for stage in tuned.stages[:num_stages]]
    for group, num_bytes in zip(tuned.tied, tuned.tied_bytes, strict=bool(tuned.tied_bytes)):
        stages = tuple(sorted({member.stage for member in group}))
        for stage in stages:
            if stage < num_stages:
                rest[stage] -= num_bytes
        yield stages, num_bytes
    if tuned.replicas > 1:
        for number, num_bytes in enumerate(rest):
            yield tuple(range(number, len(tuned.stages), num_stages)), max(0, num_bytes)


def _holders(tuned: ModelPlan, stages: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the devices that hold the same part of a weight of these stages."""
    devices = [devices_of(tuned)[stage] for stage in stages]
    if len({len(own) for own in devices}) > 1:
        yield tuple(sorted({device for own in devices for device in own}))
        return
    yield from dict.fromkeys(tuple(sorted(set(part))) for part in zip(*devices, strict=True))
