"""A profile of predicted costs: a model's layers at every micro-batch size and degree that is asked for.

The embedding, each block, the norm and the head are rows, layers that predict further tokens too. Equal
blocks share one cost: a table takes as long as its kinds of blocks do, however deep the model. Weights are
counted in 16 bits, as the optimizers' bytes are. Checked in
tests/tessel/architectures/test_layer_costs.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from tessel.architectures.architecture import Architecture, Block, Experts, Linear
from tessel.architectures.kernels import ELEMENT_BYTES, KernelPrice, Moved, Product
from tessel.architectures.shape import Shape
from tessel.architectures.work import Work, into_group, out_of_group, share_of, work_of_block
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
    """
    tie = "embedding" if model.is_tied else ""
    names = (
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
                costs=tuple(_updated(cost, price, update_ratio) for cost in _costs(model, shape, price)),
                intervals=() if interval is None else (interval,) * len(names),
            )
            for shape in shapes
        ),
    )


def _costs(model: Architecture, shape: Shape, price: KernelPrice) -> tuple[StageCosts, ...]:
    kinds = {block: _block_costs(block, shape, price) for block in (*model.blocks, *model.predictors)}
    if model.predictors:
        head = _head_work(model, shape)
        kinds |= {
            block: _predictor_costs(block, head, model, shape, price) for block in set(model.predictors)
        }
    return (
        _embedding_costs(model, shape, price),
        *(kinds[block] for block in model.blocks),
        _norm_costs(model, shape, price),
        *(kinds[block] for block in model.predictors),
        _costs_of(_head_work(model, shape), _head_bytes(model, shape), 0, 0, shape, price),
    )


def _updated(cost: StageCosts, price: KernelPrice, ratio: float) -> StageCosts:
    """Return a cost with the time of the optimizer's step, which takes as long as its traffic."""
    if not ratio:
        return cost
    return msgspec.structs.replace(cost, update_us=price(Moved(ratio * cost.updated_bytes)))


def _costs_of(
    work: Work, weight_bytes: int, expert_bytes: int, boundary_bytes: int, shape: Shape, price: KernelPrice
) -> StageCosts:
    """Price a layer's work; what the recipe recomputes is dropped after the forward and run again."""
    again = shape.recipe.recompute
    saved = sum(size for module, size in work.saved if module not in again)
    restored = sum(size for module, size in work.saved if module in again)
    forward_us = sum(price(kernel) for _, kernel in work.forward)
    input_us = sum(map(price, work.backward_input))
    input_us += sum(price(kernel) for module, kernel in work.forward if module in again)
    weight_us = sum(map(price, work.backward_weight))
    return StageCosts(
        forward_us=forward_us,
        backward_us=input_us + weight_us,
        backward_input_us=input_us,
        backward_weight_us=weight_us,
        weight_bytes=weight_bytes,
        expert_bytes=expert_bytes,
        saved_bytes=math.ceil(saved),
        saved_for_weight_bytes=math.ceil(min(saved, work.for_weight + _output_gradients(work))),
        peak_bytes=math.ceil(work.running + restored + _stand_ins(work, shape)),
        boundary_bytes=boundary_bytes,
    )


def _stand_ins(work: Work, shape: Shape) -> float:
    """Return the bytes of 16-bit gradients of weights: of each shape one, or the largest if released."""
    sizes = work.stand_ins.values()
    return sum(sizes) if shape.recipe.fuses_sums else max(sizes, default=0.0)


def _output_gradients(work: Work) -> float:
    """Return the bytes of gradients of outputs, which a split backward keeps for its second half."""
    products = (kernel for kernel in work.backward_weight if isinstance(kernel, Product))
    return sum(ELEMENT_BYTES * kernel.rows * kernel.outputs for kernel in products)


def _boundary(hidden: int, shape: Shape) -> int:
    return math.ceil(ELEMENT_BYTES * shape.own_rows * hidden)


def _block_costs(block: Block, shape: Shape, price: KernelPrice) -> StageCosts:
    dense, experts = block_bytes(block, shape)
    return _costs_of(
        work_of_block(block, shape), dense + experts, experts, _boundary(block.hidden, shape), shape, price
    )


def block_bytes(block: Block, shape: Shape) -> tuple[int, int]:
    """Return the bytes of a device's weights of a layer: those of routed experts apart from the others.

    What has no matrix is held whole by every device of a group, and so is a product that is not split.
    """
    dense = block.vector_parameters + sum(_parameters(each, shape) for each in block.linears)
    experts = 0
    for part in block.parts:
        if isinstance(part, Experts):
            local = -(-part.count // shape.expert_parallel)
            experts += local * sum(_parameters(each, shape) for each in part.expert_linears(block.hidden))
    return ELEMENT_BYTES * dense, ELEMENT_BYTES * experts


def _parameters(linear: Linear, shape: Shape) -> int:
    inputs, outputs = share_of(linear, shape.tensor_parallel)
    return (inputs + linear.has_bias) * outputs


def _embedding_costs(model: Architecture, shape: Shape, price: KernelPrice) -> StageCosts:
    work = Work()
    work.elementwise(2 * ELEMENT_BYTES * shape.rows * model.hidden)
    out_of_group(work, shape.rows * model.hidden, shape)
    # The gradient is of the weight alone.
    work.backward_weight, work.backward_input = work.backward_input, []
    vocabulary = -(-model.vocabulary // shape.tensor_parallel)
    weights = ELEMENT_BYTES * (vocabulary + model.positions) * model.hidden
    work.keep(8 * shape.rows, for_weight=True)
    return _costs_of(work, weights, 0, _boundary(model.hidden, shape), shape, price)


def _norm_costs(model: Architecture, shape: Shape, price: KernelPrice) -> StageCosts:
    work = Work()
    elements = shape.own_rows * model.hidden
    work.elementwise(2 * ELEMENT_BYTES * elements)
    work.keep(ELEMENT_BYTES * elements, for_weight=True)
    return _costs_of(
        work, ELEMENT_BYTES * model.norm_parameters, 0, _boundary(model.hidden, shape), shape, price
    )


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
    return _costs_of(work, dense + experts, experts, _boundary(model.hidden, shape), shape, price)
