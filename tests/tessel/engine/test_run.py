"""A plan's schedule and 1F1B run in turn, are checked, and are timed beside what was simulated."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import pytest
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from pipeline_programs import ChainSpec, reference
from random_schedules import draw_schedule

from tessel.comparison import compare_schedules
from tessel.engine import EngineError
from tessel.engine.job import Event
from tessel.engine.run import Reference, RunReport, makespan_ms, run_plan, run_schedule
from tessel.engine.synthetic.overheads import Calibration, Overheads
from tessel.placement import Placement
from tessel.plan import Plan
from tessel.shapes import make_shape
from tuner.plan import Figure, TiedParameter

pytestmark = pytest.mark.torch

GIVEN = Figure(latency_us=1.0, source="given")
MICRO_BATCHES = 4


def make_plan(placement: Placement, num_stages: int) -> Plan:
    """Return a plan whose order is drawn at random; weights of one name count as tied over the stages."""
    schedule = draw_schedule(placement, MICRO_BATCHES, np.random.default_rng(3))
    return Plan(
        model="chain",
        model_fingerprint="",
        training=True,
        target="cpu",
        device_model="any",
        num_threads=1,
        partition=(),
        end_to_end={"mix": GIVEN},
        sum_of_parts=GIVEN,
        launch_penalty_us=1.0,
        max_relative_error=None,
        max_gradient_error=None,
        stages=(),
        tied=tuple(
            tuple(TiedParameter(name, stage) for stage in range(num_stages))
            for name in ("linear.weight", "linear.bias")
        ),
        hop_latency_us=(),
        hop_source="given",
        new_measurements=0,
        reused_measurements=0,
        step_us=500.0,
        memory_limit_bytes=None,
        static_bytes=(0,) * placement.devices,
        optimizer="sgd",
        placement=placement,
        schedule=schedule,
        comparison=compare_schedules(schedule).rows,
    )


def summed_reference(num_stages: int, num_micro_batches: int) -> Reference:
    losses, gradients = reference(num_stages, num_micro_batches)
    total: dict[str, float | np.ndarray] = defaultdict(float)
    for key, gradient in gradients.items():
        total[key.partition("/")[2]] += gradient
    return losses, total


def run(plan: Plan, num_stages: int, *, truth: Reference, monkeypatch: pytest.MonkeyPatch) -> RunReport:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    return run_plan(
        plan,
        provider="pipeline_programs:provide",
        provider_spec=msgspec.json.encode(ChainSpec(num_stages)).decode(),
        reference=lambda count: truth,
        repeats=2,
        timeout_s=240,
    )


def test_both_schedules_run_and_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(make_shape("vshape", 2, choose_backward=True), 2)
    report = run(plan, 2, truth=summed_reference(2, MICRO_BATCHES), monkeypatch=monkeypatch)
    assert set(report.figures) == {"searched", "1f1b"}
    assert report.max_gradient_error is not None
    assert report.max_gradient_error < 1e-5
    assert report.loss_error is not None
    assert report.loss_error < 1e-5
    for name, figures in report.figures.items():
        assert figures.real_ms_by_step == tuple(makespan_ms(step) for step in report.events[name])
        assert len(figures.real_ms_by_step) == 2
    assert report.figures["searched"].simulated_ms == plan.schedule.makespan * 0.5


def test_without_a_length_of_a_step_blocks_are_simulated_as_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    report = run_schedule(
        make_plan(make_shape("vshape", 2), 2).schedule,
        step_us=None,
        provider="pipeline_programs:provide",
        provider_spec=msgspec.json.encode(ChainSpec(2)).decode(),
        reference=None,
        repeats=1,
        timeout_s=240,
        overheads=Calibration(
            (1.0,), (Overheads(action_us=1e9, gap_us=0.0, hop_us=1000.0, collective_us=1e9),)
        ),
    )
    assert (report.max_gradient_error, report.loss_error) == (None, None)
    for figures in report.figures.values():
        assert 0 < figures.simulated_ms < figures.real_ms
        assert figures.with_overheads_ms is not None
        # The overheads of actions are in their durations already.
        assert figures.simulated_ms + 2 <= figures.with_overheads_ms < 1000


def test_a_wrong_gradient_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(make_shape("zbv", 2, split_backward=True), 4)
    losses, gradients = summed_reference(4, MICRO_BATCHES)
    wrong = {**gradients, "linear.weight": gradients["linear.weight"] + 0.01}
    report = run(plan, 4, truth=(losses, wrong), monkeypatch=monkeypatch)
    assert report.max_gradient_error is not None
    assert report.max_gradient_error > 1e-3


def test_a_plan_that_cannot_run_is_refused_before_any_rank_starts() -> None:
    plan = make_plan(make_shape("kshape", 2), 3)
    with pytest.raises(EngineError, match="hands tensors from each stage to the next one only"):
        run_plan(plan, provider="none:none", provider_spec="", reference=lambda count: ({}, {}), timeout_s=1)


def test_a_makespan_is_from_the_first_begin_to_the_last_end() -> None:
    step = [
        (Event(action="0F0", ready_s=1.0, start_s=1.1, end_s=1.5),),
        (Event(action="1F0", ready_s=0.9, start_s=1.5, end_s=2.0),),
        (),
    ]
    assert makespan_ms(step) == pytest.approx(1100.0)
