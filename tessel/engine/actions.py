"""A schedule as the ordered actions of each rank: stage, action, micro-batch.

The text form is the CSV that torch.distributed.pipelining loads: one line per rank, cells such as `0F3`
(stage 0, forward, micro-batch 3), `B` a joint backward, `I` and `W` its two halves; `(0F7;7B3)OVERLAP_F_B`
runs a forward and a backward of one rank at the same time, as DualPipe-V does. Actions hold no times: read
back, each starts as early as the order allows, and those of one cell one after the other. What the text
cannot express (a stage on several ranks, a recomputation, stages that do not form a chain) is refused before
anything starts. Nothing here needs torch. Checked in tests/tessel/engine/test_actions.py.

    0F0,0F1,0B0,0B1        device 0   F0 F1 .  .  B0 B0 B1 B1
    1F0,1B0,1F1,1B1        device 1   .  F0 B0 B0 F1 B1 B1 .
"""

from __future__ import annotations

import csv
import enum
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from tessel.batches import Batch
from tessel.engine.errors import EngineError
from tessel.errors import ScheduleError
from tessel.handwritten.construction.stages import NotAPipelineError, Pipeline, Stage, read_pipeline
from tessel.orders import Orders, Task, device_orders, earliest_starts
from tessel.placement import Placement
from tessel.schedule import Schedule

MAX_CSV_BYTES = 64 << 20
"""Longest text that is read; 64 ranks with 10⁵ actions each are a tenth of it."""

MAX_MICRO_BATCHES = 1 << 20
"""Largest number of a micro-batch that is read, and one more; a typing error must not ask for all memory."""

EXPECTED_AHEAD = 8
"""Actions whose receives may be posted before their turn: it hides a hop, and buffers stay few."""

_ACTION = re.compile(r"([0-9]{1,6})([FBIW])([0-9]{1,6})")
_OVERLAPPED = re.compile(r"\(([^()]{1,200})\)OVERLAP_F_B")
_DERIVED = re.compile(r"[0-9]{1,6}(?:(?:SEND|RECV)_[FB][0-9]{1,6}|UNSHARD|RESHARD|REDUCE_GRAD)")
"""Cells that torch derives from the others, and writes where it is asked for its whole program."""


class ActionKind(enum.StrEnum):
    """What a rank does with a stage and a micro-batch; the letters of torch's CSV."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


class Action(NamedTuple):
    """One piece of work of one rank."""

    stage: int
    kind: ActionKind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


RankActions: TypeAlias = tuple[tuple[Action, ...], ...]
"""The actions of every rank, first to last."""

RankCells: TypeAlias = tuple[tuple[tuple[Action, ...], ...], ...]
"""The cells of every rank: one action, or the forward and the backward that run at the same time."""


def actions_of(schedule: Schedule) -> RankActions:
    """Return every rank's actions, by start; a stage on several devices is in the order of each of them.

    Raises:
        EngineError: the placement has blocks that no action stands for; names the first.
    """
    action_of = _actions_by_block(_pipeline(schedule.placement))
    orders = device_orders(schedule.placement, schedule.start_by_block(), schedule.classes)
    return tuple(
        tuple(Action(*action_of[task.block_index], task.micro_batch) for task in order) for order in orders
    )


def schedule_of_actions(
    placement: Placement, actions: RankActions, *, batch: Batch | None = None, found_by: str = "actions"
) -> Schedule:
    """Return the schedule in which each action starts as early as the orders allow.

    Args:
        placement: whose blocks the actions are.
        actions: of each rank, in order.
        batch: what blocks take by micro-batch; None where the placement says it of all.
        found_by: whose the orders are.

    Raises:
        EngineError: an action has no block, is on another rank than its stage's devices, stands there twice
            or is missing, or actions wait for each other; the message names it.
    """
    orders = orders_of_actions(placement, actions)
    try:
        starts = earliest_starts(placement, orders, batch)
    except ScheduleError as error:
        raise EngineError(f"the ranks would wait for each other: {error}") from error
    micro_batches = 1 + max(task.micro_batch for order in orders for task in order)
    return Schedule.of(
        placement, starts, micro_batches=micro_batches, memory=None, batch=batch, found_by=found_by
    )


def orders_of_actions(placement: Placement, actions: RankActions) -> Orders:
    """Return the tasks of each device, in the order of its rank's actions, whether or not they deadlock.

    Raises:
        EngineError: an action has no block, is on another rank than its stage's devices, stands there twice
            or is missing; the message names it.
    """
    pipeline = _pipeline(placement)
    block_of = {action: block for block, action in _actions_by_block(pipeline).items()}
    if len(actions) != placement.devices:
        raise EngineError(
            f"there are actions of {len(actions)} ranks, but the placement has {placement.devices} devices; "
            "give one line per device"
        )
    without_input_half = {
        number
        for number, stage in enumerate(pipeline.stages)
        if stage.weight is not None and stage.input is None
    }
    orders = []
    for rank, own in enumerate(actions):
        order = []
        for action in own:
            if action.kind is ActionKind.BACKWARD_INPUT and action.stage in without_input_half:
                continue  # See `torch_actions`.
            block = block_of.get((action.stage, action.kind))
            if block is None or rank not in placement.blocks[block].devices:
                raise EngineError(
                    f"rank {rank} is given {action}, but the placement has no such block on device {rank}; "
                    "use the placement that the actions were made for"
                )
            order.append(Task(block, action.micro_batch))
        orders.append(order)
    micro_batches = 1 + max((action.micro_batch for own in actions for action in own), default=-1)
    if micro_batches < 1:
        raise EngineError("no rank has an action; a schedule runs at least one micro-batch")
    _check_complete(pipeline, orders, micro_batches)
    return orders


def actions_to_csv(actions: RankActions) -> str:
    """Return the CSV that torch.distributed.pipelining loads, one line per rank.

    Raises:
        EngineError: a stage is on several ranks, which that runtime cannot hold.
    """
    rank_by_stage: dict[int, int] = {}
    for rank, own in enumerate(actions):
        for action in own:
            if rank_by_stage.setdefault(action.stage, rank) != rank:
                raise EngineError(
                    f"stage {action.stage} is on ranks {rank_by_stage[action.stage]} and {rank}, but torch's "
                    "runtime holds a stage on one rank only; use `tessel run`, whose executor does not"
                )
    return cells_to_csv(tuple(tuple((action,) for action in own) for own in torch_actions(actions)))


def cells_of(schedule: Schedule, actions: RankActions) -> RankCells:
    """Return cells of actions, in which pairs that run together share one, the forward first.

    Args:
        schedule: with pairs or without.
        actions: its actions by start.
    """
    action_of = _actions_by_block(_pipeline(schedule.placement))
    partner = {
        Action(*action_of[backward.block_index], backward.micro_batch): Action(
            *action_of[forward.block_index], forward.micro_batch
        )
        for forward, backward in schedule.pairs
    }
    joined = set(partner.values())
    return tuple(
        tuple(
            (partner[action], action) if action in partner else (action,)
            for action in own
            if action not in joined
        )
        for own in actions
    )


def renumbered(actions: RankActions) -> RankActions:
    """Return the same actions with micro-batches numbered in the order in which the last stage runs them.

    Which micro-batch has which number is no matter, all being alike. But torch's own runtime keeps losses in
    order of arrival, and its gradients are silently wrong where the last stage's order does not ascend.
    """
    last = max((action.stage for own in actions for action in own), default=0)
    forwards = [
        action.micro_batch
        for own in actions
        for action in own
        if action.stage == last and action.kind is ActionKind.FORWARD
    ]
    number = {micro_batch: place for place, micro_batch in enumerate(dict.fromkeys(forwards))}
    return tuple(
        tuple(action._replace(micro_batch=number[action.micro_batch]) for action in own) for own in actions
    )


def torch_actions(actions: RankActions) -> RankActions:
    """Return the actions with an input half before each weight half that has none.

    A first stage, which nobody waits for, may do all of its backward as a weight half; torch's runtime wants
    both halves named, and does nothing in the first of them there.
    """
    return tuple(
        tuple(
            step
            for action in own
            for step in (
                (action,)
                if action.kind is not ActionKind.BACKWARD_WEIGHT or input_half(action) in own_actions
                else (input_half(action), action)
            )
        )
        for own, own_actions in zip(actions, map(frozenset, actions), strict=True)
    )


def input_half(action: Action) -> Action:
    """Return the input half beside a weight half."""
    return action._replace(kind=ActionKind.BACKWARD_INPUT)


def actions_from_csv(text: str) -> RankActions:
    """Read what `actions_to_csv` or torch's runtime wrote; the actions of a cell stand one after the other.

    Raises:
        EngineError: a cell is no action (the message names line and cell), or the text is no CSV.
    """
    return tuple(tuple(action for cell in row for action in cell) for row in cells_from_csv(text))


def cells_from_csv(text: str) -> RankCells:
    """Read the cells of each rank, in which a forward and a backward may overlap.

    Empty cells, which are idle steps, are left out, and so are sends, receives and what else torch derives
    from the other cells.

    Raises:
        EngineError: a cell is no action (the message names line and cell), or the text is no CSV.
    """
    if len(text) > MAX_CSV_BYTES:
        raise EngineError(
            f"the CSV has {len(text)} characters, more than the {MAX_CSV_BYTES} that are read; give the file "
            "of one training step"
        )
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        return tuple(
            tuple(_read_cell(cell, line) for cell in map(str.strip, row) if cell and not _is_derived(cell))
            for line, row in enumerate(rows, start=1)
        )
    except csv.Error as error:
        raise EngineError(
            f"line {rows.line_num} is no CSV ({error}); give one line per rank, cells such as 0F3"
        ) from error


def cells_to_csv(cells: RankCells) -> str:
    """Return the CSV of cells, as torch writes and loads it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell_text(cell) for cell in row] for row in cells)
    return text.getvalue()


def rank_by_stage(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each stage."""
    return tuple(stage.devices for stage in _pipeline(schedule.placement).stages)


def stages_before(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the stages that each stage receives from."""
    return tuple(stage.before for stage in _pipeline(schedule.placement).stages)


def check_chain(placement: Placement, *, copies: int = 1, branches: Sequence[Sequence[int]] = ()) -> int:
    """Return the number of stages of a placement whose stages are one chain, or equal copies of one.

    Args:
        placement: its stages stand in order, one copy after the other.
        branches: in place of a chain: the stages that each stage's program receives from.

    Raises:
        EngineError: a stage takes results of another than the one before it, or has no backward where an
            earlier one waits for gradients; names it.
    """
    stages = _pipeline(placement).stages
    of_copy, rest = divmod(len(stages), copies)
    if rest:
        raise EngineError(
            f"{len(stages)} stages are not {copies} equal copies of a pipeline; plan them with `tessel tune`"
        )
    if branches and len(branches) != len(stages):
        raise EngineError(
            f"the plan has {len(branches)} stages, and its placement {len(stages)}; tune the model again"
        )
    for number, stage in enumerate(stages):
        before = tuple(branches[number]) if branches else (number - 1,) if number % of_copy else ()
        name = placement.blocks[stage.forward].name
        waiting = [each for each in before if stages[each].has_backward and not stage.has_backward]
        if waiting:
            raise EngineError(
                f"stage {number} ({name}) has no backward, but stage {waiting[0]} has one and would wait for "
                "gradients indefinitely; give every stage after the first trained one a backward"
            )
        if stage.before != before and branches:
            raise EngineError(
                f"stage {number} ({name}) takes results of stages {list(stage.before)}, but was cut to take "
                f"those of {list(before)}; tune the model again"
            )
        if stage.before != before:
            raise EngineError(
                f"stage {number} ({name}) takes results of stages {list(stage.before)}, but the executor "
                "hands tensors from each stage to the next one only; relay what others need through the chain"
            )
    return len(stages)


def kinds_by_block(placement: Placement) -> dict[int, tuple[int, ActionKind]]:
    """Return the stage and the kind of action of each block, by its index.

    Raises:
        EngineError: the placement has blocks that no action stands for; names the first.
    """
    return _actions_by_block(_pipeline(placement))


def require_valid(schedule: Schedule) -> None:
    """Refuse, before any rank starts, a schedule whose ranks would wait for each other, or for ever.

    Raises:
        EngineError: the orders have no schedule; names the cycle, or what is missing.
    """
    schedule_of_actions(schedule.placement, actions_of(schedule))


def _is_derived(cell: str) -> bool:
    return _DERIVED.fullmatch(cell) is not None


def _read_cell(cell: str, line: int) -> tuple[Action, ...]:
    overlapped = _OVERLAPPED.fullmatch(cell)
    if overlapped is None:
        return (_read_action(cell, cell, line),)
    actions = tuple(_read_action(part.strip(), cell, line) for part in overlapped[1].split(";"))
    if len(actions) != 2 or [action.kind for action in actions].count(ActionKind.FORWARD) != 1:
        raise EngineError(
            f"line {line} has the cell {cell[:40]!r}, and a forward overlaps with one backward; write "
            "(0F7;7B3)OVERLAP_F_B, or a cell for each action"
        )
    return actions


def _read_action(text: str, cell: str, line: int) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None or int(match[3]) >= MAX_MICRO_BATCHES:
        raise EngineError(
            f"line {line} has the cell {cell[:40]!r}, which is no action; write stage, one of F B I W, "
            "micro-batch, such as 0F3"
        )
    return Action(int(match[1]), ActionKind(match[2]), int(match[3]))


def _cell_text(cell: Sequence[Action]) -> str:
    return str(cell[0]) if len(cell) == 1 else f"({';'.join(map(str, cell))})OVERLAP_F_B"


def _check_complete(pipeline: Pipeline, orders: Sequence[Sequence[Task]], micro_batches: int) -> None:
    """Refuse ranks that do not run each forward of their stages once, and each backward, whole or halved."""
    for rank, order in enumerate(orders):
        counts = Counter(order)
        for number, stage in enumerate(pipeline.stages):
            if rank not in stage.devices:
                continue
            blocks = _blocks_of(stage)
            wanted = tuple(_complete([kind for _, kind in blocks]))
            for micro_batch in range(micro_batches):
                found = tuple(kind for block, kind in blocks for _ in range(counts[Task(block, micro_batch)]))
                if found not in wanted:
                    raise EngineError(
                        f"rank {rank} runs {_cells(number, found, micro_batch)} of stage {number}, "
                        f"micro-batch {micro_batch}, but it must run "
                        f"{' or '.join(_cells(number, whole, micro_batch) for whole in wanted)}; "
                        "correct the order"
                    )


def _complete(kinds: Collection[ActionKind]) -> Iterator[tuple[ActionKind, ...]]:
    """Yield the ways to do all that a stage has blocks for, in the order of the blocks."""
    halves = tuple(kind for kind in kinds if kind in (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT))
    if ActionKind.BACKWARD in kinds:
        yield (ActionKind.FORWARD, ActionKind.BACKWARD)
    if halves or ActionKind.BACKWARD not in kinds:
        yield (ActionKind.FORWARD, *halves)


def _cells(stage: int, kinds: Sequence[ActionKind], micro_batch: int) -> str:
    return " ".join(str(Action(stage, kind, micro_batch)) for kind in kinds) or "nothing"


def _pipeline(placement: Placement) -> Pipeline:
    try:
        return read_pipeline(placement)
    except NotAPipelineError as error:
        raise EngineError(
            f"this placement cannot be run: {error}; give each stage a forward and its backward blocks"
        ) from error


def _actions_by_block(pipeline: Pipeline) -> dict[int, tuple[int, ActionKind]]:
    actions: dict[int, tuple[int, ActionKind]] = {}
    for number, stage in enumerate(pipeline.stages):
        if stage.recompute is not None:
            name = pipeline.placement.blocks[stage.recompute].name
            raise EngineError(
                f"block {name} is a recomputation of its own, which no runtime action stands for; recompute "
                "inside the stage (torch.utils.checkpoint), as part of its backward"
            )
        actions.update({block: (number, kind) for block, kind in _blocks_of(stage)})
    return actions


def _blocks_of(stage: Stage) -> Sequence[tuple[int, ActionKind]]:
    # A stage without an input half (the first, say) does all of its split backward as a weight half.
    blocks = [(stage.forward, ActionKind.FORWARD)]
    for block, kind in (
        (stage.joint, ActionKind.BACKWARD),
        (stage.input, ActionKind.BACKWARD_INPUT),
        (stage.weight, ActionKind.BACKWARD_WEIGHT),
    ):
        if block is not None:
            blocks.append((block, kind))
    return blocks
