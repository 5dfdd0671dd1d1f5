"""Random placements, their micro-batches and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.shapes import make_shape

FAMILIES = ("chain", "choice", "v", "dag")


@dataclass(frozen=True, slots=True)
class Case:
    """One problem.

    Attributes:
        name: family and number.
        placement: blocks of one micro-batch.
        micro_batches: how many are run.
        memory: limit a device.
    """

    name: str
    placement: Placement
    micro_batches: int
    memory: tuple[int, ...]


def random_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield so many cases, the families in turn."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        devices = int(rng.integers(3, 7))
        micro_batches = int(rng.integers(4, 13))
        placement = _dag(devices, rng) if family == "dag" else _chain(family, devices, rng)
        yield Case(f"{family}{number}", placement, micro_batches, _limits(placement, micro_batches, rng))


def _chain(family: str, devices: int, rng: np.random.Generator) -> Placement:
    stages = devices * (2 if family == "v" else 1)
    forward = np.exp(rng.uniform(np.log(2_000), np.log(40_000), stages)).astype(int)
    ratio = rng.uniform(1.6, 2.4, stages)
    share = rng.uniform(0.4, 0.65, stages)
    joint = (forward * ratio).astype(int)
    overhead = rng.uniform(1.0, 1.2, stages)
    saved = rng.integers(50, 200, stages)
    return make_shape(
        "zbv" if family == "v" else "vshape",
        devices,
        forward_span=forward.tolist(),
        backward_span=joint.tolist(),
        backward_input_span=(joint * share * overhead).astype(int).tolist(),
        backward_weight_span=(joint * (1 - share) * overhead).astype(int).tolist(),
        forward_memory=saved.tolist(),
        backward_memory=(-saved).tolist(),
        lag=rng.integers(0, 3_000, stages - 1).tolist(),
        split_backward=family == "v",
        choose_backward=family == "choice",
    )


def _dag(devices: int, rng: np.random.Generator) -> Placement:
    """Layers of one to three blocks, fed by one or two of the layer before, with backward blocks."""
    forward: list[Block] = []
    backward: list[Block] = []
    edges: list[Edge] = []
    layer: list[int] = []
    for _ in range(int(rng.integers(3, 6))):
        above, layer = layer, []
        for _ in range(int(rng.integers(1, 4))):
            index = len(forward)
            held = sorted(rng.choice(devices, size=1 + int(rng.random() < 0.2), replace=False).tolist())
            span = int(np.exp(rng.uniform(np.log(1_000), np.log(100_000))))
            saved = int(rng.integers(10, 200))
            forward.append(
                Block(name=f"f{index}", kind=BlockKind.FORWARD, devices=tuple(held), span=span, memory=saved)
            )
            backward.append(
                Block(
                    name=f"b{index}",
                    kind=BlockKind.BACKWARD,
                    devices=tuple(held),
                    span=int(span * rng.uniform(1.5, 2.5)),
                    memory=-saved,
                )
            )
            edges.append(Edge(f"f{index}", f"b{index}"))
            fed_by: Sequence[int] = (
                rng.choice(above, size=min(len(above), int(rng.integers(1, 3))), replace=False).tolist()
                if above
                else ()
            )
            for source in fed_by:
                lag = int(rng.integers(0, 3_000))
                edges += [Edge(f"f{source}", f"f{index}", lag), Edge(f"b{index}", f"b{source}", lag)]
            layer.append(index)
    return Placement(devices=devices, blocks=(*forward, *reversed(backward)), edges=tuple(edges))


def _limits(placement: Placement, micro_batches: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Room for a random number of micro-batches in flight, at least two."""
    in_flight = rng.uniform(2, max(3, min(micro_batches, placement.devices + 1)))
    saved = [
        sum(max(0, block.memory) for block in placement.blocks if device in block.devices)
        for device in range(placement.devices)
    ]
    return tuple(int(in_flight * each) for each in saved)
