"""Candidates of packed kernels are legal, are found again, and can be scored, bred and carried over."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.draft.decision_features import FEATURE_NAMES, Caches, decision_features
from cost_model.draft.draft_model import DraftTrials, train_draft_model
from cost_model.draft.evolution import evolve, mutate
from cost_model.draft.neighbours import adapt, distance, neighbour_rows
from cost_model.draft.packed_families import MAX_REGISTERS, MAX_WIDE_REGISTERS
from cost_model.draft.packed_space import (
    EXTRAS,
    OptionDecision,
    PackedSpace,
    attention_space,
    depthwise_space,
    direct_space,
    product_space,
    rowwise_space,
    winograd_space,
)

SPACES = {
    "product": product_space(49, 64, 49),
    "one row": product_space(1, 96, 1000),
    "few columns": product_space(7, 20, 12),
    "direct": direct_space(lines=13, length=13, channels=16, filters=24, window=(3, 3), stride=2),
    "pixelwise": direct_space(lines=1, length=49, channels=64, filters=100, window=(1, 1), stride=1),
    "depthwise": depthwise_space(lines=14, length=14, channels=72, window=(3, 3), stride=2),
    "winograd": winograd_space(images=1, height=13, width=13, channels=12, filters=48),
    "rowwise": rowwise_space(lines=28, length=28, channels=8, window=(1, 1), wide=48, result=14, narrow=16),
    "attention": attention_space(heads=12, depth=64, queries=77, keys=77),
    "rowwise of two": rowwise_space(
        lines=28, length=28, channels=3, window=(3, 3), wide=32, result=28, narrow=0
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_candidate_is_legal_and_found_again(name: str) -> None:
    space = SPACES[name]
    assert space.num_candidates > 20
    assert space.is_legal(space.rows).all()
    for row in space.sample(50, np.random.default_rng(0)):
        found = space.row_of(space.decisions_of(row))
        assert found is not None
        assert np.array_equal(found, row)


@pytest.mark.parametrize("name", SPACES)
def test_features_are_finite_and_those_of_packed_kernels_differ_from_others(name: str) -> None:
    space = SPACES[name]
    features = decision_features(space, space.rows, Caches())
    assert features.shape == (space.num_candidates, len(FEATURE_NAMES))
    assert np.isfinite(features).all()
    assert (features[:, FEATURE_NAMES.index("is_packed")] == 1).all()
    assert features[:, FEATURE_NAMES.index(f"is_{space.family}")].all()
    assert set(space.extras(space.rows[:1])) <= set(EXTRAS)


def test_a_tile_fits_into_registers_and_results() -> None:
    space = SPACES["product"]
    values = space.values_of(space.rows)
    registers = values["rows"] * values["vectors"] * values["lanes"] // 8
    assert MAX_REGISTERS < registers.max() <= MAX_WIDE_REGISTERS
    assert registers[values["lanes"] < 16].max() <= MAX_REGISTERS, "shorter vectors fill no wider registers"
    assert (values["vectors"] * values["lanes"]).max() <= 49
    needs_blocks = (values["depth_block"] > 0) | (values["packs_data"] > 0)
    assert values["shares_blocks"][needs_blocks].all(), "threads cannot share what a block keeps"


def test_every_candidate_for_few_registers_is_one_for_many() -> None:
    few = product_space(49, 64, 49, registers=8)
    values = few.values_of(few.rows)
    assert (values["rows"] * values["vectors"] * values["lanes"] // 8).max() <= MAX_REGISTERS
    many = SPACES["product"]
    assert all(many.row_of(few.decisions_of(row)) is not None for row in few.rows[::7])
    wide = {"rows": 13, "vectors": 2, "lanes": 16, "block_rows": 49, "depth_block": 0, "unroll": 1}
    flags = {"packs_data": 0, "shares_blocks": 0, "stores_sums": 0}
    assert many.row_of(wide | flags) is not None
    assert few.row_of(wide | flags) is None


def test_what_is_no_candidate_is_not_found() -> None:
    space = SPACES["depthwise"]
    good = space.decisions_of(space.rows[0])
    assert space.row_of(good | {"lanes": 7}) is None
    assert space.row_of({name: value for name, value in good.items() if name != "lanes"}) is None
    assert space.row_of(good | {"else": 1}) is None
    assert space.row_of(good | {"pixels": 14, "lanes": 8, "group": 4}) is None, "4 do not divide 9 vectors"


@given(st.integers(1, 300), st.integers(1, 600), st.integers(8, 600))
def test_products_of_any_shape_have_candidates(rows: int, depth: int, columns: int) -> None:
    space = product_space(rows, depth, columns)
    drawn = space.sample(3, np.random.default_rng(rows))
    assert space.is_legal(drawn).all()
    for values in (space.values_of(drawn),):
        assert (values["rows"] <= rows).all()
        assert (depth % values["unroll"] == 0).all()


@pytest.mark.parametrize("name", SPACES)
def test_evolution_and_mutations_keep_to_the_space(name: str) -> None:
    space, rng = SPACES[name], np.random.default_rng(0)
    found = evolve(space, lambda rows: -rows.sum(axis=1).astype(float), rng, candidates=600)
    assert space.is_legal(found.rows).all()
    exact = -space.rows.sum(axis=1)
    assert found.scores[0] >= np.quantile(exact, 0.99)
    changed = mutate(space, space.rows[:40], rng)
    assert ((changed != space.rows[:40]).sum(axis=1) <= 1).all()


def test_decisions_are_carried_over_to_a_similar_kernel() -> None:
    first, second = product_space(128, 768, 768), product_space(100, 700, 760)
    assert 0 < distance(first, second) < 2
    assert distance(first, SPACES["direct"]) == float("inf")
    (row,) = first.sample(1, np.random.default_rng(1))
    found = adapt(first, row, second)
    assert second.is_legal(found[None])[0]
    assert second.decisions_of(found)["rows"] == first.decisions_of(row)["rows"]
    trials = DraftTrials("a", first, row[None], (3.0,))
    assert np.array_equal(neighbour_rows(second, [trials], 1)[0], found)


@pytest.mark.parametrize(("registers", "least", "most"), [(8, 6, 14), (32, 24, 52)])
def test_a_guess_spills_no_registers(registers: int, least: int, most: int) -> None:
    space = product_space(49, 64, 49, registers=registers)
    values = space.values_of(space.guessed(8, np.random.default_rng(0)))
    accumulators = values["rows"] * values["vectors"] * values["lanes"] // 8
    assert (accumulators <= most).all()
    assert (accumulators >= least).all()


def test_a_guess_fills_vectors_and_passes_over_data_once() -> None:
    values = SPACES["depthwise"].values_of(SPACES["depthwise"].guessed(4, np.random.default_rng(0)))
    assert (values["lanes"] >= 8).all()
    assert (values["lanes"] * values["group"] >= 36).all()
    values = SPACES["direct"].values_of(SPACES["direct"].guessed(4, np.random.default_rng(0)))
    assert (values["lanes"] >= 8).all()


def test_a_short_vector_takes_a_whole_register() -> None:
    space = direct_space(lines=14, length=14, channels=12, filters=20, window=(5, 5), stride=1)
    row = space.row_of({"rows": 4, "vectors": 5, "lanes": 4, "block_tiles": 1, "unroll": 1})
    assert row is not None
    assert space.extras(row[None])["registers"] == 20


@pytest.mark.parametrize("name", SPACES)
def test_there_are_guesses_for_every_family(name: str) -> None:
    space = SPACES[name]
    assert space.is_legal(space.guessed(8, np.random.default_rng(0))).all()


def test_the_draft_model_learns_packed_kernels_and_ranks_an_unseen_one() -> None:
    rng = np.random.default_rng(0)

    def latencies(space: PackedSpace, rows: np.ndarray) -> tuple[float, ...]:
        extras = space.extras(rows)
        spilled = np.maximum(extras["registers"] - 13, 0)
        return tuple(map(float, 10 * extras["loads_a_product"] + spilled))

    trials = []
    for columns in (64, 96, 100, 256, 300):
        space = product_space(64, 64, columns)
        rows = space.sample(60, rng)
        trials.append(DraftTrials(f"k{columns}", space, rows, latencies(space, rows)))
    model = train_draft_model(trials, caches=Caches(), device_model="none", seed=0)
    unseen = product_space(64, 64, 128)
    rows = unseen.sample(200, rng)
    predicted = model.predict(unseen, rows).mean
    order = np.argsort(np.argsort(predicted)), np.argsort(np.argsort(-np.asarray(latencies(unseen, rows))))
    assert np.corrcoef(*order)[0, 1] > 0.8


def test_values_of_a_decision_ascend() -> None:
    with pytest.raises(ValueError, match="ascending"):
        OptionDecision("rows", (2, 1))
