"""The headline figures of the report on real runs, from the extracts that are kept here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import pytest

from benchmarks.reality import sailor_data, sailor_report, vtrain
from benchmarks.reality.calibration import calibrate, runs_to_calibrate_on
from benchmarks.reality.sailor_runs import COLLECTIVE, Estimated
from tessel.planning.runtime import DEEPSPEED


@pytest.fixture(scope="module")
def collection() -> sailor_data.Collection:
    return sailor_data.load_extract()


@pytest.fixture(scope="module")
def on_gh200(collection: sailor_data.Collection) -> list[Estimated]:
    return [each for each in sailor_report.estimate_all(collection) if each.run.is_clariden]


def mean_size(errors: Iterable[float]) -> float:
    return statistics.fmean(map(abs, errors))


def test_steps_and_memory_on_gh200_are_nearer_than_the_rival_and_within_the_goal(
    on_gh200: list[Estimated],
) -> None:
    assert len(on_gh200) == 26
    time = mean_size(each.time_error for each in on_gh200)
    memory = mean_size(each.memory_error for each in on_gh200)
    assert time <= 0.08
    assert memory <= 0.10
    assert time < mean_size(each.run.simulated_time_error for each in on_gh200)
    assert memory < mean_size(each.run.simulated_memory_error for each in on_gh200)


def test_the_model_that_nothing_was_calibrated_on_is_within_the_goal_too(on_gh200: list[Estimated]) -> None:
    unseen = [each for each in on_gh200 if each.run.model == "GPT-Neo-2.7"]
    assert len(unseen) == 11
    assert mean_size(each.time_error for each in unseen) <= 0.08
    assert mean_size(each.memory_error for each in unseen) <= 0.10


def test_the_fastest_plan_of_every_group_is_ranked_first(on_gh200: list[Estimated]) -> None:
    groups = list(sailor_report.contests(on_gh200))
    assert len(groups) == 10
    for name, members in groups:
        assert min(members, key=lambda each: each.run.real_s) is min(
            members, key=lambda each: each.seconds
        ), name


def test_the_runtime_is_what_calibration_finds_on_opt_of_at_most_two_stages(
    collection: sailor_data.Collection,
) -> None:
    used = runs_to_calibrate_on(collection)
    assert {run.model for run in used} == {"OPT-350"}
    assert max(run.pipeline for run in used) == 2
    found = calibrate(collection)
    assert found.runtime == DEEPSPEED
    assert found.collective == COLLECTIVE


def test_copies_are_left_out(collection: sailor_data.Collection) -> None:
    copies = [run for run in collection.runs if run.copy_of]
    assert [run.name for run in copies] == ["clariden/GPT-NEO/N4_D4", "mit/OPT-350/N3_D1"]
    originals = {run.name: run for run in collection.runs}
    for run in copies:
        original = originals[run.copy_of]
        assert run.real_s in (original.real_s, original.earlier_s)


@pytest.mark.slow  # a hundred runs are estimated
def test_multi_node_runs_are_ranked_from_a_label_of_another_model() -> None:
    found = [vtrain.estimate(extract, run) for extract in [vtrain.load_extract()] for run in extract.runs]
    assert len(found) == 109
    assert vtrain.rank_correlation([e.ms for e in found], [e.run.real_ms for e in found]) > 0.94
    assert mean_size(each.error for each in found) < 0.10
