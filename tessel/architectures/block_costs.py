"""The costs of a layer from its work, and of a block: what layers of a language model and a tower share.

Weights are counted in 16 bits, as the optimizers' bytes are. Checked in
tests/tessel/architectures/test_layer_costs.py.
"""

from __future__ import annotations

import math

from tessel.architectures.architecture import Block, Experts, Linear
from tessel.architectures.kernels import ELEMENT_BYTES, KernelPrice, Product
from tessel.architectures.shape import Shape
from tessel.architectures.work import Work, share_of, work_of_block
from tessel.profiles.profile import StageCosts


def costs_of_work(
    work: Work, weight_bytes: int, expert_bytes: int, boundary_bytes: int, shape: Shape, price: KernelPrice
) -> StageCosts:
    """Return the costs of a layer's work.

    What the recipe recomputes is dropped after the forward, and runs again before the backward.
    """
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


def boundary_of(hidden: int, shape: Shape) -> int:
    """Return the bytes that a layer hands on: a device's part of the tokens."""
    return math.ceil(ELEMENT_BYTES * shape.own_rows * hidden)


def costs_of_block(block: Block, shape: Shape, price: KernelPrice) -> StageCosts:
    """Return the costs of a block."""
    dense, experts = block_bytes(block, shape)
    return costs_of_work(
        work_of_block(block, shape), dense + experts, experts, boundary_of(block.hidden, shape), shape, price
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
