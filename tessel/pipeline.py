"""Build a pipeline from measured stages: placement in steps and bytes, searched schedule, plan.

Stages run on the devices that they were cut for: in order (a V: forward down, backward up), several chunks on
each, or, where one is divided into shards, on all of them at once, such as embedding and head of an m shape.
`figures_of_model` says what the stages take and hold in the terms of `tessel.planning.costs`, whose functions
then make the blocks, add up the memory and end the step, for measured stages as for a table of timings. Each
stage's backward is a choice, joint or split into input and weight halves, since splitting costs what it was
measured to cost; a first stage whose inputs need no gradient does all of its backward in its weight half.
Under a memory limit, which stages recompute is searched with the order (`tessel.tuned_model.recomputation`).
Not modelled: contention between hops, and memory that a block needs only while it runs, but for what a
recomputing backward holds. Checked in tests/tessel/test_pipeline.py and test_one_builder.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import UNSET

from tessel.comparison import compare_schedules
from tessel.placement import Placement
from tessel.planning.costs.training_step import check_headroom, place_blocks
from tessel.search import SearchBudget, find_schedule
from tessel.tuned_model.model_figures import figures_of_model
from tessel.tuned_model.recomputation import search_with_recomputation
from tessel.tuned_plan import TunedPlan
from tuner.plan import ModelPlan, StagePlan

STEPS_IN_SHORTEST_BLOCK = 200
"""Rounding a block up to whole steps then costs at most half a percent."""


def build_plan(
    tuned: ModelPlan,
    *,
    micro_batches: int,
    memory_limit_bytes: int | None,
    optimizer: str = "sgd",
    sharding: str = "none",
    budget: SearchBudget | None = None,
    time_limit_s: float | None = None,
    recompute: bool = True,
    seed: int = 0,
) -> TunedPlan:
    """Place the stages, search the order of all blocks, and compare it with hand-written schedules.

    Args:
        tuned: stages with measured or predicted costs.
        micro_batches: micro-batches of one training step.
        memory_limit_bytes: memory of one device; None for no limit.
        optimizer: a key of `tessel.planning.cluster.OPTIMIZERS`; decides the static bytes when training.
        sharding: what copies of the pipeline divide among them: `none`, or `optimizer`, its state.
        budget: what the schedule search may spend, and who is told of its progress; see `find_schedule`.
        time_limit_s: in place of a budget: seconds of the schedule search.
        recompute: whether stages may recompute where memory is limited.

    Raises:
        InfeasibleError: a stage cannot fit its device; names the device and what it needs.
    """
    step_us = choose_step_us(tuned.stages)

    def limits(stages: ModelPlan) -> tuple[int, ...] | None:
        figures = figures_of_model(
            stages, optimizer=optimizer, memory_limit_bytes=memory_limit_bytes, sharding=sharding
        )
        check_headroom(figures)
        return figures.headroom

    budget = SearchBudget.of(budget, time_limit_s=time_limit_s)
    if memory_limit_bytes is None or not recompute:
        schedule = find_schedule(
            place_stages(tuned, step_us=step_us),
            micro_batches=micro_batches,
            memory=limits(tuned),
            budget=budget,
            seed=seed,
        )
    else:
        tuned, schedule = search_with_recomputation(
            tuned,
            place=lambda stages: place_stages(stages, step_us=step_us),
            limits=limits,
            micro_batches=micro_batches,
            budget=budget,
            seed=seed,
        )
    static_bytes = figures_of_model(tuned, optimizer=optimizer, sharding=sharding).static_bytes
    comparison = compare_schedules(schedule, step_us=step_us, static_bytes=static_bytes)
    return TunedPlan(
        **{name: getattr(tuned, name) for name in ModelPlan.__struct_fields__},
        step_us=step_us,
        memory_limit_bytes=memory_limit_bytes,
        static_bytes=static_bytes,
        optimizer=optimizer,
        sharding=UNSET if sharding == "none" else sharding,
        placement=schedule.placement,
        schedule=schedule,
        comparison=comparison.rows,
    )


def choose_step_us(stages: Sequence[StagePlan]) -> float:
    """Return a step of 1, 2 or 5 times a power of ten microseconds, fine enough for the shortest block."""
    shortest = min(
        figure.latency_us
        for stage in stages
        for figure in (stage.forward, stage.backward, stage.backward_input, stage.backward_weight)
        if figure is not None
    )
    wanted = max(shortest / STEPS_IN_SHORTEST_BLOCK, 0.1)
    power = 10.0 ** math.floor(math.log10(wanted))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= wanted * (1 + 1e-9))


def place_stages(tuned: ModelPlan, *, step_us: float) -> Placement:
    """Return the placement of the stages; those with shards hold every device.

    ```
    device 0   f0 . . b0            with choices, `b0` may instead run as `b0_input` and `b0_weight`
    device 1   . f1 b1 .

    device 0   f0 f1 . f3 b3 . b1 b0        stages 0 and 3 have shards
    device 1   f0 . f2 f3 b3 b2 . b0
    ```

    Args:
        tuned: the stages and their hop latencies.
        step_us: microseconds of a step; spans and lags are rounded up to whole steps.
    """
    return place_blocks(figures_of_model(tuned), step_us)


def blocks_of_function(function: str, placement: Placement) -> tuple[str, ...]:
    """Return the blocks that run a stage's function: `b1_input` for `stage1.backward_input`.

    A stage without halves of its own runs all of its backward in its weight half, too, and in its input half
    nothing.

    Args:
        function: stage and kind.
    """
    stage, _, kind = function.partition(".")
    index = stage.removeprefix("stage")
    if kind == "forward":
        return (f"f{index}",)
    names = [f"b{index}{kind.removeprefix('backward')}"]
    halves = (f"b{index}_input", f"b{index}_weight")
    known = placement.index_by_name
    if kind == "backward" and halves[0] in known and not placement.block(halves[0]).span:
        names += halves
    return tuple(name for name in names if name in known)
