"""DeepSpeed's layer bounds (`parts`) and a `PipeSchedule` subclass that runs a plan's order.

DeepSpeed holds one stage a rank and runs joint backwards. Its engine executes each rank's instructions one
after the other, and what it keeps between them decides which orders are right:

- A send blocks until its receive runs. Each transfer has one place in an order of all blocks and transfers
  that agrees with every rank's, so that no rank waits for ever.
- An engine holds one incoming gradient and, on the last stage, one loss: a gradient is received right before
  its backward, and the last stage runs each backward right after its forward. Where the plan has those apart,
  its last stage's forwards are delayed, which no other stage waits for.
- The first and the last stage read the same sequence of micro-batches, so both load in ascending order.
- A buffer holds a micro-batch from its input to its gradient's departure; buffers are used again as soon as
  they are free.

The file is plain Python that imports `deepspeed` alone: orders are texts, `F3` a forward in buffer 3. Checked
in tests/tessel/exports/test_deepspeed.py by an interpreter of such instruction streams.

Source: DeepSpeed, `runtime/pipe/schedule.py`, `engine.py` and `module.py`; Rasley et al., KDD 2020.
"""

from __future__ import annotations

import heapq
import textwrap
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Template
from typing import NamedTuple

from tessel.engine.actions import Action, ActionKind, RankActions, kinds_by_block
from tessel.errors import ScheduleError
from tessel.exports.notes import notes_of, require_layers, require_sharding
from tessel.exports.recipe import Recipe, renumbered_by_first_stage
from tessel.orders import Task, earliest_starts

MODULE_NAME = "planned_pipeline"
"""What the file is called in its own words; any name will do."""

MAX_PLACES = 32
"""Places that are tried for a transfer before the best of them is taken."""


class Instruction(NamedTuple):
    """One instruction of a rank, a letter for DeepSpeed's class and the buffer.

    `L` loads a micro-batch, `F` and `B` are its passes, `A` sends and `a` receives an activation, `G` sends
    and `g` receives a gradient.
    """

    letter: str
    buffer: int

    def __str__(self) -> str:
        return f"{self.letter}{self.buffer}"


Streams = tuple[tuple[Instruction, ...], ...]
"""The instructions of every stage."""


def parts_of(recipe: Recipe) -> tuple[int, ...]:
    """Return DeepSpeed's `parts`: the first layer of each stage, and the number of layers.

    Raises:
        ScheduleError: the layers are not known.
    """
    require_layers(recipe, "DeepSpeed")
    return (*(first for first, _ in recipe.cuts), len(recipe.layers))


def instruction_streams(recipe: Recipe) -> Streams:
    """Return the instructions of every stage.

    Raises:
        ScheduleError: DeepSpeed cannot run the recipe; says why.
    """
    _check(recipe)
    orders = renumbered_by_first_stage(tuple(recipe.actions))
    orders = (*orders[:-1], _backward_after_forward(orders[-1]))
    events = _with_transfers(recipe, orders)
    return tuple(_stream(stage, recipe.num_stages, own) for stage, own in enumerate(events))


def deepspeed_module(recipe: Recipe) -> str:
    """Return the Python file that a DeepSpeed job imports.

    Raises:
        ScheduleError: DeepSpeed cannot run the recipe, or its layers are not known.
    """
    require_sharding(recipe, "DeepSpeed", ("optimizer",))
    if recipe.context_parallel * recipe.expert_parallel > 1:
        raise ScheduleError(
            f"the plan has context-parallel degree {recipe.context_parallel} and expert-parallel degree "
            f"{recipe.expert_parallel}, and DeepSpeed's pipelines have neither; plan with both 1"
        )
    parts, streams = parts_of(recipe), instruction_streams(recipe)
    return _FILE.substitute(
        stages=recipe.num_stages,
        micro_batches=recipe.micro_batches,
        module=MODULE_NAME,
        processes=recipe.processes,
        num_layers=parts[-1],
        batch_setting=""
        if recipe.micro_batch is None
        else f' and "train_micro_batch_size_per_gpu": {recipe.micro_batch}',
        zero="" if recipe.sharding == "none" else ' and "zero_optimization": {"stage": 1}',
        parts=repr(list(parts)),
        recompute=repr(list(recipe.recompute or (False,) * recipe.num_stages)),
        layers=_indented(map(repr, recipe.layers)),
        notes="".join(
            f"\n{line}" for note in notes_of(recipe, "deepspeed") for line in textwrap.wrap(note, 100)
        ),
        streams=_streams_text(streams),
    )


def _check(recipe: Recipe) -> None:
    if recipe.num_stages != recipe.devices or not recipe.is_loop:
        raise ScheduleError(
            f"the plan has {recipe.num_stages} stages on {recipe.devices} ranks, and DeepSpeed holds "
            "stage i on rank i; plan with --placement vshape"
        )
    if recipe.num_stages < 2:
        raise ScheduleError("the plan has one stage, which is no pipeline in DeepSpeed; use its engine alone")
    if recipe.has_split_backward:
        raise ScheduleError(
            "the plan splits backwards, and DeepSpeed runs joint ones only; plan with --joint-backward"
        )
    if recipe.cuts and set(range(recipe.cuts[0][1] + 1)) <= set(recipe.frozen):
        raise ScheduleError(
            "the first stage trains nothing, and DeepSpeed 0.19.8 stops in its backward without a gradient; "
            "plan on fewer devices, so that the first stage has a trained row, or use --to torch"
        )
    if not recipe.is_trained:
        raise ScheduleError(
            "the plan has no backward, and only DeepSpeed's training schedule can be replaced"
        )


def _backward_after_forward(own: Sequence[Action]) -> tuple[Action, ...]:
    """Return the last stage's actions with each forward right before its backward."""
    return tuple(
        step
        for action in own
        if action.kind is ActionKind.BACKWARD
        for step in (action._replace(kind=ActionKind.FORWARD), action)
    )


class _Block(NamedTuple):
    """A pass of a stage, with its time in the plan."""

    action: Action
    start: int
    end: int


class _Transfer(NamedTuple):
    """A tensor on its way between neighbours, just before the block at `place` of the order of all blocks."""

    place: int
    source: int
    target: int
    micro_batch: int


_Event = _Block | _Transfer


def _with_transfers(recipe: Recipe, orders: RankActions) -> list[list[_Event]]:
    """Return each stage's passes and transfers, in orders that no rank waits for ever in."""
    blocks = _in_one_order(recipe, orders)
    place_of = {block.action: place for place, block in enumerate(blocks)}
    own: list[list[int]] = [[] for _ in orders]
    for place, block in enumerate(blocks):
        own[block.action.stage].append(place)
    keyed: list[list[tuple[int, _Event]]] = [[] for _ in orders]
    # Sorted by place alone, and stably: at one place transfers come first, as they get ready.
    for transfer in _transfers(blocks, place_of, own):
        for stage in (transfer.source, transfer.target):
            keyed[stage].append((transfer.place, transfer))
    for place, block in enumerate(blocks):
        keyed[block.action.stage].append((place, block))
    return [[event for _, event in sorted(events, key=lambda pair: pair[0])] for events in keyed]


def _in_one_order(recipe: Recipe, orders: RankActions) -> list[_Block]:
    """Return all passes by start, each after those it waits for."""
    placement = recipe.schedule.placement
    action_of = kinds_by_block(placement)
    block_of = {kind: block for block, kind in action_of.items()}
    tasks = [
        [Task(block_of[action.stage, action.kind], action.micro_batch) for action in own] for own in orders
    ]
    schedule = recipe.schedule
    starts = earliest_starts(placement, tasks, schedule.classes)
    return [
        _Block(Action(*action_of[block], micro_batch), start, start + schedule.span_of(block, micro_batch))
        for (block, micro_batch), start in sorted(starts.items(), key=lambda item: item[1])
    ]


def _transfers(
    blocks: Sequence[_Block], place_of: Mapping[Action, int], own: Sequence[Sequence[int]]
) -> Iterator[_Transfer]:
    """Yield every activation and gradient with its place, in the order in which they are ready."""
    last = len(own) - 1
    for place, block in enumerate(blocks):
        stage, kind, micro_batch = block.action
        is_forward = kind is ActionKind.FORWARD
        target = stage + 1 if is_forward else stage - 1
        if not 0 <= target <= last:
            continue
        until = place_of[Action(target, kind, micro_batch)]
        after = place if is_forward else max(place, _backward_before(blocks, own[target], until))
        found = _place(blocks, (own[stage], own[target]), after=after, until=until)
        yield _Transfer(found, stage, target, micro_batch)


def _backward_before(blocks: Sequence[_Block], own: Sequence[int], until: int) -> int:
    """Return the place of the stage's backward before one of its backwards; -1 where it is the first."""
    for position in range(bisect_left(own, until) - 1, -1, -1):
        if blocks[own[position]].action.kind is ActionKind.BACKWARD:
            return own[position]
    return -1


def _place(
    blocks: Sequence[_Block], ends: tuple[Sequence[int], Sequence[int]], *, after: int, until: int
) -> int:
    """Return the place of a transfer at which both ends wait least; of several, the last, for fewer buffers.

    A transfer before place k runs once both ranks are done with what they have before k; each then waits for
    the other.

    Args:
        blocks: all passes in one order.
        ends: places of the passes of the two ranks.
        after: it comes later than this one,
        until: and no later than just before this one.
    """
    choices = {after + 1, until}
    for own in ends:
        first = bisect_left(own, after + 1)
        choices.update(min(place + 1, until) for place in own[first : first + MAX_PLACES] if place < until)
    return min(sorted(choices, reverse=True), key=lambda place: _waiting(blocks, ends, place))


def _waiting(blocks: Sequence[_Block], ends: tuple[Sequence[int], Sequence[int]], place: int) -> int:
    """Return steps by which a transfer before this place delays the next passes of its two ranks."""
    positions = [bisect_left(own, place) for own in ends]
    done = max(
        blocks[own[position - 1]].end if position else 0
        for own, position in zip(ends, positions, strict=True)
    )
    return sum(
        max(0, done - blocks[own[position]].start)
        for own, position in zip(ends, positions, strict=True)
        if position < len(own)
    )


class _Buffers:
    """The buffers of a stage: the lowest free one is taken."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._of: dict[int, int] = {}
        self._count = 0

    def of(self, micro_batch: int) -> int:
        """Return the buffer of a micro-batch, a free one where it has none."""
        if micro_batch not in self._of:
            if not self._free:
                self._free.append(self._count)
                self._count += 1
            self._of[micro_batch] = heapq.heappop(self._free)
        return self._of[micro_batch]

    def release(self, micro_batch: int) -> None:
        heapq.heappush(self._free, self._of.pop(micro_batch))


def _stream(stage: int, num_stages: int, events: Iterable[_Event]) -> tuple[Instruction, ...]:
    """Return one stage's instructions with their buffers."""
    buffers = _Buffers()
    found: list[Instruction] = []
    loaded = 0
    for event in events:
        if isinstance(event, _Transfer):
            letter = _letter(event, stage)
            found.append(Instruction(letter, buffers.of(event.micro_batch)))
            if letter == "G":
                buffers.release(event.micro_batch)
            continue
        _, kind, micro_batch = event.action
        if kind is ActionKind.FORWARD and stage in (0, num_stages - 1):
            found += [Instruction("L", buffers.of(number)) for number in range(loaded, micro_batch + 1)]
            loaded = max(loaded, micro_batch + 1)
        found.append(Instruction(str(kind), buffers.of(micro_batch)))
        if kind is ActionKind.BACKWARD and stage == 0:
            buffers.release(micro_batch)
    return tuple(found)


def _letter(transfer: _Transfer, stage: int) -> str:
    is_activation = transfer.source < transfer.target
    if stage == transfer.source:
        return "A" if is_activation else "G"
    return "a" if is_activation else "g"


def _indented(lines: Iterable[str]) -> str:
    return "".join(f"    {line},\n" for line in lines)


def _streams_text(streams: Streams) -> str:
    """Return a Python text for each stage, broken into lines."""
    found = []
    for stage, own in enumerate(streams):
        found.append(f"    # stage {stage}")
        lines = textwrap.wrap(" ".join(map(str, own)), 96)
        found += [f'    "{line} "' for line in lines[:-1]]
        found.append(f'    "{lines[-1]}",')
    return "\n".join(found)


_FILE = Template(
    '''"""A pipeline of $stages stages and $micro_batches micro-batches for DeepSpeed, by `tessel export`.

    import $module
    $module.use_plan()  # before train_batch: replaces DeepSpeed's 1F1B
    model = $module.PlannedPipelineModule(layers, num_stages=$stages, loss_fn=...)
    engine, *_ = deepspeed.initialize(model=model, ...)

Start it with: deepspeed --num_gpus $processes YOUR_SCRIPT.py YOUR_OTHER_ARGUMENTS
where this file stands beside YOUR_SCRIPT.py, which holds the lines above.
The configuration needs "gradient_accumulation_steps": $micro_batches$batch_setting$zero.
`layers` has $num_layers entries, of which stage i takes those from PARTS[i] to PARTS[i + 1].$notes
"""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.pipe import schedule

STAGES = $stages
MICRO_BATCHES = $micro_batches
PARTS = $parts
RECOMPUTE = $recompute

LAYERS = [
$layers]
"""What the plan calls each entry of `layers`."""

ORDERS = [
$streams
]
"""Instructions of each stage: L load, F and B passes, A/a send and receive an activation, G/g a gradient;
each with its buffer. Every transfer has the same place in the orders of both its ends, so that blocking sends
end."""

_INSTRUCTIONS = {
    "L": schedule.LoadMicroBatch,
    "F": schedule.ForwardPass,
    "B": schedule.BackwardPass,
    "A": schedule.SendActivation,
    "a": schedule.RecvActivation,
    "G": schedule.SendGrad,
    "g": schedule.RecvGrad,
}


class PlannedPipelineModule(PipelineModule):
    """A PipelineModule whose stages are those of the plan."""

    def __init__(self, layers, *arguments, **options):
        layers = list(layers)
        if len(layers) != PARTS[-1]:
            raise ValueError(f"the model has {len(layers)} layers, the plan {PARTS[-1]}; see LAYERS")
        if any(RECOMPUTE):  # DeepSpeed's own default cannot recompute a stage whose input has no gradient
            options.setdefault("activation_checkpoint_func", checkpointing.non_reentrant_checkpoint)
        super().__init__(layers, *arguments, **options)
        if any(RECOMPUTE):
            self.activation_checkpoint_interval = int(RECOMPUTE[self.stage_id])

    def _partition_layers(self, method="uniform"):
        if self._topo.get_dim("pipe") != STAGES:
            raise ValueError(f"the job has {self._topo.get_dim('pipe')} stages, the plan {STAGES}")
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(PARTS)
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])


class PlannedSchedule(schedule.PipeSchedule):
    """The order of the plan."""

    def __init__(self, micro_batches, stages, stage_id):
        if (micro_batches, stages) != (MICRO_BATCHES, STAGES):
            raise ValueError(
                f"the job has {micro_batches} micro-batches on {stages} stages, "
                f"the plan {MICRO_BATCHES} on {STAGES}; "
                "set gradient_accumulation_steps and num_stages to the plan's"
            )
        super().__init__(micro_batches, stages, stage_id)
        self._order = [(word[0], int(word[1:])) for word in ORDERS[stage_id].split()]

    def steps(self):
        """Yield the instructions up to each pass, then those that end the batch."""
        step = []
        for letter, buffer in self._order:
            step.append(_INSTRUCTIONS[letter](buffer_id=buffer))
            if letter in "FB":
                yield step
                step = []
        yield [*step, schedule.ReduceTiedGrads(), schedule.ReduceGrads(), schedule.OptimizerStep()]

    def num_pipe_buffers(self):
        """Return how many micro-batches the stage holds at most, DeepSpeed's least being 2."""
        return max(2, 1 + max(buffer for _, buffer in self._order))


def use_plan():
    """Have every engine of this process train in the order of the plan."""
    schedule.TrainSchedule = PlannedSchedule
'''
)
