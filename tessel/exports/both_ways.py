"""Copies of one chain on the same ranks, such as the two directions of an x shape, for torch's own runtime.

That runtime knows one chain: what leaves a stage goes to the next number. Here the copies are numbered one
after the other, sends and receives stand in the CSV (`_load_csv(…, format="compute_comms")`), since torch
would derive some between the copies too, and the stages of a file beside it say where a copy begins and ends.

    rank 0   0F0 0SEND_F0 … 3RECV_F0 3F0 3B0 …       stages 0, 1 down
    rank 1   2F0 2SEND_F0 … 1RECV_F0 1F0 1B0 …       stages 2, 3 up

Each rank begins one copy at most and ends one at most: torch hands the inputs of a rank to every stage that
begins, and keeps the losses of a rank in one list. Trained in tests/tessel/exports/test_frameworks.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tessel.engine.actions import Action, ActionKind, RankActions, renumbered
from tessel.errors import ScheduleError
from tessel.exports.recipe import Recipe

_MODULE = '''"""Stages of {copies} copies of one pipeline of {length} stages, for the orders in {csv}.

    own = [PlannedStage(module, number, {count}, device) for number, module in …]  # this rank's, ascending
    schedule = _PipelineScheduleRuntime(own, MICRO_BATCHES, loss_fn=loss, scale_grads=False)
    schedule._load_csv({csv!r}, format="compute_comms")
    schedule.step(…)

A rank that begins a copy is given that copy's part of the batch, a rank that ends one the targets of it.
Before each update, sum the gradients of the stages of each of COPIES over their ranks, and divide them by
MICRO_BATCHES * {copies}.
"""

from torch.distributed.pipelining import PipelineStage

MICRO_BATCHES = {micro_batches}
FIRST = {first}
LAST = {last}
COPIES = {pairs}


class PlannedStage(PipelineStage):
    """A stage that begins and ends where its copy does, whatever stands on its rank beside it."""

    @property
    def is_first(self):
        return self.stage_index in FIRST

    @property
    def is_last(self):
        return self.stage_index in LAST

    def set_local_fwd_input(self, prev_stage_outputs, mb_index):
        if not self.is_first:
            super().set_local_fwd_input(prev_stage_outputs, mb_index)

    def get_local_bwd_output(self, mb_index):
        return () if self.is_first else super().get_local_bwd_output(mb_index)

    def set_local_bwd_input(self, next_stage_bwd_outputs, mb_index):
        if not self.is_last:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)
'''


def stages_module(recipe: Recipe, csv: str) -> str:
    """Return the Python module of the stages, which stands beside the CSV of this name."""
    count, length = recipe.num_stages, recipe.num_stages // recipe.copies
    first = tuple(range(0, count, length))
    return _MODULE.format(
        copies=recipe.copies,
        length=length,
        count=count,
        csv=csv,
        micro_batches=recipe.micro_batches,
        first=first,
        last=tuple(stage + length - 1 for stage in first),
        pairs=tuple(tuple(stage + start for start in first) for stage in range(length)),
    )


def orders_with_transfers(recipe: Recipe) -> str:
    """Return the CSV of the orders, with every send and receive.

    Raises:
        ScheduleError: a rank begins or ends several copies.
    """
    length = recipe.num_stages // recipe.copies
    for what, position in (("begin", 0), ("end", length - 1)):
        ranks = [recipe.device_of_stage[stage] for stage in range(position, recipe.num_stages, length)]
        twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
        if twice is not None:
            raise ScheduleError(
                f"{ranks.count(twice)} copies of the pipeline {what} on rank {twice}, and torch's runtime "
                "gives a rank one batch and one list of losses; let them begin and end on different ranks, "
                "or use `tessel run`"
            )
    actions = recipe.actions
    for copy in range(recipe.copies):
        actions = _renumbered_copy(actions, range(copy * length, (copy + 1) * length))
    rows = _with_transfers(_with_whole_first(actions, length), recipe.device_of_stage, length)
    return "".join(",".join(row) + "\n" for row in rows)


def _renumbered_copy(actions: RankActions, copy: range) -> RankActions:
    """Return the actions with one copy's micro-batches in the order of its last stage."""
    own = renumbered(tuple(tuple(each for each in row if each.stage in copy) for row in actions))
    found = [iter(row) for row in own]
    return tuple(
        tuple(next(found[rank]) if each.stage in copy else each for each in row)
        for rank, row in enumerate(actions)
    )


def _with_whole_first(actions: RankActions, length: int) -> RankActions:
    """Return the actions with all of a first stage's backward where its weight half is.

    Its inputs have no gradient; torch does so by itself in stage 0 alone.
    """
    whole = {ActionKind.BACKWARD_INPUT: None, ActionKind.BACKWARD_WEIGHT: ActionKind.BACKWARD}

    def kind_of(each: Action) -> ActionKind | None:
        return each.kind if each.stage % length else whole.get(each.kind, each.kind)

    return tuple(
        tuple(each._replace(kind=kind) for each in own if (kind := kind_of(each)) is not None)
        for own in actions
    )


def _with_transfers(actions: RankActions, rank_of: tuple[int, ...], length: int) -> list[list[str]]:
    """Return each rank's cells; a receive stands where its sender has just sent."""
    rows: list[list[str]] = [[] for _ in actions]
    waiting = [deque(own) for own in actions]
    done: set[Action] = set()
    while any(waiting):
        ready = [rank for rank, own in enumerate(waiting) if own and _is_ready(own[0], done, length)]
        assert ready, "the orders have a schedule"
        for rank in ready:
            action = waiting[rank].popleft()
            done.add(action)
            rows[rank].append(str(action))
            for other, letter in _next_stages(action, length):
                if rank_of[other] != rank:
                    rows[rank].append(f"{action.stage}SEND_{letter}{action.micro_batch}")
                    rows[rank_of[other]].append(f"{other}RECV_{letter}{action.micro_batch}")
    for rank, row in enumerate(rows):
        row += [f"{stage}REDUCE_GRAD" for stage, own in enumerate(rank_of) if own == rank]
    return rows


def _next_stages(action: Action, length: int) -> Iterator[tuple[int, str]]:
    """Yield the stage that takes what an action makes, and the letter of the transfer."""
    if action.kind is ActionKind.FORWARD:
        if (action.stage + 1) % length:
            yield action.stage + 1, "F"
    elif action.kind is not ActionKind.BACKWARD_WEIGHT and action.stage % length:
        yield action.stage - 1, "B"


def _is_ready(action: Action, done: set[Action], length: int) -> bool:
    """Return whether what an action takes has been made."""
    if action.kind is ActionKind.FORWARD:
        return not action.stage % length or action._replace(stage=action.stage - 1) in done
    if action.kind is ActionKind.BACKWARD_WEIGHT or not (action.stage + 1) % length:
        return True
    kinds = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
    return any(action._replace(stage=action.stage + 1, kind=kind) in done for kind in kinds)
