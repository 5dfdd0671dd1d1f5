"""On published trials of our own kernels, what is known of some families says what is fast in another."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cost_model.draft.decision_features import Caches
from cost_model.draft.draft_model import DraftTrials, train_draft_model
from cost_model.draft.packed_space import PackedSpace
from records import open_store
from records.files.exchange import read_records
from tuner.backends.cpu.kernels.clamp import RELU
from tuner.backends.cpu.tuned import trial_knowledge
from tuner.backends.cpu.tuned.families import family_of, kernel_of
from tuner.backends.cpu.tuned.kernel_trials import KeptTrial, draft_trials, load_kernel_trials
from tuner.backends.cpu.tuned.trial_knowledge import TrialKnowledge
from tuner.backends.metaschedule.proposers import DraftProposer, Knowledge
from tuner.language.knowledge import family_of_own
from tuner.targets.target import Target
from tuner.targets.vector_registers import WIDE
from tuner.tuning.own_kernels import OwnCandidates

pytestmark = pytest.mark.tvm

SAMPLE = Path(__file__).parents[4] / "samples" / "own_kernel_trials.jsonl.xz"
"""687 measurements of twenty kernels, five of each family; one thread of an AMD EPYC (Zen 4)."""

CACHES = Caches(32 * 2**10, 2**20, 32 * 2**20)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeptTrial, ...]:
    folder = tmp_path_factory.mktemp("sample")
    (folder / "trials.jsonl").write_bytes(lzma.decompress(SAMPLE.read_bytes()))
    rows = list(read_records(folder / "trials.jsonl"))
    environment = rows[0][1].environment
    target = Target(name="cpu", kind="cpu", tvm_json=rows[0][1].target, num_threads=environment.num_threads)
    with open_store(str(folder / "records.db")) as store:
        store.append_many(rows)
        return load_kernel_trials(store, target, environment)


def first_over_best(
    trials: Sequence[DraftTrials], score: Callable[[DraftTrials], npt.NDArray[np.float64]]
) -> float:
    """Return the geometric mean of what the first of each kernel's trials by a score takes over the best."""
    ratios = []
    for each in trials:
        latencies = np.asarray(each.latencies_us)
        ratios.append(latencies[int(np.argmax(score(each)))] / latencies.min())
    return float(np.exp(np.log(ratios).mean()))


def known_of(kept: Sequence[KeptTrial], kernel: str) -> tuple[DraftTrials, ...]:
    return TrialKnowledge(kept, num_threads=1, seed=0).of(kernel).trials


def by_chance(trials: Sequence[DraftTrials]) -> float:
    ratios = [np.log(np.asarray(each.latencies_us) / each.best_us).mean() for each in trials]
    return float(np.exp(np.mean(ratios)))


@pytest.mark.parametrize("family", ["dense", "convolution", "depthwise"])
def test_other_families_say_what_is_fast_in_one_that_nobody_has_seen(
    kept: tuple[KeptTrial, ...], family: str
) -> None:
    trials = draft_trials(kept)
    unseen = [each for each in trials if family_of_own(each.task) == family]
    others = [each for each in trials if family_of_own(each.task) != family]
    assert len(unseen) + len(others) == 20
    model = train_draft_model(others, caches=CACHES, device_model="", seed=0)
    first = first_over_best(unseen, lambda each: model.predict(each.space, each.rows).mean)
    assert first - 1 < 0.6 * (by_chance(unseen) - 1)


@pytest.mark.parametrize("family", ["convolution", "depthwise"])
def test_the_rule_of_thumb_says_what_is_fast_where_nothing_is_known(
    kept: tuple[KeptTrial, ...], family: str
) -> None:
    unseen = [each for each in draft_trials(kept) if family_of_own(each.task) == family]

    def score(each: DraftTrials) -> npt.NDArray[np.float64]:
        guessed = each.space.guessed(len(each.space.rows), np.random.default_rng(0))
        place = {row.tobytes(): -number for number, row in enumerate(guessed)}
        return np.asarray([float(place[row.tobytes()]) for row in each.rows])

    assert first_over_best(unseen, score) - 1 < 0.5 * (by_chance(unseen) - 1)


def test_other_families_are_left_out_where_a_family_has_trials_enough(
    kept: tuple[KeptTrial, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = "product:8x160x768"
    assert len(known_of(kept, kernel)) == 20
    of_family = {each.trial.kernel for each in kept if family_of(each.trial.kernel) == family_of(kernel)}
    others = sum(len(each.rows) for each in draft_trials(kept) if each.task in of_family - {kernel})
    monkeypatch.setattr(trial_knowledge, "ENOUGH", others)
    assert {each.task for each in known_of(kept, kernel)} == of_family
    monkeypatch.setattr(trial_knowledge, "ENOUGH", others + 1)
    assert len(known_of(kept, kernel)) == 20


def test_kernels_share_the_draft_model_that_they_begin_with(kept: tuple[KeptTrial, ...]) -> None:
    knowledge = TrialKnowledge(kept[:300], num_threads=1, seed=0)
    first = knowledge.of("product:9x160x768")
    model = first.shared_draft("product:9x160x768")
    assert model is not None
    assert knowledge.of("depthwise:1x15x15x160x5x5x1x1x2x2").shared_draft("another") is model
    knowledge.add(kept[300:305])
    assert knowledge.of("product:9x160x768").shared_draft("another") is model, "five are not worth a training"
    knowledge.add(kept[305:400])
    again = knowledge.of("product:9x160x768")
    assert again.shared_draft("another") is not model
    assert sum(len(each.rows) for each in again.trials) > sum(len(each.rows) for each in first.trials)
    known = kept[0].trial.kernel
    assert knowledge.of(known).shared_draft(known) is None, "its own trials have to weigh more"
    assert TrialKnowledge((), num_threads=1, seed=0).of(known).shared_draft("another") is None


@pytest.mark.parametrize(("known", "guesses"), [("none", [4, 1]), ("others", [1, 1]), ("all", [0, 0])])
def test_the_rule_of_thumb_proposes_some_where_no_kernel_is_similar(
    kept: tuple[KeptTrial, ...], known: str, guesses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "depthwise:1x15x15x160x5x5x1x1x2x2"
    candidates = OwnCandidates(kernel_of(name, RELU), WIDE)
    (space,) = candidates.spaces
    values = space.values_of(space.rows)
    guessed = space.rows[(values["lanes"] == 4) & (values["pixels"] == 1)]  # nobody else's choice
    monkeypatch.setattr(PackedSpace, "guessed", lambda self, count, rng: guessed[:count])
    trials = [
        each
        for each in draft_trials(kept)
        if known == "all" or (known == "others" and family_of_own(each.task) != "depthwise")
    ]
    proposer = DraftProposer(name, candidates, Knowledge(tuple(trials), CACHES), seed=0)
    wanted = {row.tobytes() for row in guessed}
    for expected in guesses:
        batch = proposer.propose(4)
        assert len(batch) == 4
        is_guess = [each.row is not None and each.row.tobytes() in wanted for each in batch]
        assert sum(is_guess) == expected
        proposer.learn(batch, [90.0 if each else 2.0 for each in is_guess])
