"""Races ask the worker for few rounds at a time, end near their time, and are repeated from their records."""

from __future__ import annotations

import dataclasses

import pytest
import tvm

from records import Status
from tests.records.strategies import make_workload
from tuner.errors import TunerError
from tuner.measuring import raced_programs
from tuner.measuring.messages import Failed, Race, Raced
from tuner.measuring.race import FEWEST_ROUNDS
from tuner.measuring.raced_programs import RecordedPrograms, RunningPrograms, race_settings
from tuner.measuring.request import DEFAULT_LIMITS, MeasureRequest


class Worker:
    """Runs nothing: each round takes a second, and a sample says its program's key and its round."""

    def __init__(self) -> None:
        self.asked: list[tuple[Race, float]] = []
        self.clock_s = 100.0

    def ask(self, request: Race, timeout_s: float) -> Raced:
        self.asked.append((request, timeout_s))
        self.clock_s += request.num_rounds
        rounds = range(request.first_round, request.first_round + request.num_rounds)
        return Raced(tuple(tuple(1000.0 * key + number for number in rounds) for key in request.keys))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker()
    monkeypatch.setattr(raced_programs.time, "monotonic", lambda: worker.clock_s)
    return worker


def running(worker: Worker, race_s: float) -> RunningPrograms:
    limits = dataclasses.replace(DEFAULT_LIMITS, race_s=race_s, run_timeout_s=7.0)
    return RunningPrograms(worker, (4, 5, 6), limits, seed=9)  # type: ignore[arg-type]  # a worker that runs nothing


def test_rounds_are_asked_for_a_few_at_a_time_and_in_order(worker: Worker) -> None:
    programs = running(worker, race_s=1000.0)
    assert programs.run((0, 2), 12) == tuple(
        tuple(1000.0 * key + number for number in range(12)) for key in (4, 6)
    )
    assert programs.run((1,), 3) == ((5012.0, 5013.0, 5014.0),)
    assert [(race.keys, race.first_round, race.num_rounds) for race, _ in worker.asked] == [
        ((4, 6), 0, 5), ((4, 6), 5, 5), ((4, 6), 10, 2), ((5,), 12, 3),
    ]  # fmt: skip
    assert [timeout_s for _, timeout_s in worker.asked] == [14.0, 14.0, 14.0, 7.0]
    assert {(race.seed, race.sample_s) for race, _ in worker.asked} == {(9, DEFAULT_LIMITS.timing.sample_s)}


def test_a_race_without_time_left_runs_the_fewest_rounds(worker: Worker) -> None:
    (samples,) = running(worker, race_s=0.0).run((0,), 40)
    assert len(samples) == FEWEST_ROUNDS


def test_a_race_ends_with_the_message_in_which_its_time_is_spent(worker: Worker) -> None:
    programs = running(worker, race_s=20.0)
    (samples,) = programs.run((0,), 40)
    assert len(samples) == 20
    assert programs.run((0,), 40) == ((),)


def test_programs_that_cannot_run_together_are_named(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ask", lambda request, timeout_s: Failed(Status.ERROR, "no memory"))
    with pytest.raises(TunerError, match="2 programs could not run in turn: no memory; each alone can"):
        running(worker, race_s=1.0).run((0, 1), 5)


def test_a_recorded_race_is_run_again_as_far_as_it_went() -> None:
    programs = RecordedPrograms([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0], [7.0, 8.0, 9.0]])
    assert programs.run((0, 2), 2) == ((1.0, 2.0), (7.0, 8.0))
    assert programs.run((0, 2), 2) == ((3.0,), (9.0,))
    assert programs.run((0,), 2) == ((),)


def test_a_race_is_named_by_its_rivals_in_any_order() -> None:
    first, second, third = (
        MeasureRequest(workload=make_workload(), module=tvm.IRModule({}), backend="tvm", settings=settings)
        for settings in ("a", "b", "c")
    )
    name = race_settings(first, [second, third])
    assert name == race_settings(first, [third, second])
    assert name == "a;race=2a81705e8ae0db13"  # as in records of earlier races
    others = (race_settings(first, [second]), race_settings(second, [second, third]))
    assert len({name, *others}) == 3
