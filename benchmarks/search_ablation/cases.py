"""The placements that are searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.random_placements.cases import random_cases
from tessel.placement import Placement
from tessel.shapes import ShapeFunction, make_shape, vshape, zbv


@dataclass(frozen=True, slots=True)
class Case:
    """One problem; a repetend has no micro-batches."""

    name: str
    placement: Placement
    memory: tuple[int, ...] | int
    micro_batches: int = 0


def makespan_cases() -> Iterator[Case]:
    """Yield 26 problems whose first schedules and first bounds are apart."""
    for case in random_cases(12, 7):
        yield Case(case.name, case.placement, case.memory, case.micro_batches)
    for shape, memory in (("xshape", 4), ("mshape", 6), ("nnshape", 6), ("kshape", 4)):
        yield Case(f"{shape} 4x16", make_shape(shape, 4), memory, 16)
    for devices, micro_batches, memory in ((4, 8, 16), (4, 8, 8), (8, 16, 32), (8, 16, 11)):
        yield Case(f"zbv {devices}x{micro_batches} {memory}", _split(zbv, devices), memory, micro_batches)
    yield Case("vshape split 8x16", _split(vshape, 8), 16, 16)
    yield Case("vshape 4x12 tight", vshape(4, forward_span=[3, 5, 4, 6], lag=1), 2, 12)
    for shape, memory in (("vshape", 3), ("zbv", 4), ("interleaved", 6), ("nnshape", 4)):
        placement = make_shape(
            shape, 4, choose_backward=True, backward_span=6, backward_input_span=4, backward_weight_span=3,
            forward_span=2, lag=1,
        )  # fmt: skip
        yield Case(f"{shape} choice 4x8", placement, memory, 8)


def _split(shape: ShapeFunction, devices: int) -> Placement:
    return shape(
        devices, split_backward=True, forward_span=10, backward_input_span=11, backward_weight_span=9, lag=1,
        forward_memory=2, backward_memory=-2,
    )  # fmt: skip


def repetend_cases() -> Iterator[Case]:
    """Yield ten problems."""
    for shape, devices, memory in (
        ("nnshape", 4, 4), ("nnshape", 16, 12), ("mshape", 24, 12), ("xshape", 8, 5), ("xshape", 16, 9),
        ("vshape", 24, 13), ("kshape", 8, 5), ("vshape", 4, 3),
    ):  # fmt: skip
        yield Case(f"{shape} {devices} {memory}", make_shape(shape, devices), memory)
    yield Case("zbv 4 8", _split(zbv, 4), 8)
    choice = vshape(4, choose_backward=True, backward_span=6, backward_input_span=4, backward_weight_span=3)
    yield Case("vshape choice 4 3", choice, 3)
