"""The DAG of a user-defined schedule: instructions per device, and rules that give their dependencies.

A rule is a function from an instruction to what comes before it. `pipeline_rule` is that of a pipeline;
further rules can be passed with it, and may refer to custom kinds of instruction and to other micro-batches:

    >>> def one_at_a_time(instruction, num_stages):
    ...     if isinstance(instruction, Forward) and instruction.stage == 0 and instruction.micro_batch > 0:
    ...         yield Backward, 0, instruction.micro_batch - 1

The DAG has a placement like any schedule of this package: a stage is on one device and alike in all
micro-batches; where some micro-batches split its backward, that is a choice, and so is a recomputation or a
custom instruction that only some have, such as one all-reduce after the last. Waits between micro-batches
stand in the DAG only. Checked in tests/tessel/dag/test_pipeline_dag.py.

Source: Rasley et al., DeepSpeed, and Chung et al., Perseus (SOSP 2024), whose rules decide about pairs of
instructions; naming what comes before takes one operation per instruction instead of one per pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from tessel.dag.schedule_dag import Dag, Task
from tessel.errors import ScheduleError
from tessel.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    PipelineSchedule,
    Recompute,
    number_for,
)
from tessel.placement import Block, BlockKind, Choice, Edge, Placement

Key = tuple[type[Instruction], int, int]
"""An instruction without its duration: kind, stage, micro-batch."""

Rule = Callable[[Instruction, int], Iterable[Key]]
"""What an instruction waits for, given the number of stages; what is not in the streams does not count."""


def pipeline_rule(instruction: Instruction, num_stages: int) -> Iterator[Key]:
    """Yield what an instruction waits for: results of the stage before, gradients of the one after."""
    stage, micro_batch = instruction.stage, instruction.micro_batch
    match instruction:
        case Forward() if stage > 0:
            yield Forward, stage - 1, micro_batch
        case Recompute():
            yield Forward, stage, micro_batch
        case Backward() | BackwardInput():
            yield Forward, stage, micro_batch
            yield Recompute, stage, micro_batch
            if stage + 1 < num_stages:
                yield Backward, stage + 1, micro_batch
                yield BackwardInput, stage + 1, micro_batch
        case BackwardWeight():
            yield BackwardInput, stage, micro_batch


def dag_of_pipeline(
    pipeline: PipelineSchedule, *, rules: Sequence[Rule] = (pipeline_rule,), hop: int = 0
) -> Dag:
    """Return the DAG of a schedule of one's own.

    Args:
        pipeline: yields each device's instructions.
        rules: what instructions wait for, all rules together.
        hop: steps from the end of an instruction to the start of one on another device that waits for it.

    Raises:
        ScheduleError: instructions wait for each other, one occurs twice, a stage is on two devices, or a
        kind
            of instruction takes longer for one micro-batch of a stage than for another.
    """
    streams = pipeline.streams()
    by_key, device_of = _index(streams)
    waits: _Waits = {
        key: {
            before: hop if device_of[before] != device_of[key] else 0
            for rule in rules
            for before in rule(instruction, pipeline.num_stages)
            if before in by_key
        }
        for key, instruction in by_key.items()
    }
    placement = _placement(pipeline, by_key, device_of, waits)
    block = {key: placement.index_by_name[_name(key)] for key in by_key}
    tasks = [Task(block[key], key[2], instruction.duration) for key, instruction in by_key.items()]
    tasks += _left_out(placement, tasks, pipeline.num_micro_batches)
    arcs = [
        ((block[before], before[2]), (block[key], key[2]), lag)
        for key, earlier in waits.items()
        for before, lag in earlier.items()
    ]
    arcs += [
        ((block[before], before[2]), (block[after], after[2]), 0)
        for stream in streams
        for before, after in pairwise(map(_key, stream))
    ]
    return Dag.of(placement, pipeline.num_micro_batches, tasks, arcs)


_NAMES: dict[type[Instruction], tuple[str, BlockKind]] = {
    Forward: ("f{}", BlockKind.FORWARD),
    Backward: ("b{}", BlockKind.BACKWARD),
    BackwardInput: ("b{}_input", BlockKind.BACKWARD_INPUT),
    BackwardWeight: ("b{}_weight", BlockKind.BACKWARD_WEIGHT),
    Recompute: ("r{}", BlockKind.RECOMPUTE),
}
"""Block names and kinds by kind of instruction; others are named after their class."""

_LEFT_OUT = "_left_out"
"""Ends the name of the block without span that a micro-batch runs where it leaves another out."""

_Waits = dict[Key, dict[Key, int]]
"""For each instruction what it waits for, and the lag."""


def _index(streams: Sequence[Sequence[Instruction]]) -> tuple[dict[Key, Instruction], dict[Key, int]]:
    """Instructions and their devices by key."""
    by_key: dict[Key, Instruction] = {}
    device_of: dict[Key, int] = {}
    for device, stream in enumerate(streams):
        for instruction in stream:
            key = _key(instruction)
            if key in by_key:
                raise ScheduleError(
                    f"{_name(key)}[{key[2]}] is on device {device_of[key]} and again on device {device}; "
                    "an instruction runs once, leave one out"
                )
            by_key[key] = instruction
            device_of[key] = device
    if not by_key:
        raise ScheduleError("no device has an instruction; yield at least one")
    return by_key, device_of


def _key(instruction: Instruction) -> Key:
    return type(instruction), instruction.stage, instruction.micro_batch


def _name(key: Key) -> str:
    kind, stage, _ = key
    form, _ = _NAMES.get(kind, (kind.__name__.lower() + "{}", BlockKind.OTHER))
    return form.format(stage)


def _placement(
    pipeline: PipelineSchedule,
    by_key: dict[Key, Instruction],
    device_of: dict[Key, int],
    waits: _Waits,
) -> Placement:
    """One micro-batch's blocks, which must be alike in all, and the waits that all micro-batches share."""
    blocks: dict[str, Block] = {}
    for key, instruction in by_key.items():
        _, kind = _NAMES.get(key[0], ("", BlockKind.OTHER))
        block = Block(
            name=_name(key),
            kind=kind,
            devices=(device_of[key],),
            span=instruction.duration,
            memory=number_for(pipeline.memory, instruction, 0),
        )
        known = blocks.setdefault(block.name, block)
        if known != block:
            raise ScheduleError(
                f"{block.name} is on device {known.devices[0]} for {known.span} steps in one micro-batch and "
                f"on device {block.devices[0]} for {block.span} in another; a stage is the same in all"
            )
    choices = tuple(_choices(blocks, pipeline.num_stages))
    runs = Counter(map(_name, by_key))
    needed = (BlockKind.FORWARD, BlockKind.BACKWARD, BlockKind.BACKWARD_INPUT, BlockKind.BACKWARD_WEIGHT)
    some = [
        block
        for name, block in blocks.items()
        if runs[name] < pipeline.num_micro_batches and block.kind not in needed
    ]
    left_out = [
        Block(name=block.name + _LEFT_OUT, kind=BlockKind.OTHER, devices=block.devices, span=0, memory=0)
        for block in some
    ]
    return Placement(
        devices=pipeline.num_devices,
        blocks=(*blocks.values(), *left_out),
        edges=tuple(_shared_edges(by_key, waits)),
        choices=(
            *choices,
            *(Choice(block.name, ((block.name,), (block.name + _LEFT_OUT,))) for block in some),
        ),
    )


def _left_out(placement: Placement, tasks: Sequence[Task], micro_batches: int) -> Iterator[Task]:
    """Yield, for each micro-batch that leaves out a block, the task without duration that stands for it."""
    run = {(task.block_index, task.micro_batch) for task in tasks}
    for name, index in placement.index_by_name.items():
        if name + _LEFT_OUT in placement.index_by_name:
            for micro_batch in range(micro_batches):
                if (index, micro_batch) not in run:
                    yield Task(placement.index_by_name[name + _LEFT_OUT], micro_batch, 0)


def _shared_edges(by_key: dict[Key, Instruction], waits: _Waits) -> Iterator[Edge]:
    """Waits inside a micro-batch that hold in every micro-batch that runs both blocks."""
    lags: dict[tuple[str, str], list[int]] = defaultdict(list)
    pairs: dict[tuple[str, str], tuple[Key, Key]] = {}
    for key, earlier in waits.items():
        for before, lag in earlier.items():
            if before[2] == key[2]:
                lags[_name(before), _name(key)].append(lag)
                pairs[_name(before), _name(key)] = (before, key)
    micro_batches = {micro_batch for _, _, micro_batch in by_key}
    for names, found in lags.items():
        before, key = pairs[names]
        num_both = sum((*before[:2], m) in by_key and (*key[:2], m) in by_key for m in micro_batches)
        if num_both == len(found):
            yield Edge(*names, min(found))


def _choices(blocks: dict[str, Block], num_stages: int) -> Iterator[Choice]:
    """Stages that run their backward whole in some micro-batches and split in others."""
    for stage in range(num_stages):
        whole = f"b{stage}"
        halves = tuple(name for name in (f"b{stage}_input", f"b{stage}_weight") if name in blocks)
        if whole in blocks and halves:
            yield Choice(whole, ((whole,), halves))
