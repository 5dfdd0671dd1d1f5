"""What follows the last block of a step: sums of gradients over devices, and the optimizer's update.

    device 0   f0 .  b0 .  |  sum  | update       weights that stages on several devices share, such as those
    device 1   .  f1 b1 .  |       | update       of replicas: an all-reduce of their gradients each

Weights that the same stages share on the same devices are summed at once, as soon as the last of these
stages is done and the devices are free, in turn, whichever is ready first. A weight that is divided is summed
part by part; one that is divided in one stage and whole in another, as a whole over all of its devices. Not
modelled: sums that overlap blocks of other stages on a device. Checked in
tests/tessel/tuned_model/test_step_end.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tessel.pipeline import devices_of, weight_bytes_by_device
from tessel.plan import Plan
from tessel.planning.cluster import Link
from tessel.planning.costs.stage_figures import ring_us
from tuner.plan import ModelPlan


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What follows the last block.

    Attributes:
        after_us: from the end of the last block to that of the step.
        sums_us: in sums of gradients, of the device that has most.
        update_us: in the optimizer's update, likewise.
    """

    after_us: float
    sums_us: float
    update_us: float


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


def step_end(plan: Plan, link: Link, *, update_us_a_byte: float = 0.0) -> StepEnd:
    """Return what follows the last block of a plan's schedule.

    Args:
        plan: its stages, and when their blocks end.
        link: between any two devices; sums go round a ring.
        update_us_a_byte: microseconds of the update for each byte of weights.
    """
    num_devices = plan.placement.devices
    stage_end_us = [0.0] * len(plan.stages)
    last_us = [0.0] * num_devices
    for start in plan.schedule.starts:
        block = plan.placement.block(start.block)
        end_us = (start.start + block.span) * plan.step_us
        stage = int(block.name[1:].partition("_")[0])
        stage_end_us[stage] = max(stage_end_us[stage], end_us)
        for device in block.devices:
            last_us[device] = max(last_us[device], end_us)
    pipeline_us = max(last_us)
    spent_us = [0.0] * num_devices
    waiting = list(gradient_sums(plan))
    while waiting:
        ready_us, each = min(
            (
                (
                    max(
                        *(stage_end_us[stage] for stage in each.stages),
                        *(last_us[device] for device in each.devices),
                    ),
                    each,
                )
                for each in waiting
            ),
            key=lambda ready: ready[0],
        )
        waiting.remove(each)
        us = ring_us(link, len(each.devices), each.num_bytes)
        for device in each.devices:
            last_us[device] = ready_us + us
            spent_us[device] += us
    update_us = [update_us_a_byte * num_bytes for num_bytes in weight_bytes_by_device(plan)]
    ends_us = [end_us + update for end_us, update in zip(last_us, update_us, strict=True)]
    return StepEnd(
        after_us=max(ends_us) - pipeline_us, sums_us=max(spent_us), update_us=max(update_us, default=0.0)
    )
