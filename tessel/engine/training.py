"""Train with a tuned plan in a loop of one's own: its stages on these ranks, in its order, for any optimizer.

```
torchrun                                       a process a device
  programs = load_programs(spec, own stages)   compiled as the plan says
  pipeline = TrainingPipeline(schedule, programs, tied=plan.tied)
  optimizer = torch.optim.AdamW(pipeline.parameters())
  for batch in batches:
      losses = pipeline.step()                 the schedule's order; leaves the mean gradients in `.grad`
      pipeline.clip_grad_norm_(1.0)
      optimizer.step()                         each rank its own weights, in place
```

A weight that stages on several ranks share gets its whole gradient on each of them, so that equal optimizers
keep its copies equal. Of a stage that is divided over ranks, each rank trains its own part. Nothing here
depends on who computes the stages. Checked in tests/tessel/engine/test_training.py, and in
tests/examples/test_train_plan.py against the user's module under plain torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from tessel.engine.actions import actions_of, check_chain, rank_by_stage, require_valid, stages_before
from tessel.engine.errors import EngineError
from tessel.engine.program import StageProgram, Tensors
from tessel.engine.ranks.executor import Executor
from tessel.engine.ranks.progress import Progress
from tessel.engine.ranks.transport import TaggedTransport
from tessel.schedule import Schedule
from tuner.plan import TiedParameter

_SMALLEST_NORM = 1e-6
"""Added to a norm that is divided by, as `torch.nn.utils.clip_grad_norm_` does."""


class TrainableProgram(StageProgram, Protocol):
    """A stage whose weights can be changed between steps."""

    @property
    def weights(self) -> Tensors:
        """This rank's weights by name; changed in place, they are what the next step computes with."""
        ...

    @property
    def divided_weights(self) -> frozenset[str]:
        """Names of the weights of which each rank holds a part of its own."""
        ...

    def own_gradients(self) -> Tensors:
        """Return the mean gradient of each weight over the step, of this rank's part where it is divided."""
        ...


@dataclass(frozen=True, slots=True)
class _Tie:
    """A weight that several stages hold: where it is on this rank, and who adds up its gradient.

    Attributes:
        own: stages of this rank that hold it, and its name there.
        counted: those of them whose gradient this rank adds; the other ranks of a stage have the same one.
        group: the ranks that add; None where this rank has all that there is.
    """

    own: tuple[tuple[int, str], ...]
    counted: frozenset[tuple[int, str]]
    group: dist.ProcessGroup | None


class TrainingPipeline:
    """One rank's share of a pipeline that is trained; every rank makes one, and calls the same methods.

    Args:
        schedule: the order of a step, of a placement with a rank for each device.
        programs: the stages of this rank, by number.
        tied: groups of weights that are one and the same, as in the plan.
        copies: of the pipeline, as the plan's `replicas`; each runs the schedule's micro-batches.
        branches: stages that each stage receives from, as the plan's `stages_before`.

    Raises:
        EngineError: torch.distributed has another number of processes than the schedule has devices, the
            programs are not this rank's, or a tied weight is divided on some of its ranks alone, or over
            different numbers of them.
        ScheduleError: the schedule cannot run.
    """

    def __init__(
        self,
        schedule: Schedule,
        programs: Mapping[int, TrainableProgram],
        *,
        tied: Sequence[Sequence[TiedParameter]] = (),
        copies: int = 1,
        branches: Sequence[Sequence[int]] = (),
    ) -> None:
        check_chain(schedule.placement, copies=copies, branches=branches)
        require_valid(schedule)
        self._rank, num_ranks = dist.get_rank(), dist.get_world_size()
        if num_ranks != schedule.placement.devices:
            raise EngineError(
                f"the schedule has {schedule.placement.devices} devices, and torch.distributed {num_ranks} "
                "processes; start one for each device"
            )
        self._ranks_by_stage = rank_by_stage(schedule)
        own = own_stages(schedule, self._rank)
        if sorted(programs) != list(own):
            raise EngineError(
                f"rank {self._rank} runs stages {list(own)}, and there are programs of {sorted(programs)}; "
                "build those of `own_stages`"
            )
        self._programs = dict(programs)
        self._micro_batches = schedule.micro_batches
        device = next((weight.device for _, weight in self._weights()), torch.device("cpu"))
        self._executor = Executor(self._rank, self._ranks_by_stage, programs, _NoProgress(), device)
        self._order = self._executor.prepare(actions_of(schedule))
        distances = (n - each for n, earlier in enumerate(stages_before(schedule)) for each in earlier)
        self._transport = TaggedTransport(
            len(self._ranks_by_stage), device, farthest=max(distances, default=1)
        )
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._ties = tuple(self._tie(group) for group in tied)
        self._counted = self._counted_weights(tied)

    def parameters(self) -> list[torch.Tensor]:
        """Return this rank's weights, each once, for an optimizer."""
        return list({id(weight): weight for _, weight in self._weights()}.values())

    def step(self) -> dict[int, float]:
        """Run all micro-batches, and leave each weight's mean gradient over them in its `.grad`.

        Returns:
            The loss of each micro-batch, on the ranks of the last stage; empty on the others.
        """
        self._executor.run_step(self._order, self._micro_batches, self._transport)
        gradients = {
            (stage, name): gradient
            for stage, program in self._programs.items()
            for name, gradient in program.own_gradients().items()
        }
        for tie in self._ties:
            if tie.own:
                gradients |= dict.fromkeys(tie.own, self._total(tie, gradients))
        for key, weight in self._weights():
            weight.grad = gradients.get(key)
        return {m: loss for program in self._programs.values() for m, loss in program.losses().items()}

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all gradients so that their norm over all ranks is at most this; return what it was.

        As `torch.nn.utils.clip_grad_norm_` on the uncut model: a weight that is held several times counts
        once, and one that is divided counts with all its parts.
        """
        squares = torch.zeros((), dtype=torch.float64)
        for key, weight in self._weights():
            if key in self._counted and weight.grad is not None:
                squares += weight.grad.double().square().sum().cpu()
        dist.all_reduce(squares)
        norm = float(squares.sqrt())
        scale = max_norm / (norm + _SMALLEST_NORM)
        if scale < 1:
            own = [weight.grad for _, weight in self._weights() if weight.grad is not None]
            for gradient in {id(each): each for each in own}.values():
                gradient *= scale
        return norm

    def state_dict(self) -> Tensors:
        """Return this rank's weights by stage and name, such as `0.embedding.weight`; not copies."""
        return {f"{stage}.{name}": weight for (stage, name), weight in self._weights()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights that `state_dict` gave on this rank.

        Raises:
            EngineError: other weights, or of other shapes; nothing is changed then.
        """
        own = self.state_dict()
        if own.keys() != state.keys():
            (name, *_) = sorted(own.keys() ^ state.keys())
            raise EngineError(
                f"weight {name} of rank {self._rank} is only in one of the state and the pipeline; load what "
                "the same rank of the same plan saved"
            )
        for name, weight in own.items():
            if weight.shape != state[name].shape:
                raise EngineError(
                    f"weight {name} has shape {tuple(state[name].shape)} in the state, and "
                    f"{tuple(weight.shape)} on rank {self._rank}; load what the same rank saved"
                )
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(state[name])

    def _weights(self) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
        for stage in sorted(self._programs):
            for name, weight in self._programs[stage].weights.items():
                yield (stage, name), weight

    def _tie(self, members: Sequence[TiedParameter]) -> _Tie:
        """Find who adds up a tied weight's gradient; all ranks make the groups of all, in order."""
        own = tuple((each.stage, each.name) for each in members if each.stage in self._programs)
        ranks = sorted({rank for each in members for rank in self._ranks_by_stage[each.stage]})
        is_divided = {name in self._programs[stage].divided_weights for stage, name in own}
        if len(is_divided) > 1:
            raise EngineError(
                f"the tied weight {members[0].name} is divided in one stage and whole in another of rank "
                f"{self._rank}; tune the model again"
            )
        ranks_by_member = [self._ranks_by_stage[each.stage] for each in members]
        # Whether a weight is divided is known to those alone who hold it, so both kinds of groups are made.
        same_part = self._groups_of_parts(ranks_by_member)
        every = self._group(ranks) if len(set(ranks_by_member)) > 1 else None
        if not own:
            return _Tie((), frozenset(), None)
        if is_divided == {True}:
            if len(set(map(len, ranks_by_member))) > 1:
                raise EngineError(
                    f"the tied weight {members[0].name} is divided over different numbers of ranks by the "
                    "stages that hold it; tune the model again"
                )
            return _Tie(own, frozenset(own), same_part)
        first = frozenset(key for key in own if self._ranks_by_stage[key[0]][0] == self._rank)
        return _Tie(own, frozenset(own) if every is None else first, every)

    def _groups_of_parts(self, ranks_by_member: Sequence[Sequence[int]]) -> dist.ProcessGroup | None:
        """Return the group of the ranks that hold the same part as this one; copies of a pipeline do."""
        if len(set(map(len, ranks_by_member))) > 1 or len(ranks_by_member[0]) == 1:
            return None
        found = None
        for ranks in zip(*ranks_by_member, strict=True):
            group = self._group(sorted(set(ranks)))
            if self._rank in ranks:
                found = group
        return found

    def _group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Return a group of these ranks, which all make; None where there is one alone."""
        if len(ranks) == 1:
            return None
        if tuple(ranks) not in self._groups:
            self._groups[tuple(ranks)] = dist.new_group(list(ranks))
        return self._groups[tuple(ranks)]

    def _total(self, tie: _Tie, gradients: Mapping[tuple[int, str], torch.Tensor]) -> torch.Tensor:
        stage, name = tie.own[0]
        total = torch.zeros_like(self._programs[stage].weights[name])
        for key in tie.own:
            if key in gradients and key in tie.counted:
                total += gradients[key]
        if tie.group is not None:
            dist.all_reduce(total, group=tie.group)
        return total

    def _counted_weights(self, tied: Sequence[Sequence[TiedParameter]]) -> frozenset[tuple[int, str]]:
        """Return the weights that this rank adds to a norm over all ranks."""
        again = {(each.stage, each.name) for _, *others in tied for each in others}
        return frozenset(
            (stage, name)
            for (stage, name), _ in self._weights()
            if (stage, name) not in again
            and (
                name in self._programs[stage].divided_weights or self._rank == self._ranks_by_stage[stage][0]
            )
        )


def own_stages(schedule: Schedule, rank: int) -> tuple[int, ...]:
    """Return the numbers of the stages that a rank holds.

    Args:
        schedule: of a chain of stages.
        rank: the device in the placement.
    """
    return tuple(number for number, ranks in enumerate(rank_by_stage(schedule)) if rank in ranks)


class _NoProgress(Progress):
    """Progress that nobody reads: torchrun watches over the processes."""

    def __init__(self) -> None:  # no file, unlike its base
        pass

    def work(self, what: str) -> None:
        """Say nothing."""

    def wait(self, what: str) -> None:
        """Say nothing."""
