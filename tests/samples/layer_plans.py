"""Profiles and plans of layers that tests share."""

from __future__ import annotations

from collections.abc import Sequence

from tessel.handwritten import HANDWRITTEN
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.saved_plan import SavedPlan
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

LINK = Link(bytes_per_s=100e9, latency_us=10)
MIB = 1 << 20


def profile(
    blocks: int = 6, *, head_us: float = 3000.0, halves: bool = True, sizes: Sequence[int] = (1, 2)
) -> Profile:
    """An embedding, equal blocks of a millisecond, and a head that is heavier."""

    def cost(forward_us: float, size: int) -> StageCosts:
        us = forward_us * size**0.9
        return StageCosts(
            forward_us=us,
            backward_us=2 * us,
            backward_input_us=1.1 * us if halves else None,
            backward_weight_us=us if halves else None,
            weight_bytes=100 * MIB,
            saved_bytes=200 * MIB * size,
            boundary_bytes=16 * MIB * size,
        )

    return Profile(
        name="toy",
        layers=(Layer("embed"), *(Layer(f"block{index}") for index in range(blocks)), Layer("head")),
        tables=tuple(
            CostTable(
                micro_batch=size,
                tensor_parallel=1,
                costs=(cost(100, size), *[cost(1000, size)] * blocks, cost(head_us, size)),
            )
            for size in sizes
        ),
    )


def cluster(devices: int, memory_bytes: int | None = None) -> Cluster:
    return Cluster(devices=devices, hop=LINK, collective=LINK, memory_bytes=memory_bytes)


def saved_plan(
    *,
    layout: Layout | None = None,
    order: str = "1f1b",
    data_parallel: int = 1,
    model: Profile | None = None,
) -> SavedPlan:
    """A plan of two devices in the order of a hand-written rule, unless told otherwise."""
    found = model or profile()
    layout = layout or Layout(
        data_parallel=data_parallel,
        pipeline=2,
        micro_batch=1,
        micro_batches=4,
        cuts=((0, 3), (4, len(found.layers) - 1)),
    )
    devices = cluster(layout.devices)
    step = build_step(found, layout, Job(cluster=devices, optimizer=OPTIMIZERS["adam"]))
    rule = next(rule for rule in HANDWRITTEN if rule.name == order)
    schedule = rule.build(step.placement, micro_batches=step.micro_batches)
    estimate = estimate_step(step, schedule)
    return SavedPlan(
        profile=found,
        cluster=devices,
        optimizer="adam",
        layout=layout,
        schedule=schedule,
        order=order,
        step_us=step.step_us,
        training_step_us=estimate.step_us,
        lower_bound_us=0.0,
        static_bytes=step.figures.static_bytes,
        memory_bytes=estimate.memory_bytes,
    )
