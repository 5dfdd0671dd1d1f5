"""Distributions of steps: against replays one by one, and the plan that a percentile chooses."""

from __future__ import annotations

import numpy as np
import pytest

import tessel
from tessel.batches.spread import Spread
from tessel.planning.candidates.robustness import sampled_steps
from tessel.planning.plan_result import PlanResult

ROWS = [
    {
        "layer": f"h{index}",
        "forward_ms": 1 + index % 3,
        "backward_ms": 3,
        "weights_mib": 9,
        "saved_mib": 3,
        "boundary_mib": 1,
    }
    for index in range(6)
]


def found(**options: object) -> PlanResult:
    result = tessel.plan(ROWS, devices=2, micro_batches=6, work=0.1, progress=False, **options).found
    assert result is not None
    return result


def test_a_sample_is_the_last_end_of_its_draw_and_what_follows() -> None:
    best = found(data_parallel=1, placement="vshape").best
    schedule, step = best.schedule, best.step
    assert schedule is not None
    drawn = sampled_steps(best, Spread.of("lognormal:0.2"), seed=3, samples=4)
    blocks = schedule.placement.blocks
    factors = Spread.of("lognormal:0.2").factors(np.random.default_rng(3), (4, 6, len(blocks)))
    index = schedule.placement.index_by_name
    after_us = best.estimate.step_us - best.estimate.pipeline_us
    for sample in range(4):
        ends: dict[tuple[str, int], float] = {}
        free = [0.0] * 2
        for each in schedule.starts:  # in the order of their starts, so that what they wait for is known
            block = blocks[index[each.block]]
            ready = [
                ends[edge.source, each.micro_batch] + edge.lag
                for edge in schedule.placement.edges
                if edge.target == each.block and (edge.source, each.micro_batch) in ends
            ]
            start = max([free[block.devices[0]], *ready])
            span = block.span * factors[sample, each.micro_batch, index[each.block]]
            ends[each.block, each.micro_batch] = free[block.devices[0]] = start + span
        pipeline_us = max(ends.values()) * step.step_us
        # What follows the last block is the update of its own device, or of the other one.
        assert drawn[sample] == pytest.approx(pipeline_us + after_us, rel=0.02)


def test_a_percentile_chooses_among_finalists_and_equal_seeds_give_equal_figures() -> None:
    by_mean, robust, again = (found(spread="lognormal:0.5", robust=each) for each in (None, "p95", "p95"))
    assert robust.spreads == again.spreads
    assert [each.is_chosen for each in by_mean.spreads].index(True) == 0
    chosen = next(each for each in robust.spreads if each.is_chosen)
    assert chosen.chosen_us == min(each.chosen_us for each in robust.spreads)
    assert robust.best.name == chosen.name
    assert robust.best.estimate.step_us >= by_mean.best.estimate.step_us * (1 - 1e-12)
    for each in robust.spreads:
        assert each.quantiles_us == tuple(sorted(each.quantiles_us))
        assert each.chosen_us == each.quantiles_us[1]
        assert each.mean_us >= each.step_us * 0.99  # a maximum of means is below the mean of maxima


def test_more_replicas_wait_for_the_slowest() -> None:
    one, four = (
        tessel.plan(
            ROWS,
            devices=2 * count,
            micro_batches=6 * count,
            data_parallel=count,
            work=0.05,
            placement="vshape",
            optimizer="none",
            progress=False,
        ).found
        for count in (1, 4)
    )
    assert one is not None
    assert four is not None
    spread = Spread.of("lognormal:0.3")
    means = [sampled_steps(each.best, spread, seed=0, samples=300).mean() for each in (one, four)]
    steps = [each.best.estimate.step_us for each in (one, four)]
    assert means[1] - steps[1] > means[0] - steps[0]
