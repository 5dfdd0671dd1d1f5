"""Assessments of traces that were made up, so that who straggles, and by how much, is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tessel.checking.trace_assessment import TraceAssessment, assess_trace
from tessel.checking.trace_replay import TraceReplay, critical_path
from tessel.profiles.step_trace import StepTrace, read_step_trace
from tessel.search.budget import SearchBudget
from tests.samples.batches.trace_samples import Job, durations, rows_of, run


def trace_of(folder: Path, job: Job) -> StepTrace:
    path = folder / "steps.csv"
    path.write_text("\n".join(rows_of(job)) + "\n")
    return read_step_trace(path)


def assessed(folder: Path, job: Job, work: float = 0.3) -> TraceAssessment:
    return assess_trace(trace_of(folder, job), budget=SearchBudget(work))


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_is_what_events_say(tmp_path: Path, seed: int) -> None:
    job = Job(spread=0.5, stages=1 + seed, micro_batches=6, lag_s=0.013, seed=seed)
    trace = trace_of(tmp_path, job)
    replayed = TraceReplay.of(trace)
    forward = durations(job)
    for step in range(job.steps):
        for replica in range(job.replicas):
            done = run(job, forward[step, replica])
            expected = max(end for _, end in done.values())
            assert replayed.pipeline_s[step, replica] == pytest.approx(expected, abs=1e-4)
    assert trace.pipeline_s == pytest.approx(replayed.pipeline_s, abs=1e-4)


def test_a_critical_path_has_no_pause(tmp_path: Path) -> None:
    job = Job(spread=0.5, stages=3, micro_batches=6, lag_s=0.02)
    replayed = TraceReplay.of(trace_of(tmp_path, job))
    path = critical_path(replayed, 1, 0)
    whole = sum(piece.duration_s + piece.transfer_s for piece in path)
    assert whole == pytest.approx(float(replayed.pipeline_s[1, 0]), abs=1e-9)
    assert path[0].stage == 0


def test_without_stragglers_nothing_is_slow(tmp_path: Path) -> None:
    found = assessed(tmp_path, Job())
    # A forward and a backward differ, but each kind is as long as its mean.
    assert found.slowdown == pytest.approx(1, abs=1e-3)
    assert found.error_worst < 1e-3
    assert found.spread == pytest.approx(0, abs=1e-3)
    assert all(change.saves_ratio < 2e-3 for change in found.changes if change.kind != "order")
    assert not [change for change in found.changes if change.kind == "repair"]


def test_a_slow_worker_is_found_and_its_repair_is_what_saves_most(tmp_path: Path) -> None:
    job = Job(slow=(1, 0), factor=3.0, replicas=4, micro_batches=8)
    found = assessed(tmp_path, job)
    worst = found.workers[0]
    assert (worst.replica, worst.stage) == (1, 0)
    assert worst.ratio == pytest.approx(3.0, rel=1e-3)
    assert (found.stages[0].stage, found.replicas[0].replica) == (0, 1)
    assert found.changes[0].kind == "repair"
    healthy = run(job, np.full((8, 2), 0.1))
    repaired = max(end for _, end in healthy.values())
    assert found.changes[0].predicted_pipeline_s == pytest.approx(repaired, rel=1e-3)
    assert found.changes[0].saves_ratio == pytest.approx(1 - repaired / found.pipeline_s, rel=1e-2)


def test_lengths_that_differ_are_told_from_slow_workers_and_sharing_out_helps(tmp_path: Path) -> None:
    found = assessed(tmp_path, Job(spread=0.8, replicas=4, micro_batches=6), work=1)
    assert found.lengths_explain
    assert found.spread > 0.3
    by_kind = {change.kind: change for change in found.changes}
    assert "repair" not in by_kind
    assert by_kind["assignment"].saves_ratio > by_kind["order"].saves_ratio > 0
    assert by_kind["assignment"].least >= 0
    assert by_kind["assignment"].predicted_pipeline_s < found.pipeline_s


def test_a_slow_stage_is_told_from_a_slow_worker(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, Job(replicas=2))
    trace.spans_s[..., [1, 3]] *= 2  # the second stage's forward and backward
    found = assess_trace(trace, budget=SearchBudget(0.05))
    assert found.stages[0].stage == 1
    assert found.stages[0].ratio == pytest.approx(2.0)
    assert max(worker.ratio for worker in found.workers) == pytest.approx(1.0)
    assert found.changes[0].kind == "cut"
    assert found.changes[0].is_ideal


def test_an_interrupted_search_leaves_what_was_recorded(tmp_path: Path) -> None:
    budget = SearchBudget(0)
    found = assess_trace(trace_of(tmp_path, Job(spread=0.5)), budget=budget)
    assert all(change.saves_ratio >= 0 for change in found.changes if change.kind in ("order", "assignment"))
    assert budget.has_answer
