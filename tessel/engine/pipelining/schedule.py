"""A schedule as an object of torch.distributed.pipelining, for the user's own training loop.

torch's runtime derives the sends and receives from every rank's order of actions and runs any order that does
not deadlock. This module adds what would otherwise silently produce wrong gradients:

- Losses and outputs are kept by micro-batch; the runtime's own list is by order of arrival.
- Gradients are finished after the last backward, in this order: replicas are averaged, means are taken over
  micro-batches (once for a weight that two stages of this rank share), and those of tied weights on several
  ranks are summed. What `.grad` held before the step is added last, so steps may be accumulated.
- What a split backward and stages of `split_module` need besides stands in `tessel.engine.pipelining.stage`.

What the runtime does not support is refused beforehand, consistently on every rank, because a rank that fails
alone leaves the others waiting. The runtime's names begin with an underscore; only these two modules use
them, and pyproject.toml holds torch to the versions that were tested. Checked in
tests/tessel/engine/pipelining/test_schedule.py and, between processes, test_torch_replicas.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

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
from tessel.engine.pipelining.stage import (
    Stage,
    average_after_last_backward,
    average_gradients,
    bordered,
    borders_of,
    complete_split_backward,
    replicated_part,
    unwrapped,
)
from tessel.schedule import Schedule
from tuner.plan import TiedParameter

LossFunction = Callable[..., torch.Tensor]


class ScheduledPlan(Protocol):
    """A plan of any kind."""

    @property
    def schedule(self) -> Schedule:
        """Its schedule."""
        ...


def build_schedule(
    plan: ScheduledPlan | Schedule,
    stages: Mapping[int, nn.Module] | Sequence[PipelineStage],
    loss_fn: LossFunction,
    *,
    group: dist.ProcessGroup | None = None,
    scale_grads: bool = True,
    tied: Sequence[Sequence[TiedParameter]] | None = None,
) -> PipelineScheduleMulti:
    """Return a torch schedule that runs the plan's orders; call its `step` on every rank.

    `step(inputs)` on the rank of the first stage, `step(target=…, losses=[])` on that of the last, `step()`
    on the others; inputs and targets are whole batches, which torch cuts into the plan's micro-batches.

    Args:
        plan: a plan, or its schedule.
        stages: this rank's stages: modules by number of stage, on the device they run on, or torch's own
            stage objects. A module takes what the stage before returns; one of `split_module` takes and
            returns its own tensors, and what bypasses it is relayed. Each may be replicated by
            `DistributedDataParallel`.
        loss_fn: takes the last stage's output and the target of a micro-batch.
        group: the pipeline's processes, rank by rank; all processes unless given.
        scale_grads: whether gradients are means over micro-batches, not sums.
        tied: weights that are one and the same, by names in the stages' modules; their gradients are summed,
            so that all copies stay alike. Unless given, those that `split_module` found, or the plan's.

    Raises:
        EngineError: torch's runtime cannot hold the schedule, or the stages are not this rank's; says which.
    """
    schedule = plan if isinstance(plan, Schedule) else plan.schedule
    num_stages = _check(schedule, dist.get_world_size(group))
    own = _own_stages(schedule, dist.get_rank(group))
    made = _as_stages(stages, own, num_stages, group)
    orders = actions_of(schedule)
    if tied is None:
        tied = _ties_of(made, plan)
    finish = _GradientFinish(made, _split_stages(orders), schedule, tied, group)
    runtime = _AnyOrderRuntime(
        made, schedule.micro_batches, loss_fn=loss_fn, finish=finish, takes_mean=scale_grads
    )
    runtime.take_orders(torch_actions(orders))
    return runtime


class _AnyOrderRuntime(_PipelineScheduleRuntime):
    """Torch's runtime with losses and outputs kept by micro-batch, and gradients finished after the last."""

    def __init__(
        self,
        stages: list[PipelineStage],
        micro_batches: int,
        *,
        loss_fn: LossFunction,
        finish: _GradientFinish,
        takes_mean: bool,
    ) -> None:
        # Torch would divide the gradient of a weight that two stages share once for each of them.
        super().__init__(stages, micro_batches, loss_fn=loss_fn, scale_grads=False)  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._finish = finish
        self._divisor = micro_batches if takes_mean else 1
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

    def _step_microbatches(self, *arguments: Any, **options: Any) -> None:
        before = self._finish.put_aside() if self._has_backward else {}
        super()._step_microbatches(*arguments, **options)
        if self._has_backward:
            self._finish.finish(self._divisor, before)

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
            "one process per device"
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
            made.append(Stage(bordered(stage), number, num_stages, _device_of(stage), group=group))
    return made


def _split_stages(orders: RankActions) -> frozenset[int]:
    """Return the stages whose backward is split for some micro-batch."""
    return frozenset(
        action.stage for own in orders for action in own if action.kind is ActionKind.BACKWARD_WEIGHT
    )


def _ties_of(
    stages: Sequence[PipelineStage], plan: ScheduledPlan | Schedule
) -> Sequence[Sequence[TiedParameter]]:
    """Return ties that the stages know of, else those of the plan."""
    for stage in stages:
        borders = borders_of(stage.submod)
        if borders is not None:
            return borders.tied
    found: Sequence[Sequence[TiedParameter]] = getattr(plan, "tied", ())  # a table's plan has none
    return found


class _GradientFinish:
    """What is done to this rank's gradients after the last backward of a step.

    Args:
        split: stages whose backward is split.
        schedule: says on which rank each stage is.
        tied: weights that are one and the same.
        group: the pipeline's processes.

    Raises:
        EngineError: a stage cannot be averaged, or has no weight of a name that is tied.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        split: frozenset[int],
        schedule: Schedule,
        tied: Sequence[Sequence[TiedParameter]],
        group: dist.ProcessGroup | None,
    ) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._stages = stages
        self._averaged = []
        for stage in stages:
            replicated = replicated_part(stage)
            if stage.stage_index in split:
                complete_split_backward(stage)
            # Torch itself averages a replicated stage, but not with a split backward, nor between borders.
            if replicated is not None and (stage.stage_index in split or stage.submod is not replicated):
                average_after_last_backward(stage, replicated)
                self._averaged.append(replicated)
        ranks = rank_by_stage(schedule)
        own = {stage.stage_index: _weights_of(stage) for stage in stages}
        self._ties = [
            (sorted({ranks[member.stage][0] for member in members}), _own_copies(members, own))
            for members in tied
        ]

    def put_aside(self) -> dict[nn.Parameter, torch.Tensor]:
        """Take away what weights have for gradients before a step."""
        before = {}
        for weight in self._weights():
            if weight.grad is not None:
                before[weight], weight.grad = weight.grad, None
        return before

    def finish(self, divisor: int, before: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Average replicas, divide, sum tied weights, and add what was there before."""
        for replicated in self._averaged:
            average_gradients(replicated)
        for weight in self._weights():
            if weight.grad is not None and divisor != 1:
                weight.grad /= divisor
        for ranks, copies in self._ties:
            if copies:
                self._sum_copies(ranks, copies)
        for weight, gradient in before.items():
            weight.grad = gradient if weight.grad is None else weight.grad + gradient

    def _weights(self) -> dict[nn.Parameter, None]:
        """Return this rank's weights, each once, in order."""
        return {weight: None for stage in self._stages for weight in stage.submod.parameters()}

    def _sum_copies(self, ranks: Sequence[int], copies: Sequence[nn.Parameter]) -> None:
        """Make the gradients of all copies of one weight their sum; the first rank adds and hands out."""
        parts = [torch.zeros_like(copy) if copy.grad is None else copy.grad for copy in copies]
        total = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        if self._rank == ranks[0]:
            for other in ranks[1:]:
                part = torch.empty_like(total)
                dist.recv(part, self._global(other), self._group)
                total = total + part
            for other in ranks[1:]:
                dist.send(total, self._global(other), self._group)
        else:
            dist.send(total.contiguous(), self._global(ranks[0]), self._group)
            total = torch.empty_like(total)
            dist.recv(total, self._global(ranks[0]), self._group)
        for copy in copies:
            copy.grad = total.clone()

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)


def _weights_of(stage: PipelineStage) -> dict[str, nn.Parameter]:
    """Return a stage's weights under their own names, whatever it is wrapped in."""
    return dict(unwrapped(stage.submod).named_parameters(remove_duplicate=False))


def _own_copies(
    members: Sequence[TiedParameter], own: Mapping[int, Mapping[str, nn.Parameter]]
) -> list[nn.Parameter]:
    """Return this rank's copies of a tied weight; one that several stages share is one."""
    copies: dict[nn.Parameter, None] = {}
    for member in members:
        if member.stage not in own:
            continue
        if member.name not in own[member.stage]:
            raise EngineError(
                f"weight {member.name} of stage {member.stage} is tied, but the stage's module has no weight "
                "of that name; give `tied` with the names in your modules, or () if your loop sums them"
            )
        copies[own[member.stage][member.name]] = None
    return list(copies)


def _device_of(module: nn.Module) -> torch.device:
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device
