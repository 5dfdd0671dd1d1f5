"""Run a plan's schedule and 1F1B in turn on real ranks, check what they compute, and compare the times.

Results are checked against the unpipelined model: the loss of every micro-batch and every weight's mean
gradient, tied weights summed over the stages that hold them. Real makespans stand beside simulated ones; on a
machine with fewer cores than ranks the two must differ, and the report says how many ranks share a core.
Checked in tests/tessel/engine/test_run.py.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tessel.comparison import BASELINE
from tessel.engine.actions import actions_of, check_chain, rank_by_stage, require_valid
from tessel.engine.errors import EngineError
from tessel.engine.job import Event, JobSpec, RankResult, RunSpec, actions_as_lines
from tessel.engine.launch import launch
from tessel.handwritten import HANDWRITTEN
from tessel.plan import Plan
from tessel.schedule import Schedule
from tuner.plan import TiedParameter

SEARCHED = "searched"

Reference = tuple[dict[int, float], Mapping[str, np.ndarray]]
"""Loss by micro-batch and mean gradient by weight of the unpipelined model."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How long one schedule took.

    Attributes:
        real_ms: median makespan over the counted steps.
        simulated_ms: makespan that the plan promises.
        real_ms_by_step: every counted step.
    """

    real_ms: float
    simulated_ms: float
    real_ms_by_step: tuple[float, ...]


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What running a plan showed.

    Attributes:
        figures: by schedule.
        max_gradient_error: largest relative error of a gradient, over schedules; None for inference.
        loss_error: largest relative error of a micro-batch's loss, over schedules; None without a loss.
        ranks_per_core: ranks that share a core of this machine; real times equal simulated ones only up to 1.
        events: every counted step's events by schedule, then by rank.
    """

    figures: dict[str, RunFigures]
    max_gradient_error: float | None
    loss_error: float | None
    ranks_per_core: float
    events: dict[str, tuple[tuple[tuple[Event, ...], ...], ...]]


def run_plan(
    plan: Plan,
    *,
    provider: str,
    provider_spec: str,
    reference: Callable[[int], Reference],
    repeats: int = 3,
    timeout_s: float = 300.0,
) -> RunReport:
    """Run the plan's schedule and 1F1B in turn, and check both.

    Args:
        plan: what to run.
        provider: `module:function` that builds the stages' programs in each rank.
        provider_spec: what the provider is given, as JSON text.
        reference: returns losses and mean gradients of the unpipelined model for so many micro-batches.
        repeats: counted steps of each schedule.
        timeout_s: longest the ranks may take.

    Raises:
        EngineError: the schedule cannot run, a rank failed, or the results are not there.
    """
    check_chain(plan.placement)
    schedules = {SEARCHED: plan.schedule, BASELINE: _baseline(plan)}
    for schedule in schedules.values():
        require_valid(schedule)
    gradients: dict[str, dict[str, np.ndarray]] = {}

    def read(folder: Path) -> None:
        for name in schedules:
            gradients[name] = _read_gradients(folder, name, plan.placement.devices, plan.tied)

    results = launch(
        JobSpec(
            num_ranks=plan.placement.devices,
            ranks_by_stage=rank_by_stage(plan.schedule),
            micro_batches=plan.schedule.micro_batches,
            provider=provider,
            provider_spec=provider_spec,
            runs=tuple(
                RunSpec(name=name, actions=actions_as_lines(actions_of(schedule)))
                for name, schedule in schedules.items()
            ),
            repeats=repeats,
            num_threads=plan.num_threads,
        ),
        timeout_s=timeout_s,
        read=read,
    )
    losses, expected = reference(plan.schedule.micro_batches)
    step_ms = plan.step_us / 1000
    return RunReport(
        figures={name: _figures(results, name, schedules[name].makespan * step_ms) for name in schedules},
        max_gradient_error=max(_gradient_error(expected, found) for found in gradients.values())
        if plan.training
        else None,
        loss_error=max(_loss_error(losses, results, name) for name in schedules) if losses else None,
        ranks_per_core=plan.placement.devices * plan.num_threads / _num_cores(),
        events={name: _steps(results, name) for name in schedules},
    )


def makespan_ms(step: Sequence[Sequence[Event]]) -> float:
    """Return the time from the first rank's begin to the last rank's end, in milliseconds."""
    begin = min(events[0].ready_s for events in step if events)
    end = max(events[-1].end_s for events in step if events)
    return (end - begin) * 1000


def _baseline(plan: Plan) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == BASELINE)
    return rule.build(plan.placement, micro_batches=plan.schedule.micro_batches)


def _steps(results: Sequence[RankResult], name: str) -> tuple[tuple[tuple[Event, ...], ...], ...]:
    return tuple(zip(*(result.events[name] for result in results), strict=True))


def _figures(results: Sequence[RankResult], name: str, simulated_ms: float) -> RunFigures:
    real_ms = tuple(makespan_ms(step) for step in _steps(results, name))
    return RunFigures(real_ms=statistics.median(real_ms), simulated_ms=simulated_ms, real_ms_by_step=real_ms)


def _read_gradients(
    folder: Path, name: str, num_ranks: int, tied: Sequence[Sequence[TiedParameter]]
) -> dict[str, np.ndarray]:
    """Read every stage's gradients; those of tied weights are summed under the group's first name."""
    leader = {(member.name, member.stage): group[0].name for group in tied for member in group}
    by_stage: dict[tuple[str, int], np.ndarray] = {}
    for rank in range(num_ranks):
        with np.load(folder / f"gradients-{name}-{rank}.npz", allow_pickle=False) as arrays:
            for key in arrays.files:
                stage, _, parameter = key.partition("/")
                # A stage on several ranks reports the same, whole gradients on each.
                by_stage[parameter, int(stage)] = arrays[key]
    total: dict[str, np.ndarray] = {}
    for place, gradient in by_stage.items():
        known_as = leader.get(place, place[0])
        total[known_as] = total[known_as] + gradient if known_as in total else gradient
    return total


def _gradient_error(expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> float:
    if expected.keys() != found.keys():
        different = sorted(expected.keys() ^ found.keys())
        raise EngineError(
            "the ranks and the unpipelined model differ in which weights have gradients "
            f"({different[0]}, …); make the plan again with this version"
        )
    return max((_relative_error(expected[name], found[name]) for name in expected), default=0.0)


def _relative_error(expected: np.ndarray, found: np.ndarray) -> float:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return float(np.abs(expected - found).max(initial=0.0)) / scale


def _loss_error(expected: Mapping[int, float], results: Sequence[RankResult], name: str) -> float:
    found = {m: loss for result in results for m, loss in result.losses[name].items()}
    if expected.keys() != found.keys():
        raise EngineError(
            f"{name} gave losses of {len(found)} micro-batches, the unpipelined model of {len(expected)}; "
            "make the plan again with this version"
        )
    return max(abs(found[m] - expected[m]) / max(abs(expected[m]), 1e-12) for m in expected)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
