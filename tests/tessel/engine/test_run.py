"""A schedule and 1F1B run in turn, are checked, and are timed beside what was simulated."""

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
from tessel.engine.actions import actions_of, schedule_of_actions
from tessel.engine.job import Event
from tessel.engine.results_check import ExpectedResults, Reference
from tessel.engine.run import (
    RunReport,
    RunSettings,
    Simulation,
    StagePrograms,
    makespan_ms,
    one_f_one_b_of,
    run_schedule,
)
from tessel.engine.synthetic.overheads import Calibration, Overheads
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.shapes import make_shape
from tuner.plan import TiedParameter

pytestmark = pytest.mark.torch

MICRO_BATCHES = 4


def make_schedule(placement: Placement) -> Schedule:
    """Return a schedule whose order is drawn at random."""
    return draw_schedule(placement, MICRO_BATCHES, np.random.default_rng(3))


def chain_of(num_stages: int) -> StagePrograms:
    return StagePrograms("pipeline_programs:provide", msgspec.json.encode(ChainSpec(num_stages)).decode())


def summed_reference(num_stages: int, num_micro_batches: int) -> Reference:
    losses, gradients = reference(num_stages, num_micro_batches)
    total: dict[str, float | np.ndarray] = defaultdict(float)
    for key, gradient in gradients.items():
        total[key.partition("/")[2]] += gradient
    return losses, total


def run(
    schedule: Schedule, num_stages: int, *, truth: Reference, monkeypatch: pytest.MonkeyPatch
) -> RunReport:
    """Run a chain whose weights of one name are tied over the stages, with steps of half a millisecond."""
    tied = tuple(
        tuple(TiedParameter(name, stage) for stage in range(num_stages))
        for name in ("linear.weight", "linear.bias")
    )
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    return run_schedule(
        schedule,
        chain_of(num_stages),
        expected=ExpectedResults(reference=lambda count: truth, tied=tied),
        settings=RunSettings(repeats=2, timeout_s=240),
        simulation=Simulation(step_us=500.0),
    )


@pytest.mark.slow  # tests/scripts/commands/run/test_run.py runs a plan and its 1F1B
def test_both_schedules_run_and_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = make_schedule(make_shape("vshape", 2, choose_backward=True))
    report = run(schedule, 2, truth=summed_reference(2, MICRO_BATCHES), monkeypatch=monkeypatch)
    assert set(report.figures) == {"searched", "1f1b"}
    assert report.max_gradient_error is not None
    assert report.max_gradient_error < 1e-5
    assert report.loss_error is not None
    assert report.loss_error < 1e-5
    for name, figures in report.figures.items():
        assert figures.real_ms_by_step == tuple(makespan_ms(step) for step in report.events[name])
        assert len(figures.real_ms_by_step) == 2
    assert report.figures["searched"].simulated_ms == schedule.makespan * 0.5


@pytest.mark.slow
def test_without_a_length_of_a_step_blocks_are_simulated_as_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    report = run_schedule(
        make_schedule(make_shape("vshape", 2)),
        chain_of(2),
        settings=RunSettings(repeats=1, timeout_s=240),
        simulation=Simulation(
            overheads=Calibration(
                (1.0,), (Overheads(action_us=1e9, gap_us=0.0, hop_us=1000.0, collective_us=1e9),)
            )
        ),
    )
    assert (report.max_gradient_error, report.loss_error) == (None, None)
    for figures in report.figures.values():
        assert 0 < figures.simulated_ms < figures.real_ms
        assert figures.with_overheads_ms is not None
        # The overheads of actions are in their durations already.
        assert figures.simulated_ms + 2 <= figures.with_overheads_ms < 1000


def test_a_wrong_gradient_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, gradients = summed_reference(4, MICRO_BATCHES)
    wrong = {**gradients, "linear.weight": gradients["linear.weight"] + 0.01}
    report = run(
        make_schedule(make_shape("zbv", 2, split_backward=True)),
        4,
        truth=(losses, wrong),
        monkeypatch=monkeypatch,
    )
    assert report.max_gradient_error is not None
    assert report.max_gradient_error > 1e-3


def test_a_schedule_that_cannot_run_is_refused_before_any_rank_starts() -> None:
    with pytest.raises(EngineError, match="hands tensors from each stage to the next one only"):
        run_schedule(make_schedule(make_shape("kshape", 2)), StagePrograms("none:none"))


def test_a_makespan_is_from_the_first_begin_to_the_last_end() -> None:
    step = [
        (Event(action="0F0", ready_s=1.0, start_s=1.1, end_s=1.5),),
        (Event(action="1F0", ready_s=0.9, start_s=1.5, end_s=2.0),),
        (),
    ]
    assert makespan_ms(step) == pytest.approx(1100.0)


def test_the_1f1b_that_runs_is_the_one_of_comparisons() -> None:
    placement = make_shape("mshape", 3, choose_backward=True, lag=1)
    published = ONE_F_ONE_B.build(placement, micro_batches=6)
    listed = dict(compare_schedules(published).schedules)["1f1b"]
    assert listed.makespan < published.makespan, "this placement must tell the two apart"
    assert one_f_one_b_of(published) == {"1f1b": listed}


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("memory", [None, 8])
def test_1f1b_of_an_m_shape_is_run_as_it_is_compared(devices: int, memory: int | None) -> None:
    """Also where blocks are as uneven as measured ones, under a memory limit, and its orders timed again."""
    rng = np.random.default_rng([devices, memory or 0])
    shape = make_shape("mshape", devices)
    blocks = tuple(
        msgspec.structs.replace(block, span=int(rng.integers(1, 99)), memory=block.memory)
        for block in shape.blocks
    )
    placement = msgspec.structs.replace(shape, blocks=blocks)
    limits = None if memory is None else (memory,) * devices
    started = ONE_F_ONE_B.build(placement, micro_batches=2 * devices, memory=limits)
    table = {row.schedule: row.makespan for row in compare_schedules(started).rows}
    run = one_f_one_b_of(started)["1f1b"]
    again = schedule_of_actions(placement, actions_of(run), found_by="its orders")
    assert table["1f1b"] == run.makespan == again.makespan
