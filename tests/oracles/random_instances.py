"""Small pipelines by number: span 0, lags, choices, memory that is never freed, blocks on several devices."""

from __future__ import annotations

import numpy as np

from tessel.placement import Block, Choice, Edge, Placement
from tests.samples.random_schedules import draw_schedule
from tests.samples.schedule_samples import Case


def random_instance(number: int) -> Case:
    """Return the instance of that number; its limits are those of a schedule, or a unit more, or none."""
    rng = np.random.default_rng(number)
    devices, num_stages = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    chosen = {stage for stage in range(num_stages) if rng.random() < 0.25}
    blocks: list[Block] = []
    edges: list[Edge] = []
    for stage in range(num_stages):
        is_split = stage in chosen or rng.random() < 0.4
        blocks += _stage(rng, devices, stage, is_joint=not is_split or stage in chosen, is_split=is_split)
    names = {block.name for block in blocks}

    def link(source: str, target: str, share: float) -> None:
        if source in names and target in names and rng.random() < share:
            edges.append(Edge(source, target, int(rng.integers(0, 3))))

    for stage in range(num_stages):
        link(f"f{stage}", f"f{stage + 1}", 0.8)
        link(f"f{stage}", f"b{stage}", 0.9)
        link(f"f{stage}", f"i{stage}", 0.9)
        link(f"i{stage}", f"w{stage}", 1.0)
        for later in ("b", "i"):
            for earlier in ("b", "i"):
                link(f"{later}{stage + 1}", f"{earlier}{stage}", 0.8)
    choices = tuple(Choice(f"c{at}", ((f"b{at}",), (f"i{at}", f"w{at}"))) for at in sorted(chosen))
    placement = Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges), choices=choices)
    micro_batches = int(rng.integers(1, 4))
    drawn = [draw_schedule(placement, micro_batches, rng) for _ in range(4)]
    least = min(drawn, key=lambda schedule: sum(schedule.peak_memory)).peak_memory
    limits = tuple(peak + int(rng.integers(0, 2)) for peak in least)
    return placement, micro_batches, None if rng.random() < 0.2 else limits


def _stage(
    rng: np.random.Generator, devices: int, stage: int, *, is_joint: bool, is_split: bool
) -> list[Block]:
    """Return a forward, and its backward joint, split, or both ways."""
    held = {int(rng.integers(devices))} | ({int(rng.integers(devices))} if rng.random() < 0.3 else set())
    added = int(rng.integers(0, 4))
    freed = added - int(added > 0 and rng.random() < 0.2)
    first = int(rng.integers(-1, freed + 1))
    memory = {"f": added}
    if is_joint:
        memory["b"] = -freed
    if is_split:
        memory |= {"i": -first, "w": first - freed}
    return [
        Block(
            name=f"{kind}{stage}",
            devices=tuple(sorted(held)),
            span=0 if rng.random() < 0.15 else int(rng.integers(1, 5)),
            memory=units,
        )
        for kind, units in memory.items()
    ]
