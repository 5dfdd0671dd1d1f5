"""Copies of a pipeline side by side: data parallelism as stages that hold the same weights.

    device 0   f0 .  b0 .         copy 0: stages 0 and 1, micro-batches 0, 2, 4, …
    device 1   .  f1 b1
    device 2   f2 .  b2 .         copy 1: stages 2 and 3, micro-batches 1, 3, 5, …
    device 3   .  f3 b3

Mirrored, both copies share all devices, in opposite directions (Chimera, the x shape), so that each device
has a stage of each:

    device 0   f0 . . f3 b3 . . b0
    device 1   . f1 f2 . . b2 b1 .

Stage s + S is stage s again, on devices of its own, and a weight that both hold is tied: its gradient is the
sum over them. So whatever runs, trains or checks tied weights does the same for copies. Checked in
tests/tessel/tuned_model/test_replicas.py.

Source of the mirrored copies: Li and Hoefler, Chimera (SC 2021), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessel.errors import ScheduleError
from tessel.tuned_model.model_figures import devices_of
from tuner.plan import ModelPlan, TiedParameter


def replicated(tuned: ModelPlan, replicas: int, *, is_mirrored: bool = False) -> ModelPlan:
    """Return the plan with so many copies of its stages, each on as many devices as the one had.

    Args:
        tuned: one copy; it has the devices of its stages.
        replicas: at least 1; even where they are mirrored.
        is_mirrored: whether every other copy goes over the devices of the one before it, backwards.

    Raises:
        ScheduleError: a device would hold different parts of one weight, for one copy and for its mirror.
    """
    if replicas == 1:
        return tuned
    num_stages = len(tuned.stages)
    devices = devices_of(tuned)
    width = 1 + max(device for each in devices for device in each)
    tied, tied_bytes = _tied(tuned, replicas)

    def device_of(device: int, copy: int) -> int:
        if not is_mirrored:
            return device + copy * width
        return (width - 1 - device if copy % 2 else device) + copy // 2 * width

    copied = tuple(
        tuple(sorted(device_of(device, copy) for device in each))
        for copy in range(replicas)
        for each in devices
    )
    _check_parts(tuned, copied)
    return msgspec.structs.replace(
        tuned,
        stages=tuple(
            msgspec.structs.replace(stage, name=f"stage{copy * num_stages + number}")
            for copy in range(replicas)
            for number, stage in enumerate(tuned.stages)
        ),
        replicas=replicas,
        stage_devices=copied,
        stages_before=tuple(
            tuple(stage + copy * num_stages for stage in earlier)
            for copy in range(replicas)
            for earlier in tuned.stages_before
        ),
        # Nothing goes from one copy to the next.
        hop_latency_us=((*tuned.hop_latency_us, 0.0) * replicas)[:-1],
        tied=tied,
        tied_bytes=tied_bytes,
    )


def _check_parts(tuned: ModelPlan, copied: Sequence[Sequence[int]]) -> None:
    """Refuse copies in which a device has another part of a divided weight than in the first."""
    part_of: dict[tuple[int, int], int] = {}
    for number, devices in enumerate(copied):
        stage = tuned.stages[number % len(tuned.stages)]
        for part, device in enumerate(devices) if stage.shards is not None else ():
            if part_of.setdefault((device, number % len(tuned.stages)), part) != part:
                raise ScheduleError(
                    f"{stage.name} is divided over devices, of which a mirrored copy would have other parts; "
                    "tune one copy"
                )


def _tied(tuned: ModelPlan, replicas: int) -> tuple[tuple[tuple[TiedParameter, ...], ...], tuple[int, ...]]:
    """Return the groups of weights that are one, over all copies, and the bytes that a device counts once."""
    num_stages = len(tuned.stages)

    def copies(group: tuple[TiedParameter, ...]) -> tuple[TiedParameter, ...]:
        return tuple(
            TiedParameter(member.name, member.stage + copy * num_stages)
            for copy in range(replicas)
            for member in group
        )

    known = {(member.name, member.stage) for group in tuned.tied for member in group}
    alone = [
        (TiedParameter(name, number),)
        for number, stage in enumerate(tuned.stages)
        for name in stage.parameters
        if (name, number) not in known
    ]
    # Copies have devices of their own, or other stages of the same: only what was tied before is held twice.
    num_bytes = tuned.tied_bytes or (0,) * len(tuned.tied)
    return tuple(map(copies, (*tuned.tied, *alone))), (*num_bytes, *(0 for _ in alone))
