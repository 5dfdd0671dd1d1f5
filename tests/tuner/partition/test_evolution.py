"""Evolution: never worse than where it starts, the same for equal seeds, within its budget."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import TunerError
from tuner.partition.evolution import (
    EvolutionProgress,
    EvolutionSettings,
    Genes,
    evolve,
)
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure


def landscape(weights: tuple[tuple[float, ...], ...], joint: float) -> dict[Genes, float]:
    """Return latencies that add up, with a bonus where neighbours agree: what a sum of parts cannot see."""
    latency_us = {}
    for genes in product(*(range(len(choices)) for choices in weights)):
        agreeing = sum(one == other for one, other in pairwise(genes))
        added = sum(choices[gene] for choices, gene in zip(weights, genes, strict=True))
        latency_us[genes] = 100.0 + added - joint * agreeing
    return latency_us


landscapes = st.builds(
    landscape,
    st.lists(st.lists(st.floats(0, 10), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6).map(
        tuple
    ),
    st.floats(0, 5),
)


def measured(latency_us: dict[Genes, float]) -> tuple[list[int], list[Genes]]:
    asked: list[Genes] = []
    num_choices = [
        1 + max(genes[index] for genes in latency_us) for index in range(len(next(iter(latency_us))))
    ]
    return num_choices, asked


@settings(max_examples=25, deadline=None)
@given(landscapes, st.integers(0, 5))
def test_the_answer_is_the_best_measured_and_no_worse_than_the_first(
    latency_us: dict[Genes, float], seed: int
) -> None:
    num_choices, asked = measured(latency_us)

    def measure(genes: Genes) -> Price:
        asked.append(genes)
        return Figure(latency_us=latency_us[genes], source="given")

    settings_ = EvolutionSettings(population_size=10, max_measurements=40)
    result = evolve(num_choices, measure, rng=np.random.default_rng(seed), settings=settings_)
    assert len(asked) == len(set(asked)) == result.num_measured <= 40
    assert asked[0] == (0,) * len(num_choices)
    assert result.figure.latency_us == min(latency_us[genes] for genes in asked)
    assert result.figure.latency_us <= result.first_figure.latency_us == latency_us[asked[0]]
    again = evolve(num_choices, measure, rng=np.random.default_rng(seed), settings=settings_)
    assert again == result


def test_it_finds_an_optimum_that_no_single_change_reaches() -> None:
    # Two backends over eight groups: mixed answers pay for each change of backend.
    weights = ((0.0, 0.4),) * 8
    latency_us = {genes: cost - 6.0 * all(genes) for genes, cost in landscape(weights, 1.0).items()}
    result = evolve(
        [2] * 8,
        lambda genes: Figure(latency_us=latency_us[genes], source="given"),
        rng=np.random.default_rng(0),
        settings=EvolutionSettings(max_measurements=120),
    )
    assert result.genes == (1,) * 8


def test_what_fails_is_avoided_and_counted() -> None:
    def measure(genes: Genes) -> Price:
        return Invalid("it crashed") if genes[0] == 1 else Figure(latency_us=5.0 - genes[1], source="given")

    result = evolve([2, 3], measure, rng=np.random.default_rng(0))
    assert result.genes == (0, 2)
    assert (result.num_measured, result.num_failed) == (6, 3)


def test_a_first_level_that_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(TunerError, match="it crashed"):
        evolve([2], lambda genes: Invalid("it crashed"), rng=np.random.default_rng(0))


def test_progress_counts_measurements_and_never_gets_worse() -> None:
    told: list[EvolutionProgress] = []
    evolve(
        [3, 3],
        lambda genes: Figure(latency_us=9.0 - sum(genes), source="given"),
        rng=np.random.default_rng(1),
        on_progress=told.append,
    )
    assert [each.num_measured for each in told] == list(range(2, 2 + len(told)))
    bests = [each.best_us for each in told]
    assert bests == sorted(bests, reverse=True)
    assert bests[-1] == 5.0


def test_settings_and_choices_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        EvolutionSettings(population_size=1)
    with pytest.raises(ValueError, match="without any"):
        evolve([2, 0], lambda genes: Invalid(""), rng=np.random.default_rng(0))
