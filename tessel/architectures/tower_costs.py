"""Rows of a tower in a profile of predicted costs: an embedding of patches, blocks, and a projector.

Pictures are divided over the devices of a context-parallel group, a whole picture each, and the projector
gathers their tokens, of which each device then has its part of the sequence. What is frozen has no backward
and keeps nothing for one, and the projector behind it none towards its input. Checked in
tests/tessel/architectures/test_towers.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from tessel.architectures.architecture import Tower
from tessel.architectures.block_costs import boundary_of, costs_of_block, costs_of_work
from tessel.architectures.kernels import ELEMENT_BYTES, Exchange, KernelPrice
from tessel.architectures.shape import Shape
from tessel.architectures.work import Work
from tessel.profiles.profile import StageCosts

PATCHES = "vision.patches"
PROJECTOR = "vision.projector"


def tower_rows(tower: Tower | None) -> tuple[str, ...]:
    """Return the names of a tower's rows, in their order; none without one."""
    if tower is None:
        return ()
    return (PATCHES, *(f"vision.layers.{index}" for index in range(len(tower.blocks))), PROJECTOR)


def tower_costs(tower: Tower | None, shape: Shape, price: KernelPrice) -> tuple[StageCosts, ...]:
    """Return the costs of a tower's rows at a shape of the language model."""
    if tower is None:
        return ()
    seen = _shape_of_pictures(tower, shape)
    kinds = {block: costs_of_block(block, seen, price) for block in set(tower.blocks)}
    rows = [_patch_costs(tower, seen, price), *(kinds[block] for block in tower.blocks)]
    if tower.is_frozen:
        rows = [_frozen(cost) for cost in rows]
    return (*rows, _projector_costs(tower, seen, shape, price))


def merged_rows(tower: Tower, shape: Shape) -> float:
    """Return the tokens of pictures in a device's part of the language model's sequences."""
    share = shape.own_rows / (shape.micro_batch * shape.recipe.tokens)
    return shape.micro_batch * tower.pictures * tower.tokens * share


def _shape_of_pictures(tower: Tower, shape: Shape) -> Shape:
    """Return the shape at which blocks run: a sequence is the patches of one picture."""
    return replace(
        shape,
        recipe=replace(shape.recipe, tokens=tower.patches),
        micro_batch=math.ceil(shape.micro_batch * tower.pictures / shape.context_parallel),
        context_parallel=1,
        expert_parallel=1,
    )


def _frozen(cost: StageCosts) -> StageCosts:
    return msgspec.structs.replace(
        cost,
        backward_us=0.0,
        backward_input_us=0.0,
        backward_weight_us=0.0,
        trained_bytes=0,
        saved_bytes=0,
        saved_for_weight_bytes=0,
    )


def _patch_costs(tower: Tower, seen: Shape, price: KernelPrice) -> StageCosts:
    work = Work()
    work.product(tower.patch, seen.own_rows, seen)
    work.backward_input.clear()  # pixels have no gradient
    work.keep(ELEMENT_BYTES * seen.own_rows * tower.patch.inputs, for_weight=True)
    if tower.vectors:
        work.elementwise(2 * ELEMENT_BYTES * seen.own_rows * tower.hidden)
        work.keep(ELEMENT_BYTES * seen.own_rows * tower.hidden)
    weights = ELEMENT_BYTES * tower.patch_parameters
    return costs_of_work(work, weights, 0, boundary_of(tower.hidden, seen), seen, price)


def _projector_costs(tower: Tower, seen: Shape, shape: Shape, price: KernelPrice) -> StageCosts:
    """Return the cost of the projector, whose products each device runs for the tokens that it has."""
    work = Work()
    rows = seen.own_rows / tower.merged
    work.elementwise(2 * ELEMENT_BYTES * seen.own_rows * tower.hidden)  # a norm, and the merge
    work.keep(ELEMENT_BYTES * seen.own_rows * tower.hidden, for_weight=True)
    for index, linear in enumerate(tower.projector):
        work.product(linear, rows, seen)
        work.keep(seen.recipe.kept_bytes * rows * linear.inputs, for_weight=True)
        if not index and tower.is_frozen:
            work.backward_input.clear()
        if index + 1 < len(tower.projector):
            work.elementwise(2 * ELEMENT_BYTES * rows * linear.outputs)
            work.keep(ELEMENT_BYTES * rows * linear.outputs)
    width = tower.projector[-1].outputs
    degree = shape.context_parallel
    if degree > 1:
        whole = ELEMENT_BYTES * seen.rows / tower.merged * degree * width
        span = degree * shape.tensor_parallel
        work.exchange(
            Exchange("all_gather", whole, degree, span), Exchange("reduce_scatter", whole, degree, span)
        )
    if tower.is_frozen:  # nothing before it is trained: gradients between its products serve weights alone
        work.backward_weight = [*work.backward_input, *work.backward_weight]
        work.backward_input = []
    weights = ELEMENT_BYTES * tower.projector_parameters
    boundary = math.ceil(ELEMENT_BYTES * merged_rows(tower, shape) * width)
    return costs_of_work(work, weights, 0, boundary, seen, price)
