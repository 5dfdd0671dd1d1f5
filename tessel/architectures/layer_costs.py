"""A profile of predicted costs: a model's layers at every micro-batch size and degree that is asked for.

The embedding, each block, the norm and the head are rows, layers that predict further tokens too; a tower's
embedding, blocks and projector come before them (tessel/architectures/tower_costs.py). Equal
blocks share one cost: a table takes as long as its kinds of blocks do, however deep the model. Weights are
counted in 16 bits, as the optimizers' bytes are. Checked in
tests/tessel/architectures/test_layer_costs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tessel.architectures.architecture import Architecture, Block, Linear
from tessel.architectures.block_costs import block_bytes, boundary_of, costs_of_block, costs_of_work
from tessel.architectures.kernels import ELEMENT_BYTES, KernelPrice, Moved
from tessel.architectures.shape import Shape
from tessel.architectures.tower_costs import merged_rows, tower_costs, tower_rows
from tessel.architectures.work import Work, into_group, out_of_group, work_of_block
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

EMBEDDING = "embed"
NORM = "norm"
HEAD = "lm_head"


def profile_of_architecture(
    model: Architecture,
    shapes: Iterable[Shape],
    price: KernelPrice,
    *,
    device: str,
    notes: Sequence[str] = (),
    interval: tuple[float, float] | None = None,
    update_ratio: float = 0.0,
    gradient_ratio: float = 0.0,
) -> Profile:
    """Return a profile with one table for each shape.

    Args:
        model: whose layers are priced.
        shapes: of one recipe, no two of the same degrees.
        price: microseconds of a kernel.
        device: the kind of device that is priced.
        notes: a sentence on each thing that is assumed.
        interval: of measured over predicted times of a layer, as of `CostTable`.
        update_ratio: bytes that the optimizer's step moves for each byte of weights; 0 to leave it out.
        gradient_ratio: bytes of summed gradients for each byte of weights; 0 to leave out passes over them.
    """
    tie = "embedding" if model.is_tied else ""
    names = (
        *(Layer(name) for name in tower_rows(model.tower)),
        Layer(EMBEDDING, tie),
        *(Layer(f"layers.{index}") for index in range(len(model.blocks))),
        Layer(NORM),
        *(Layer(f"mtp.{index}") for index in range(len(model.predictors))),
        Layer(HEAD, tie),
    )
    return Profile(
        name=model.name,
        device=device,
        notes=(*notes, *model.notes),
        layers=names,
        tables=tuple(
            CostTable(
                micro_batch=shape.micro_batch,
                tensor_parallel=shape.tensor_parallel,
                context_parallel=shape.context_parallel,
                expert_parallel=shape.expert_parallel,
                costs=tuple(
                    _updated(cost, price, update_ratio, gradient_ratio)
                    for cost in _costs(model, shape, price)
                ),
                intervals=() if interval is None else (interval,) * len(names),
            )
            for shape in shapes
        ),
    )


def _costs(model: Architecture, shape: Shape, price: KernelPrice) -> tuple[StageCosts, ...]:
    kinds = {block: costs_of_block(block, shape, price) for block in (*model.blocks, *model.predictors)}
    if model.predictors:
        head = _head_work(model, shape)
        kinds |= {
            block: _predictor_costs(block, head, model, shape, price) for block in set(model.predictors)
        }
    return (
        *tower_costs(model.tower, shape, price),
        _embedding_costs(model, shape, price),
        *(kinds[block] for block in model.blocks),
        _norm_costs(model, shape, price),
        *(kinds[block] for block in model.predictors),
        costs_of_work(_head_work(model, shape), _head_bytes(model, shape), 0, 0, shape, price),
    )


def _updated(cost: StageCosts, price: KernelPrice, ratio: float, gradient_ratio: float) -> StageCosts:
    """Return a cost with the times that the optimizer's step and a pass over its gradients take to move."""
    if not ratio:
        return cost
    trained = cost.updated_bytes
    return msgspec.structs.replace(
        cost,
        update_us=price(Moved(ratio * trained)),
        gradient_pass_us=price(Moved(gradient_ratio * trained)),
    )


def _embedding_costs(model: Architecture, shape: Shape, price: KernelPrice) -> StageCosts:
    work = Work()
    work.elementwise(2 * ELEMENT_BYTES * shape.rows * model.hidden)
    out_of_group(work, shape.rows * model.hidden, shape)
    # The gradient is of the weight alone.
    work.backward_weight, work.backward_input = work.backward_input, []
    vocabulary = -(-model.vocabulary // shape.tensor_parallel)
    weights = ELEMENT_BYTES * (vocabulary + model.positions) * model.hidden
    work.keep(8 * shape.rows, for_weight=True)
    if model.tower is not None:  # its tokens take their places, and their gradients are read from there
        work.elementwise(2 * ELEMENT_BYTES * merged_rows(model.tower, shape) * model.hidden, backward=1)
    return costs_of_work(work, weights, 0, boundary_of(model.hidden, shape), shape, price)


def _norm_costs(model: Architecture, shape: Shape, price: KernelPrice) -> StageCosts:
    work = Work()
    elements = shape.own_rows * model.hidden
    work.elementwise(2 * ELEMENT_BYTES * elements)
    work.keep(ELEMENT_BYTES * elements, for_weight=True)
    weights = ELEMENT_BYTES * model.norm_parameters
    cost = costs_of_work(work, weights, 0, boundary_of(model.hidden, shape), shape, price)
    # One kernel has the gradients of its input and its weights, so that no time is the weights' alone.
    return msgspec.structs.replace(cost, trained_bytes=weights)


def _head_work(model: Architecture, shape: Shape) -> Work:
    """Return the work of the product with the vocabulary, and of the loss."""
    work = Work()
    # The head runs while what stands in for gradients of blocks' weights stays allocated.
    for block in dict.fromkeys(model.blocks):
        work.stand_ins |= work_of_block(block, shape).stand_ins
    linear = Linear(model.hidden, model.vocabulary, "outputs")
    into_group(work, shape.rows * model.hidden, shape)
    work.product(linear, shape.rows, shape)
    logits = shape.rows * model.vocabulary / shape.tensor_parallel
    work.keep(ELEMENT_BYTES * shape.own_rows * model.hidden, for_weight=True)
    if shape.recipe.has_fused_loss:
        work.keep(2 * logits)
        work.elementwise(6 * logits, backward=0.5, access="loss")
    else:
        # Probabilities in 32 bits are kept; beside them stand logits, later their gradient, in 16 bits.
        work.keep(4 * logits)
        work.elementwise(16 * logits, access="loss")
        work.running = (6 if shape.recipe.has_compiled_loss else 2) * logits
    return work


def _head_bytes(model: Architecture, shape: Shape) -> int:
    return ELEMENT_BYTES * -(-model.vocabulary // shape.tensor_parallel) * model.hidden


def _predictor_costs(
    block: Block, head: Work, model: Architecture, shape: Shape, price: KernelPrice
) -> StageCosts:
    """Return the cost of a layer that predicts a further token, the shared head's product included."""
    work = work_of_block(block, shape)
    work.forward += head.forward
    work.backward_input += head.backward_input
    work.backward_weight += head.backward_weight
    work.saved += head.saved
    work.for_weight += head.for_weight
    work.running = max(work.running, head.running)
    dense, experts = block_bytes(block, shape)
    return costs_of_work(work, dense + experts, experts, boundary_of(model.hidden, shape), shape, price)
