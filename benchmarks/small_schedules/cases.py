"""Random small problems, with and without choices, each of which has a schedule."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.random_placements.cases import Case
from tessel.errors import InfeasibleError
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.placement_builder import ShapeOptions
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape

FAMILIES = (
    "chain", "tight", "x", "m", "nn", "k", "chunks", "v", "choice", "v-choice", "device-choice", "dag",
    "dag-choice",
)  # fmt: skip

SHAPE_OF_FAMILY = {
    "chain": "vshape", "tight": "vshape", "x": "xshape", "m": "mshape", "nn": "nnshape", "k": "kshape",
    "chunks": "interleaved", "v": "zbv", "choice": "vshape", "v-choice": "zbv",
}  # fmt: skip

MAX_TASKS = 120


def small_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield so many problems, the families in turn; each has a schedule."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        yield _case_of(family, number, rng)


def _case_of(family: str, number: int, rng: np.random.Generator) -> Case:
    while True:
        placement = _placement_of(family, rng)
        num_tasks = sum(1 for block in placement.blocks) - sum(
            len(names) for choice in placement.choices for names in choice.options[1:]
        )
        most = MAX_TASKS // num_tasks
        if most < 3:
            continue
        micro_batches = int(rng.integers(3, min(most, 12) + 1))
        is_tight = family in ("tight", "dag-choice") or rng.random() < 0.5
        memory = _limits(placement, micro_batches, rng, is_tight=is_tight)
        try:
            build_instance(placement, micro_batches=micro_batches, memory=memory)
        except InfeasibleError:
            continue
        return Case(f"{family}{number}", placement, micro_batches, memory)


def _placement_of(family: str, rng: np.random.Generator) -> Placement:
    if family in ("dag", "dag-choice"):
        return _dag(rng, is_split=family == "dag-choice")
    if family == "device-choice":
        return _device_choice(rng)
    devices = int(rng.integers(2, 6))
    if family in ("x", "k", "chunks", "v", "v-choice"):
        devices = int(rng.integers(2, 5))
    chunks = {"x": 2, "chunks": 2, "v": 2, "v-choice": 2}.get(family, 1)
    return make_shape(SHAPE_OF_FAMILY[family], devices, **_options(family, devices * chunks, rng))


def _options(family: str, num_stages: int, rng: np.random.Generator) -> ShapeOptions:
    """Spans of a few steps in half of the problems, of thousands in the others."""
    unit = 1 if rng.random() < 0.5 else 1000
    forward = rng.integers(unit, 4 * unit + 1, num_stages)
    joint = (forward * rng.uniform(1.5, 2.5, num_stages)).astype(int) + 1
    first = np.maximum(1, (joint * rng.uniform(0.45, 0.65, num_stages)).astype(int))
    second = np.maximum(1, (joint * rng.uniform(1.0, 1.15, num_stages)).astype(int) - first)
    return ShapeOptions(
        forward_span=forward.tolist(),
        backward_span=joint.tolist(),
        backward_input_span=first.tolist(),
        backward_weight_span=second.tolist(),
        forward_memory=2,
        backward_memory=-2,
        tensor_parallel_span=int(rng.integers(unit, 3 * unit + 1)),
        lag=int(rng.integers(0, unit + 1)),
        split_backward=family == "v",
        choose_backward=family in ("choice", "v-choice"),
    )


def _dag(rng: np.random.Generator, *, is_split: bool) -> Placement:
    """Forward blocks with backward ones, some on several devices; with choices, some may run split."""
    devices, num_blocks = int(rng.integers(2, 5)), int(rng.integers(3, 8))
    blocks: list[Block] = []
    edges: list[Edge] = []
    choices: list[Choice] = []
    unit = 1 if rng.random() < 0.5 else 1000
    for index in range(num_blocks):
        size = 1 + int(rng.random() < 0.3) + int(rng.random() < 0.1)
        held = tuple(sorted(rng.choice(devices, size=min(size, devices), replace=False).tolist()))
        span, saved = int(rng.integers(unit, 5 * unit + 1)), int(rng.integers(1, 4))
        back = int(span * rng.uniform(1.2, 2.2)) + 1
        blocks.append(_block(f"f{index}", BlockKind.FORWARD, held, span, saved))
        blocks.append(_block(f"b{index}", BlockKind.BACKWARD, held, back, -saved))
        edges.append(Edge(f"f{index}", f"b{index}"))
        fed_by = rng.choice(index, size=min(index, int(rng.integers(0, 3))), replace=False).tolist()
        for source in fed_by:
            lag = int(rng.integers(0, unit + 1))
            edges += [Edge(f"f{source}", f"f{index}", lag), Edge(f"b{index}", f"b{source}", lag)]
        if is_split and rng.random() < 0.5:
            half = max(1, back // 2)
            blocks.append(_block(f"i{index}", BlockKind.BACKWARD_INPUT, held, half, 0))
            blocks.append(_block(f"w{index}", BlockKind.BACKWARD_WEIGHT, held, back - half + 1, -saved))
            edges += [Edge(f"f{index}", f"i{index}"), Edge(f"i{index}", f"w{index}")]
            edges += [Edge(f"i{index}", f"b{source}") for source in fed_by]
            choices.append(Choice(f"b{index}", ((f"b{index}",), (f"i{index}", f"w{index}"))))
    return Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges), choices=tuple(choices))


def _device_choice(rng: np.random.Generator) -> Placement:
    """Blocks in layers, half of which may run on one of two devices, at different spans."""
    devices, num_blocks = int(rng.integers(2, 5)), int(rng.integers(4, 9))
    unit = 1 if rng.random() < 0.5 else 1000
    blocks: list[Block] = []
    choices: list[Choice] = []
    names: list[list[str]] = []
    for index in range(num_blocks):
        is_free = rng.random() < 0.5
        held = rng.choice(devices, size=2 if is_free else 1, replace=False).tolist()
        row = [f"x{index}_{device}" if is_free else f"x{index}" for device in held]
        for name, device in zip(row, held, strict=True):
            span = int(rng.integers(unit, 5 * unit + 1))
            blocks.append(_block(name, BlockKind.OTHER, (device,), span, 0))
        if is_free:
            choices.append(Choice(f"x{index}", tuple((name,) for name in row)))
        names.append(row)
    edges = [
        Edge(source, target)
        for index in range(1, num_blocks)
        for before in rng.choice(index, size=min(index, int(rng.integers(1, 3))), replace=False).tolist()
        for source in names[before]
        for target in names[index]
    ]
    return Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges), choices=tuple(choices))


def _block(name: str, kind: BlockKind, held: tuple[int, ...], span: int, memory: int) -> Block:
    return Block(name=name, kind=kind, devices=held, span=span, memory=memory)


def _limits(
    placement: Placement, micro_batches: int, rng: np.random.Generator, *, is_tight: bool
) -> tuple[int, ...]:
    """Room for one to two micro-batches in flight where it is tight, else for up to all."""
    in_flight = rng.uniform(1, 2.2) if is_tight else rng.uniform(2, micro_batches + 1)
    saved = [
        sum(max(0, block.memory) for block in placement.blocks if device in block.devices)
        for device in range(placement.devices)
    ]
    return tuple(max(1, int(in_flight * each)) for each in saved)
