"""What proposers know of other kernels is loaded once in a process; later, only new trials are read."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from kernel_spaces import cpu, space_of
from tvm import relax

from benchmarks.trials.in_process import builder_and_runner
from cost_model.language.network import Network, NetworkShape, initial_weights
from records import Environment, Measurement, Workload, open_store
from records.files.exchange import read_records
from tests.samples.partition_samples import partition_module
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule import backend as metaschedule_backend
from tuner.backends.metaschedule import draft_trials, lasting_knowledge
from tuner.backends.metaschedule.backend import MetaSchedule, TrialSettings, tune_kernel
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.draft_trials import load_draft_trials
from tuner.backends.metaschedule.lasting_knowledge import LastingKnowledge
from tuner.backends.metaschedule.proposers import DraftProposer
from tuner.lowering.lower import lower_module
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

SAMPLE = Path(__file__).parents[3] / "samples" / "collected_trials.jsonl.xz"
NUM_TRIALS = 120

Kept = list[tuple[Workload, Measurement]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    path = tmp_path_factory.mktemp("sample") / "trials.jsonl"
    path.write_bytes(lzma.decompress(SAMPLE.read_bytes()))
    return [(row[0], row[1]) for row in read_records(path)][:NUM_TRIALS]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a trace was read, and a draft model of other kernels trained."""
    found = {"read_trace": 0, "train_draft_model": 0}

    def counted(name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found[name] += 1
        return function(*given, **named)

    for module, name in ((draft_trials, "read_trace"), (lasting_knowledge, "train_draft_model")):
        monkeypatch.setattr(module, name, partial(counted, name, getattr(module, name)))
    return found


def place_of(kept: Kept) -> tuple[Target, Environment]:
    first = kept[0][1]
    threads = first.environment.num_threads
    return Target(name="cpu", kind="cpu", tvm_json=first.target, num_threads=threads), first.environment


def test_only_new_trials_are_read_and_few_of_them_train_no_model(
    tmp_path: Path, kept: Kept, counts: dict[str, int]
) -> None:
    url, (target, environment) = str(tmp_path / "records.db"), place_of(kept)
    network = Network(shape := NetworkShape(layers=1, width=16, heads=2), initial_weights(shape, 0))
    num_networks = 0

    def load_network() -> Network:
        nonlocal num_networks
        num_networks += 1
        return network

    lasting = LastingKnowledge(url, target, environment, seed=1, load_network=load_network)
    with open_store(url) as store:
        store.append_many(kept[:100])
        first = lasting.now()
        assert counts == {"read_trace": 100, "train_draft_model": 0}
        model = first.shared_draft("new")
        assert lasting.now().trials is first.trials
        assert lasting.now().shared_draft("another") is model
        assert counts == {"read_trace": 100, "train_draft_model": 1}
        store.append_many(kept[100:103])
        assert sum(len(each.rows) for each in lasting.now().trials) == 103
        assert lasting.now().shared_draft("another") is model, "three of 100 trials are not worth a training"
        assert counts == {"read_trace": 103, "train_draft_model": 1}
        store.append_many(kept[103:])
        assert lasting.now().shared_draft("another") is not model
        assert counts == {"read_trace": NUM_TRIALS, "train_draft_model": 2}
        at_once = load_draft_trials(store, target, environment)
    assert num_networks == 1
    for grown, whole in zip(lasting.now().trials, at_once, strict=True):
        assert (grown.task, grown.latencies_us) == (whole.task, whole.latencies_us)
        assert np.array_equal(grown.rows, whole.rows)


def test_a_shared_draft_model_is_the_one_a_proposer_would_train(
    tmp_path: Path, kept: Kept, counts: dict[str, int]
) -> None:
    url, (target, environment) = str(tmp_path / "records.db"), place_of(kept)
    with open_store(url) as store:
        store.append_many(kept)
    known = LastingKnowledge(url, target, environment, seed=1).now()
    space = space_of("dense:24x72x112")
    candidates = candidates_of(space.module, space.tuned_for)
    proposer = DraftProposer("new", candidates, known, seed=1)
    assert counts["train_draft_model"] == 1
    assert proposer.model is known.shared_draft("new")
    rows = candidates.spaces[0].sample(64, np.random.default_rng(0))
    own = proposer.train()
    assert own is not None
    assert proposer.model is not None
    assert np.array_equal(
        own.predict(candidates.spaces[0], rows).mean, proposer.model.predict(candidates.spaces[0], rows).mean
    )
    assert known.shared_draft(known.trials[0].task) is None, "its own trials have to weigh more"


def test_kernels_that_are_lowered_one_after_the_other_share_what_is_known(
    tmp_path: Path, kept: Kept, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, runner = builder_and_runner()

    def tune_here(task: Any, tuned_for: Any, settings: TrialSettings, **named: Any) -> None:
        here = TrialSettings(
            trials=settings.trials,
            work_dir=settings.work_dir,
            builder=builder,
            runner=runner,
            strategy=settings.strategy,
        )
        tune_kernel(task, tuned_for, here, **named)

    monkeypatch.setattr(metaschedule_backend, "tune_kernel", tune_here)
    url = str(tmp_path / "records.db")
    environment = environment_of(cpu(), MetaSchedule())
    with open_store(url) as store:
        store.append_many((workload, as_measured_here(found, environment)) for workload, found in kept)
    backend = MetaSchedule(trials=2, database=str(tmp_path / "tuned"), records=url, proposer="draft")
    for columns in (16, 32, 48):
        module = partition_module(
            "metaschedule", [(8, 16), (16, columns)], lambda x, w: relax.op.matmul(x, w)
        )
        lower_module(module, [backend], cpu())
    assert counts == {"read_trace": NUM_TRIALS + 4, "train_draft_model": 1}, "the last two trials are unread"
    with open_store(url) as store:
        assert sum(len(each.rows) for each in load_draft_trials(store, cpu(), environment)) == NUM_TRIALS + 6


def as_measured_here(found: Measurement, environment: Environment) -> Measurement:
    return msgspec.structs.replace(found, environment=environment, target=cpu().text)
