"""Trials of our own kernels survive the records, and only what was confirmed faster is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from records import RecordStore, open_store
from records.files.exchange import read_records, save_records
from tuner.backends.cpu.kernels.clamp import RELU
from tuner.backends.cpu.tuned.families import BACKEND_BY_FAMILY, Decisions, family_of, kernel_of, space_of
from tuner.backends.cpu.tuned.kernel_trials import (
    KernelTrial,
    choose_tiles,
    draft_trials,
    keep_trials,
    load_kernel_trials,
)
from tuner.backends.environment import environment_of
from tuner.backends.registry import make_backend
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

NAME = "product:49x64x49"
FAST, SLOW = (space_of(NAME).decisions_of(space_of(NAME).rows[number]) for number in (7, 900))
VERSIONS = dict(make_backend("packed_matmul").versions())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with open_store(f"sqlite:///{tmp_path}/records.db") as opened:
        yield opened


def keep(
    store: RecordStore, *trials: tuple[Decisions, float], name: str = NAME, weight_bytes: int = 0
) -> None:
    target = resolve_target("cpu", num_threads=1)
    for decisions, latency_us in trials:
        samples = () if math.isinf(latency_us) else (latency_us,) * 3
        keep_trials(
            store,
            kernel_of(name, RELU),
            [KernelTrial(name, decisions, samples, "" if samples else "it crashed", weight_bytes)],
            target=target,
            environment=environment_of(target, make_backend(BACKEND_BY_FAMILY[family_of(name)])),
        )


def kept(store: RecordStore) -> list[object]:
    target = resolve_target("cpu", num_threads=1)
    return list(load_kernel_trials(store, target, environment_of(target)))


def chosen(store: RecordStore) -> dict[str, dict[str, int]]:
    target = resolve_target("cpu", num_threads=1)
    found = choose_tiles(load_kernel_trials(store, target, environment_of(target)), VERSIONS)
    return {name: dict(decisions) for name, decisions in found.decisions.items()}


def test_the_fastest_that_was_measured_twice_is_chosen(store: RecordStore) -> None:
    keep(store, ({}, 10.0), (FAST, 5.0), (SLOW, 4.0))
    assert chosen(store) == {}, "once is not enough"
    keep(store, ({}, 10.0), (FAST, 6.0))
    assert chosen(store) == {NAME: FAST}


def test_the_rule_stays_where_nothing_is_faster_in_turn(store: RecordStore) -> None:
    keep(store, ({}, 10.0), (FAST, 5.0), ({}, 6.0), (FAST, 7.0))
    assert chosen(store) == {}, "the first measurement of it was a lucky one"


def test_what_is_hardly_faster_or_seldom_is_not_chosen(store: RecordStore) -> None:
    keep(store, ({}, 10.0), (FAST, 5.0), ({}, 10.0), (FAST, 9.8))
    assert chosen(store) == {}, "two percent are what measurements scatter"
    target = resolve_target("cpu", num_threads=1)
    where = environment_of(target, make_backend("packed_matmul"))
    rounds = {(): (10.0, 10.0, 10.0, 10.0, 10.0), tuple(FAST.items()): (6.0, 6.0, 6.0, 11.0, 11.0)}
    trials = [KernelTrial(NAME, dict(key), samples) for key, samples in rounds.items()]
    keep_trials(store, kernel_of(NAME, RELU), trials, target=target, environment=where)
    assert chosen(store) == {}, "it was faster in three rounds of five"


def test_failures_and_other_versions_are_not_chosen(store: RecordStore) -> None:
    keep(store, ({}, 10.0), ({}, 10.0), (FAST, math.inf), (FAST, math.inf))
    assert chosen(store) == {}
    keep(store, (FAST, 5.0), (FAST, 5.0))
    assert chosen(store) == {NAME: FAST}
    target = resolve_target("cpu", num_threads=1)
    known = load_kernel_trials(store, target, environment_of(target))
    assert not choose_tiles(known, {"packed_matmul-kernels": "0"})
    other = resolve_target("cpu", num_threads=2)
    assert not load_kernel_trials(store, other, environment_of(other)), "with other threads it is another"


def test_trials_survive_export_and_import(store: RecordStore, tmp_path: Path) -> None:
    keep(store, ({}, 10.0), (FAST, 5.0), ({}, 10.0), (FAST, 5.0))
    save_records(store, tmp_path / "trials.jsonl")
    with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        other.append_many(list(read_records(tmp_path / "trials.jsonl")))
        assert chosen(other) == {NAME: FAST}


def test_the_draft_model_learns_candidates_not_rules(store: RecordStore) -> None:
    other = "depthwise:1x14x14x72x3x3x1x1x1x1"
    decisions = space_of(other).decisions_of(space_of(other).rows[0])
    keep(store, ({}, 10.0), (FAST, 5.0), (SLOW, math.inf), (FAST, 6.0))
    keep(store, (decisions, 3.0), name=other)
    target = resolve_target("cpu", num_threads=1)
    known = load_kernel_trials(store, target, environment_of(target))
    found = {each.task: each for each in draft_trials(known)}
    assert sorted(found) == [other, NAME]
    assert found[NAME].space == space_of(NAME)
    assert found[NAME].latencies_us == (6.0, math.inf), "the last measurement of each counts"
    assert np.array_equal(found[NAME].rows[0], space_of(NAME).rows[7])
    (only,) = draft_trials(known, families=(family_of(other),))
    assert only.task == other


def test_latencies_among_other_weights_are_not_compared(store: RecordStore) -> None:
    other = space_of(NAME).decisions_of(space_of(NAME).rows[40])
    keep(store, ({}, 30.0), (FAST, 25.0), (SLOW, 28.0), (other, 20.0), weight_bytes=1 << 27)
    keep(store, ({}, 10.0), (FAST, 5.0), (SLOW, 8.0))
    target = resolve_target("cpu", num_threads=1)
    known = load_kernel_trials(store, target, environment_of(target))
    assert sorted((each.trial.weight_bytes, each.trial.latency_us) for each in known) == [
        (0, 5.0),
        (0, 8.0),
        (0, 10.0),
        (1 << 27, 20.0),
        (1 << 27, 25.0),
        (1 << 27, 28.0),
        (1 << 27, 30.0),
    ]
    assert not any("weight_bytes" in each.trial.decisions for each in known)
    (found,) = draft_trials(known)
    assert found.latencies_us == (25.0, 28.0, 20.0), "of the network with the most"
