"""Distribution of a planned step where durations vary: quantiles by replay, of finalists and their orders.

Each sample draws a factor for every block of every micro-batch and replica (`tessel.batches.spread`; where a
table says how much its layers vary, `stage_spreads`) and replays the plan's orders; replicas that run the
same order draw from the same replays. Gradients are exchanged when the last replica has them. Hops,
collectives and the optimizer take what they take. Beside the static order stands a greedy runtime under the
same draws. Equal seeds give equal figures. Checked in tests/tessel/planning/candidates/test_robustness.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessel.batches.spread import QUANTILES, Spread
from tessel.planning.costs.training_step import finish_us
from tessel.planning.plan_result import PlannedStep, StepSpread
from tessel.schedule import Schedule
from tessel.search.batches.replay import FloatArray
from tessel.search.batches.sampled import GREEDY_SAMPLES, SAMPLES, has_greedy, sampled_ends


def spread_of_step(
    planned: PlannedStep, spread: Spread | FloatArray, *, percentile: float, seed: int, samples: int = SAMPLES
) -> StepSpread:
    """Return the distribution of a step.

    Args:
        planned: has a schedule.
        spread: of durations: one law, or sigma by class of micro-batches and stage.
        percentile: that plans are chosen by, within 0..100.
        seed: of the draws; plans of one seed are compared.
    """
    steps = sampled_steps(planned, spread, seed=seed, samples=samples)
    greedy = static = None
    if planned.schedule is not None and has_greedy(planned.schedule):
        static, greedy = (
            float(
                np.percentile(
                    sampled_steps(planned, spread, seed=seed, samples=GREEDY_SAMPLES, is_greedy=each),
                    percentile,
                )
            )
            for each in (False, True)
        )
    return StepSpread(
        name=planned.name,
        step_us=planned.estimate.step_us,
        mean_us=float(steps.mean()),
        quantiles_us=tuple(np.percentile(steps, QUANTILES).tolist()),
        chosen_us=float(np.percentile(steps, percentile)),
        greedy_us=greedy,
        static_us=static,
    )


def sampled_steps(
    planned: PlannedStep, spread: Spread | FloatArray, *, seed: int, samples: int, is_greedy: bool = False
) -> FloatArray:
    """Return microseconds of whole steps; float64, shape (samples,).

    Args:
        planned: has a schedule.
        spread: see `spread_of_step`.
        is_greedy: whether devices run what can start, not what the order says; see `greedy_starts`.
    """
    rng = np.random.default_rng(seed)
    replicas = planned.layout.data_parallel
    if planned.shared is not None:
        own = [
            _stage_ends(planned, each, spread, rng, samples, is_greedy) for each in planned.shared.schedules
        ]
        ends = np.max(own, axis=0)
    else:
        assert planned.schedule is not None, "finalists have schedules"
        one = _stage_ends(planned, planned.schedule, spread, rng, samples, is_greedy)
        ends = one[rng.integers(samples, size=(replicas, samples))].max(axis=0) if replicas > 1 else one
    figures = planned.step.figures
    return np.array([finish_us(figures, row)[0] for row in ends.tolist()])


def chosen_by(
    finalists: Sequence[PlannedStep], spreads: Sequence[StepSpread], *, percentile: float | None
) -> int:
    """Return the position of the plan: of the least percentile, or the first where none is asked for."""
    if percentile is None:
        return 0
    return min(range(len(finalists)), key=lambda each: (spreads[each].chosen_us, each))


def _stage_ends(
    planned: PlannedStep,
    schedule: Schedule,
    spread: Spread | FloatArray,
    rng: np.random.Generator,
    samples: int,
    is_greedy: bool,
) -> FloatArray:
    """Return when each stage's last block ends; float64, shape (samples, stages), in microseconds."""
    stage_of = [int(block.name[1:].partition("_")[0]) for block in schedule.placement.blocks]
    if not isinstance(spread, Spread):
        of_class = [0] if schedule.classes is None else list(schedule.classes.sequence)
        spread = Spread(kind="lognormal", size=spread[of_class][:, stage_of])
    replay, ends = sampled_ends(schedule, spread, rng, samples, is_greedy=is_greedy)
    of_task = np.array(stage_of)[replay.block]
    stages = range(len(planned.step.figures.groups))
    return planned.step.step_us * np.stack([ends[of_task == stage].max(axis=0) for stage in stages], axis=1)
