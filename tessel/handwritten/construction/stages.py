"""A placement read as a pipeline: which blocks form a stage, and how the stages are connected.

Hand-written schedules are defined on stages, not blocks. A stage is a forward block with its backward, joint,
or split into an input and a weight half, or either as a choice, and perhaps a recomputation, all on the same
devices. Placements that cannot be read this way (a block of kind `other`, say) have no hand-written schedule.

    vshape, stages 0..3        zbv, stages 0..3 on two devices        interleaved, two chunks
    device 0   0               device 0   0     3                     device 0   0   2
    device 1     1             device 1     1 2                       device 1     1   3

Checked in tests/tessel/handwritten/construction/test_stages.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tessel.handwritten.construction.columns import kept
from tessel.instruction import Instruction
from tessel.placement import Block, BlockKind, Placement


class NotAPipelineError(Exception):
    """Say why a placement cannot be read as stages; caught where reasons are collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The blocks of one stage, as indices into the placement's blocks.

    Attributes:
        devices: where it runs; several for a tensor-parallel stage.
        forward: its forward block.
        recompute: its recomputation.
        joint: its joint backward.
        input: the input half of its split backward.
        weight: the weight half.
        before: stages whose results it takes.
        after: stages that take its result.
    """

    devices: tuple[int, ...]
    forward: int
    recompute: int | None
    joint: int | None
    input: int | None
    weight: int | None
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def is_split(self) -> bool:
        """Whether its backward can run as two halves."""
        return self.input is not None and self.weight is not None

    @property
    def has_backward(self) -> bool:
        """Whether it is trained."""
        return self.joint is not None or self.input is not None or self.weight is not None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of a placement, each after those it takes results from.

    Attributes:
        placement: where they come from.
        stages: in topological order.
    """

    placement: Placement
    stages: tuple[Stage, ...]

    @property
    def has_backward(self) -> bool:
        """Whether any stage is trained."""
        return any(stage.has_backward for stage in self.stages)

    @property
    def has_recompute(self) -> bool:
        """Whether any stage recomputes its forward."""
        return any(stage.recompute is not None for stage in self.stages)

    @property
    def is_split(self) -> bool:
        """Whether some stage can split its backward, and every trained one has a backward to run."""
        return any(stage.is_split for stage in self.stages)

    @property
    def num_chunks(self) -> int:
        """Most stages that one device has to itself."""
        return max(len(stages) for stages in self.own_stages())

    def own_stages(self) -> tuple[tuple[int, ...], ...]:
        """Return the stages that run on one device alone, for each device."""
        own: list[list[int]] = [[] for _ in range(self.placement.devices)]
        for index, stage in enumerate(self.stages):
            if len(stage.devices) == 1:
                own[stage.devices[0]].append(index)
        return tuple(map(tuple, own))

    def chain_devices(self) -> tuple[int, ...] | None:
        """Return the device of each stage if the stages are one chain of single-device stages, else None."""
        for index, stage in enumerate(self.stages):
            before = (index - 1,) if index else ()
            after = (index + 1,) if index + 1 < len(self.stages) else ()
            if len(stage.devices) != 1 or stage.before != before or stage.after != after:
                return None
        return tuple(stage.devices[0] for stage in self.stages)

    def on_devices(self, streams: Iterable[Iterable[Instruction]]) -> tuple[Iterable[Instruction], ...]:
        """Return each device's instructions, given them in the order in which the chain visits devices."""
        by_device: list[Iterable[Instruction]] = [()] * self.placement.devices
        visited = dict.fromkeys(stage.devices[0] for stage in self.stages)
        for device, stream in zip(visited, streams, strict=True):
            by_device[device] = kept(stream)
        return tuple(by_device)


# All rules read the same placement one after the other, and reading takes longer than most rules do.
@lru_cache(maxsize=16)
def read_pipeline(placement: Placement) -> Pipeline:
    """Return the stages of a placement.

    Raises:
        NotAPipelineError: a block belongs to no stage; the message names it.
    """
    parts = _parts_by_forward(placement)
    order = _topological_forwards(placement, parts)
    position = {forward: index for index, forward in enumerate(order)}
    before: dict[int, set[int]] = defaultdict(set)
    after: dict[int, set[int]] = defaultdict(set)
    index = placement.index_by_name
    for edge in placement.edges:
        source, target = index[edge.source], index[edge.target]
        if source in position and target in position:
            before[position[target]].add(position[source])
            after[position[source]].add(position[target])
    stages = tuple(
        Stage(
            devices=placement.blocks[forward].devices,
            forward=forward,
            recompute=parts[forward].get(BlockKind.RECOMPUTE),
            joint=parts[forward].get(BlockKind.BACKWARD),
            input=parts[forward].get(BlockKind.BACKWARD_INPUT),
            weight=parts[forward].get(BlockKind.BACKWARD_WEIGHT),
            before=tuple(sorted(before[number])),
            after=tuple(sorted(after[number])),
        )
        for number, forward in enumerate(order)
    )
    _check_choices(placement, stages)
    _check_edges(placement, stages)
    return Pipeline(placement, stages)


_PARENTS = {
    BlockKind.RECOMPUTE: (BlockKind.FORWARD,),
    BlockKind.BACKWARD: (BlockKind.RECOMPUTE, BlockKind.FORWARD),
    BlockKind.BACKWARD_INPUT: (BlockKind.RECOMPUTE, BlockKind.FORWARD),
    BlockKind.BACKWARD_WEIGHT: (BlockKind.BACKWARD_INPUT, BlockKind.RECOMPUTE, BlockKind.FORWARD),
}
"""Kinds of the block that a block hangs on, the surest sign first."""


def _parts_by_forward(placement: Placement) -> dict[int, dict[BlockKind, int]]:
    """For each forward block, its stage's other blocks by kind."""
    blocks = placement.blocks
    index = placement.index_by_name
    order = [index[name] for name in placement.topological_order]
    parts: dict[int, dict[BlockKind, int]] = {
        number: {} for number, block in enumerate(blocks) if block.kind is BlockKind.FORWARD
    }
    forward_of = {number: number for number in parts}
    for kind, parent_kinds in _PARENTS.items():
        free = set(forward_of)
        for number in order:
            if blocks[number].kind is not kind:
                continue
            forward = forward_of[_parent(placement, number, parent_kinds, free)]
            free -= {forward, *parts[forward].values()}
            parts[forward][kind] = number
            forward_of[number] = forward
    unread = [block.name for number, block in enumerate(blocks) if number not in forward_of]
    if unread:
        raise NotAPipelineError(f"block {unread[0]} is neither a forward nor a stage's backward")
    return parts


def _parent(placement: Placement, number: int, kinds: tuple[BlockKind, ...], free: set[int]) -> int:
    """The block that another one hangs on: one it waits for directly, or the last on the way to it.

    Args:
        number: the block whose parent is wanted.
        kinds: kinds of the parent, the surest first.
        free: blocks of stages that have no block of this kind yet.
    """
    blocks = placement.blocks
    index = placement.index_by_name
    name = blocks[number].name
    direct = [index[source] for source in placement.waits_for[name]]
    for kind in kinds:
        for parent in direct:
            if parent in free and blocks[parent].kind is kind and _same_devices(blocks, parent, number):
                return parent
    above = {index[source] for source in placement.reachable(name, by=placement.waits_for)}
    on_the_way = [parent for parent in free & above if _same_devices(blocks, parent, number)]
    for kind in kinds:
        fitting = [parent for parent in on_the_way if blocks[parent].kind is kind]
        if fitting:
            # Of several chunks on one device, gradients come back through the last first.
            return max(fitting, key=lambda parent: (_depth(placement, parent), parent))
    raise NotAPipelineError(
        f"{blocks[number].kind} block {name} follows no forward of its own on its devices"
    )


def _same_devices(blocks: tuple[Block, ...], one: int, other: int) -> bool:
    return blocks[one].devices == blocks[other].devices


def _depth(placement: Placement, number: int) -> int:
    """Blocks that come before a block; more for a later one of a chain."""
    return len(placement.reachable(placement.blocks[number].name, by=placement.waits_for))


def _topological_forwards(placement: Placement, parts: dict[int, dict[BlockKind, int]]) -> list[int]:
    """Forward blocks, each after those it takes results from; ties in block order."""
    index = placement.index_by_name
    pending = dict.fromkeys(parts, 0)
    followers: dict[int, set[int]] = defaultdict(set)
    for edge in placement.edges:
        source, target = index[edge.source], index[edge.target]
        if source in parts and target in parts and target not in followers[source]:
            followers[source].add(target)
            pending[target] += 1
    order: list[int] = []
    while pending:
        ready = next(forward for forward, count in pending.items() if count == 0)
        order.append(ready)
        del pending[ready]
        for follower in followers[ready]:
            pending[follower] -= 1
    return order


def _check_choices(placement: Placement, stages: tuple[Stage, ...]) -> None:
    """A choice is between the joint and the split backward of one stage, and each such stage has one."""
    index = placement.index_by_name
    chosen = {
        frozenset(frozenset(index[name] for name in option) for option in choice.options)
        for choice in placement.choices
    }
    for stage in stages:
        if stage.joint is None or (stage.input is None and stage.weight is None):
            continue
        split = frozenset(half for half in (stage.input, stage.weight) if half is not None)
        wanted = frozenset((frozenset((stage.joint,)), split))
        if wanted not in chosen:
            raise NotAPipelineError(
                f"stage of {placement.blocks[stage.forward].name} has a joint and a split backward, "
                "but no choice between them"
            )
        chosen.remove(wanted)
    if chosen:
        raise NotAPipelineError("it has a choice that is not between a stage's joint and split backward")


def _check_edges(placement: Placement, stages: tuple[Stage, ...]) -> None:
    """Results go from forward to forward, gradients from backward to backward, the rest stays in its stage.

    Orders are published for such pipelines; with other dependencies they could deadlock.
    """
    index = placement.index_by_name
    stage_of = {
        part: number
        for number, stage in enumerate(stages)
        for part in (stage.forward, stage.recompute, stage.joint, stage.input, stage.weight)
        if part is not None
    }
    gradients = {part for stage in stages for part in (stage.joint, stage.input)}
    forwards = {stage.forward for stage in stages}
    for edge in placement.edges:
        source, target = index[edge.source], index[edge.target]
        is_result = source in forwards and target in forwards
        # Stages stand in topological order, so that gradients go to earlier ones.
        is_gradient = {source, target} <= gradients and stage_of[source] > stage_of[target]
        if not (is_result or is_gradient or stage_of[source] == stage_of[target]):
            raise NotAPipelineError(
                f"edge {edge.source} -> {edge.target} carries neither a result to the next stage "
                "nor a gradient to the one before"
            )
        if stage_of[source] == stage_of[target] and _comes_later(placement, source, target):
            raise NotAPipelineError(
                f"edge {edge.source} -> {edge.target} goes against the order of a stage: forward, "
                "recomputation, backward or its input half, weight half"
            )


_PLACE_IN_STAGE = {
    BlockKind.FORWARD: 0,
    BlockKind.RECOMPUTE: 1,
    BlockKind.BACKWARD: 2,
    BlockKind.BACKWARD_INPUT: 2,
    BlockKind.BACKWARD_WEIGHT: 3,
}
"""In which order rules run the blocks of a stage."""


def _comes_later(placement: Placement, source: int, target: int) -> bool:
    """Whether rules run one block of a stage after another one."""
    kinds = (placement.blocks[source].kind, placement.blocks[target].kind)
    return _PLACE_IN_STAGE[kinds[0]] > _PLACE_IN_STAGE[kinds[1]]
