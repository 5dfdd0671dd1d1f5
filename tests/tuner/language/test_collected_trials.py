"""On published trials of a real processor, what is known of eleven kernels says what is fast on another."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from cost_model.draft.decision_features import Caches
from cost_model.draft.draft_model import DraftTrials, train_draft_model
from cost_model.draft.neighbours import neighbour_rows
from cost_model.language.training_examples import measured_examples
from records import open_store
from records.files.exchange import read_records
from tuner.backends.metaschedule.draft_trials import load_draft_trials
from tuner.language.kernels import FAMILIES
from tuner.language.knowledge import family_of_trials, knowledge_of
from tuner.language.machine import Machine
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

SAMPLE = Path(__file__).parent.parent.parent / "samples" / "collected_trials.jsonl.xz"
"""360 trials of twelve kernels: 12 at random and two guided rounds of 9 each; one thread of an Intel Xeon."""

CACHES = Caches(48 * 2**10, 2 * 2**20, 260 * 2**20)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Machine]:
    """Return a store of the sample's records, and the machine that they are of."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "trials.jsonl").write_bytes(lzma.decompress(SAMPLE.read_bytes()))
    rows = list(read_records(folder / "trials.jsonl"))
    environment = rows[0][1].environment
    target = Target(name="cpu", kind="cpu", tvm_json=rows[0][1].target, num_threads=environment.num_threads)
    url = str(folder / "records.db")
    with open_store(url) as store:
        store.append_many(rows)
    return url, Machine(target=target, tuned_for=None, environment=environment)


@pytest.fixture(scope="module")
def known(sample: tuple[str, Machine]) -> tuple[DraftTrials, ...]:
    url, machine = sample
    with open_store(url) as store:
        return load_draft_trials(store, machine.target, machine.environment)


def test_the_sample_holds_trials_of_all_families_that_rounds_made_better(
    known: tuple[DraftTrials, ...],
) -> None:
    assert len({each.task for each in known}) == 12
    assert sum(len(each.rows) for each in known) == 360
    assert {len(each.space.kernel.loops) for each in known} == {3, 4, 7}
    training_examples = measured_examples(known)
    assert len({each.task for each in training_examples}) == 12


def test_every_trial_is_known_to_be_of_its_kernel_s_family(
    known: tuple[DraftTrials, ...], sample: tuple[str, Machine]
) -> None:
    """So that a family can be held out: a name of a trial does not tell it."""
    assert Counter(map(family_of_trials, known)) == dict.fromkeys(FAMILIES, 3)
    url, machine = sample
    kept = knowledge_of(url, machine, families=("dense", "depthwise")).trials
    assert Counter(map(family_of_trials, kept)) == {"dense": 3, "depthwise": 3}


def test_the_draft_model_and_neighbours_know_a_kernel_they_never_saw(known: tuple[DraftTrials, ...]) -> None:
    correlations, slowdowns = [], []
    for held_out in known[::3]:
        others = [each for each in known if each.task != held_out.task]
        model = train_draft_model(others, caches=CACHES)
        predicted = model.predict(held_out.space, held_out.rows).mean
        correlations.append(spearmanr(predicted, -np.asarray(held_out.latencies_us)).statistic)
        chosen = int(np.argmax(predicted))
        slowdowns.append(held_out.latencies_us[chosen] / held_out.best_us)
        assert len(neighbour_rows(held_out.space, others, 4)) > 0
    assert np.median(correlations) > 0.6
    assert np.median(slowdowns) < 1.5
