"""Proposals are built and run for real, kept as MetaSchedule's trials are, and read again as proposals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernel_spaces import cpu, space_of

from benchmarks.trials.in_process import builder_and_runner
from records import Environment, open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.trials import KeepTrials, task_name
from tuner.language.sketches import KernelSpace, Proposal
from tuner.language.trials import measure_proposals, new_samples, recorded_trials
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

NAME = "dense:4x8x8"


def environment() -> Environment:
    return environment_of(cpu(), MetaSchedule())


def keeper(space: KernelSpace, url: str) -> object:
    return KeepTrials(url, space.module, space.tuned_for, cpu(), environment())


def test_trials_are_records_and_read_again_as_proposals(tmp_path: Path) -> None:
    url, space = str(tmp_path / "records.db"), space_of(NAME)
    proposals = new_samples(space, 3, (), np.random.default_rng(0))
    illegal = Proposal(0, ((3, 1, 1, 1), *proposals[0].decisions[1:]))
    builder, runner = builder_and_runner()
    told = []
    measured = measure_proposals(
        space,
        [proposals[0], illegal, *proposals[1:]],
        builder=builder,
        runner=runner,
        keep=keeper(space, url),
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(4, 4)]
    assert [each.latency_us is None for each in measured] == [False, True, False, False]

    with open_store(url) as store:
        found = recorded_trials(store, space.tuned_for, cpu(), environment())
        two_threads = environment_of(resolve_target("cpu", num_threads=2))
        assert not recorded_trials(store, space.tuned_for, cpu(), two_threads)
    ((name, (read, trials)),) = found.items()
    assert name == task_name(space.module)
    assert [sketch.key for sketch in read.sketches] == [sketch.key for sketch in space.sketches]
    assert trials == {each.proposal: each.latency_us for each in measured if each.latency_us is not None}


def test_new_samples_are_new_and_end_where_a_space_does() -> None:
    space = space_of("dense:1x2x1")
    everything = new_samples(space, 60, (), np.random.default_rng(0))
    assert len(set(everything)) == len(everything) < 60
    assert not set(new_samples(space, 4, everything[:10], np.random.default_rng(0))) & set(everything[:10])
