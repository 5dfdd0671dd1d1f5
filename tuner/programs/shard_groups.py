"""The ranks among which the shards of a stage are reduced.

Every process makes every group, in the order of the stages, whether or not it is in it, as torch.distributed
asks. A stage that is on all ranks has the default group. Checked in
tests/tuner/programs/test_sharded_program.py.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from tuner.errors import TunerError
from tuner.plan import ModelPlan

_NO_TIMEOUT = timedelta(days=1)
"""A rank waits for others as long as the run lasts; who runs them has the clock that ends it."""


class ShardGroups:
    """Process groups of a plan's divided stages; nothing is made where none is divided.

    Args:
        plan: says on which devices each stage is, of which each is a rank.

    Raises:
        TunerError: there are more or fewer ranks than devices.
    """

    def __init__(self, plan: ModelPlan) -> None:
        self._group_of: dict[int, dist.ProcessGroup | None] = {}
        divided = {number: stage for number, stage in enumerate(plan.stages) if stage.shards is not None}
        if not divided:
            return
        devices = plan.stage_devices or _of_m_shape(plan)
        every = tuple(sorted({device for own in devices for device in own}))
        num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        if num_ranks != len(every):
            stage = next(iter(divided.values()))
            raise TunerError(
                f"{stage.name} is divided over {len(devices[min(divided)])} devices, and there are "
                f"{num_ranks} ranks for the {len(every)} devices of the plan; run it with `tessel run`"
            )
        made: dict[tuple[int, ...], dist.ProcessGroup | None] = {every: None}
        for number in divided:
            ranks = devices[number]
            if ranks not in made:
                made[ranks] = dist.new_group(list(ranks), timeout=_NO_TIMEOUT)
            self._group_of[number] = made[ranks]

    def of_stage(self, number: int) -> dist.ProcessGroup | None:
        """Return the group of a divided stage that this process holds a shard of; None for all ranks."""
        return self._group_of[number]


def _of_m_shape(plan: ModelPlan) -> tuple[tuple[int, ...], ...]:
    """Return devices as plans of earlier versions have them: the next one each, all for a divided stage."""
    alone = iter(range(len(plan.stages)))
    every = tuple(range(sum(stage.shards is None for stage in plan.stages)))
    return tuple((next(alone),) if stage.shards is None else every for stage in plan.stages)
