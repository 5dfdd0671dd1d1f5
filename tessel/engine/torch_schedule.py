"""A schedule as an object of torch.distributed.pipelining, for a training loop of one's own.

torch's runtime derives the sends and receives from every rank's order of actions and runs any order that does
not dead-lock. Two things are added. Losses and outputs are kept by micro-batch: the runtime's own list is by
order of arrival, and gives silently wrong gradients where the last stage does not run micro-batches in
ascending order. And what the runtime cannot hold is refused beforehand, on every rank alike, because a rank
that fails alone leaves the others waiting.

The runtime's names begin with an underscore; they are used in this module only, and pyproject.toml holds
torch to the versions that were tested. Checked in tests/tessel/engine/test_torch_schedule.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _Action,
    _PipelineScheduleRuntime,
)

from tessel.engine.actions import (
    ActionKind,
    RankActions,
    actions_of,
    check_chain,
    rank_by_stage,
    require_valid,
    torch_actions,
)
from tessel.engine.errors import EngineError
from tessel.plan import Plan
from tessel.schedule import Schedule

LossFunction = Callable[..., torch.Tensor]


def build_schedule(
    plan: Plan | Schedule,
    stages: Mapping[int, nn.Module] | Sequence[PipelineStage],
    loss_fn: LossFunction,
    *,
    group: dist.ProcessGroup | None = None,
    scale_grads: bool = True,
) -> PipelineScheduleMulti:
    """Return a torch schedule that runs the plan's orders; call its `step` on every rank.

    `step(inputs)` on the rank of the first stage, `step(target=…, losses=[])` on that of the last, `step()`
    on the others; inputs and targets are whole batches, which torch cuts into the plan's micro-batches.

    Args:
        plan: a plan, or its schedule.
        stages: this rank's stages: modules by number of stage, on the device they run on, or torch's own
            stage objects. A module takes what the stage before returns.
        loss_fn: takes the last stage's output and the target of a micro-batch.
        group: the pipeline's processes, rank by rank; all processes unless given.
        scale_grads: whether gradients are means over micro-batches, not sums.

    Raises:
        EngineError: torch's runtime cannot hold the schedule, or the stages are not this rank's; says which.
    """
    schedule = plan.schedule if isinstance(plan, Plan) else plan
    num_stages = _check(schedule, dist.get_world_size(group))
    own = _own_stages(schedule, dist.get_rank(group))
    made = _as_stages(stages, own, num_stages, group)
    actions = torch_actions(actions_of(schedule))
    runtime = _AnyOrderRuntime(made, schedule.micro_batches, loss_fn=loss_fn, scale_grads=scale_grads)
    runtime.take_orders(actions)
    return runtime


class _AnyOrderRuntime(_PipelineScheduleRuntime):
    """Torch's runtime with losses and outputs kept by micro-batch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._loss_by_micro_batch: dict[int, torch.Tensor] = {}
        self._last_forwards: tuple[int, ...] = ()

    def take_orders(self, actions: RankActions) -> None:
        """Run these actions; sends and receives are derived from them."""
        self.pipeline_order = {
            rank: [_Action.from_str(str(action)) for action in own] for rank, own in enumerate(actions)
        }
        self._prepare_schedule_with_comms(self.pipeline_order)
        self._last_forwards = tuple(
            action.micro_batch
            for own in actions
            for action in own
            if action.kind is ActionKind.FORWARD and action.stage == self._num_stages - 1
        )

    # The versions of torch differ in what else these methods are given, which only goes through.

    def _maybe_compute_loss(
        self, stage: Any, output: Any, target_mbs: Any, mb_index: int, *more: Any, **options: Any
    ) -> None:
        compute = super()._maybe_compute_loss
        compute(stage, output, target_mbs, mb_index, *more, **options)  # type: ignore[no-untyped-call]  # torch does not annotate it
        if self._internal_losses:
            self._loss_by_micro_batch[mb_index] = self._internal_losses.pop()

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> torch.Tensor | None:
        return self._loss_by_micro_batch[mb_index] if stage.is_last and self._loss_fn is not None else None

    def _update_losses(self, stages: Any, losses: list[torch.Tensor] | None) -> None:
        self._internal_losses.extend(loss for _, loss in sorted(self._loss_by_micro_batch.items()))
        self._loss_by_micro_batch.clear()
        super()._update_losses(stages, losses)  # type: ignore[no-untyped-call]  # torch does not annotate it

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        by_micro_batch = dict(zip(self._last_forwards, output_chunks, strict=True))
        return super()._merge_outputs([chunk for _, chunk in sorted(by_micro_batch.items())])


def _check(schedule: Schedule, num_ranks: int) -> int:
    """Return the number of stages of a schedule that torch's runtime can hold."""
    placement = schedule.placement
    if num_ranks != placement.devices:
        raise EngineError(
            f"the group has {num_ranks} processes, but the plan is for {placement.devices} devices; start "
            "one process a device"
        )
    num_stages = check_chain(placement)
    require_valid(schedule)
    trained = {
        action.stage
        for own in actions_of(schedule)
        for action in own
        if action.kind is not ActionKind.FORWARD
    }
    frozen = [stage for stage in range(num_stages) if stage not in trained]
    if frozen:
        raise EngineError(
            f"stage {frozen[0]} has no backward, but torch's runtime runs one for every stage; use "
            "`tessel run`, or a plan for training"
        )
    return num_stages


def _own_stages(schedule: Schedule, rank: int) -> tuple[int, ...]:
    """Return the stages of one rank, ascending: torch's runtime hangs on any other order."""
    for number, ranks in enumerate(rank_by_stage(schedule)):
        if len(ranks) > 1:
            raise EngineError(
                f"stage {number} is on ranks {list(ranks)}, but torch's runtime holds a stage on one rank "
                "only; use `tessel run`, whose executor does not"
            )
    return tuple(number for number, ranks in enumerate(rank_by_stage(schedule)) if rank in ranks)


def _as_stages(
    stages: Mapping[int, nn.Module] | Sequence[PipelineStage],
    own: Sequence[int],
    num_stages: int,
    group: dist.ProcessGroup | None,
) -> list[PipelineStage]:
    given = {stage.stage_index: stage for stage in stages} if isinstance(stages, Sequence) else dict(stages)
    if sorted(given) != list(own):
        raise EngineError(
            f"stages {sorted(given)} were given, but this rank runs stages {list(own)} of the plan; give "
            "each of them, and no other"
        )
    made = []
    for number in own:
        stage = given[number]
        if isinstance(stage, PipelineStage):
            if stage.num_stages != num_stages:
                raise EngineError(
                    f"stage {number} was made for {stage.num_stages} stages, the plan has {num_stages}; make "
                    "it for as many"
                )
            made.append(stage)
        else:
            made.append(PipelineStage(stage, number, num_stages, _device_of(stage), group=group))
    return made


def _device_of(module: nn.Module) -> torch.device:
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device
