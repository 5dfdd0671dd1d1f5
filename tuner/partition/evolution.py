"""Graph-level search: evolve partitions by their measured end-to-end latency.

The first level adds up parts, and so cannot see what parts do to each other: caches that stay warm, copies
that the memory plan saves, calls that cost more in a crowd. The graph-level search starts from its answer and
measures whole programs. A *gene* stands for one distinct sub-graph of the first level's partition,
everywhere that it occurs, and says which of its ways to run it is used: 0 the first level's, 1 the next
best backend's, and so on. An *individual* is one gene value a sub-graph.

```
            gene        0: attention   1: mlp    2: norm
            level one        0             0         0       ← always in the first population
            runner-ups       1             1         1       ← and this one
            a child          0             1         0       → measured end to end, once
```
Selection is by tournament, crossover at two points, mutation by flipping genes. Every individual is
measured at most once, the best measured one is returned, and it is never slower than the first level's, as
measured. Equal seeds and equal measurements give equal answers. Checked in
tests/tuner/partition/test_evolution.py.

Source: Jeon et al., "Collage" (PACT 2022), graph-level search; its genes choose between two backends, ours
among all that can run a sub-graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.errors import TunerError
from tuner.partition.price import Price
from tuner.plan import Figure

Genes = tuple[int, ...]
"""For each gene, which of its choices is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionSettings:
    """How to evolve; the defaults are the paper's.

    Attributes:
        population_size: individuals a generation.
        crossover_probability: how likely two neighbours exchange what lies between two points.
        mutation_probability: how likely an individual is mutated.
        flip_probability: how likely each gene of a mutated individual is drawn anew.
        tournament_size: how many compete for one place in the next generation.
        max_measurements: whole programs to measure.
        max_generations: generations after which to stop, though few new individuals may appear.
    """

    population_size: int = 50
    crossover_probability: float = 0.5
    mutation_probability: float = 0.2
    flip_probability: float = 0.05
    tournament_size: int = 5
    max_measurements: int = 200
    max_generations: int = 100

    def __post_init__(self) -> None:
        if self.population_size < 2 or self.tournament_size < 1 or self.max_measurements < 1:
            raise ValueError(
                f"population {self.population_size}, tournament {self.tournament_size} and budget "
                f"{self.max_measurements} must be at least 2, 1 and 1; nothing evolves otherwise"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionProgress:
    """How far it is: measurements made of those allowed, and the least latency so far (microseconds)."""

    generation: int
    num_measured: int
    max_measurements: int
    best_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolved:
    """What came of it.

    Attributes:
        genes: the fastest individual measured.
        figure: its latency.
        first_figure: latency of the first level's answer, measured in the same run.
        num_measured: whole programs measured.
        num_failed: those of them that could not be built or run.
    """

    genes: Genes
    figure: Figure
    first_figure: Figure
    num_measured: int
    num_failed: int


def evolve(
    num_choices: Sequence[int],
    measure: Callable[[Genes], Price],
    *,
    rng: np.random.Generator,
    settings: EvolutionSettings = EvolutionSettings(),
    on_progress: Callable[[EvolutionProgress], None] = lambda progress: None,
) -> Evolved:
    """Return the individual of least measured latency.

    Args:
        num_choices: for each gene, how many choices it has (at least 1); choice 0 is the first level's.
        measure: returns the end-to-end latency of an individual, or why there is none.
        rng: draws populations; the answer depends on nothing else but measurements.
        settings: how to evolve, and for how long.
        on_progress: told after each measurement.

    Raises:
        TunerError: the first level's answer could not be measured.
        ValueError: a gene has no choice.
    """
    if any(count < 1 for count in num_choices):
        raise ValueError(
            f"choices {tuple(num_choices)} hold a gene without any; each keeps at least the first level's"
        )
    scores = _Scores(measure, settings, on_progress)
    population = _first_population(num_choices, settings, rng)
    first = scores.measure_first(population[0])
    generation = 0
    while True:
        scores.measure_all(population, generation)
        generation += 1
        if scores.is_spent or generation >= settings.max_generations or scores.has_all_of(num_choices):
            break
        population = _next_population(population, scores, num_choices, settings, rng)
    best, figure = scores.best()
    return Evolved(
        genes=best,
        figure=figure,
        first_figure=first,
        num_measured=len(scores.price_by_genes),
        num_failed=sum(not isinstance(price, Figure) for price in scores.price_by_genes.values()),
    )


@dataclass(slots=True)
class _Scores:
    """What has been measured; nothing is measured twice."""

    measure: Callable[[Genes], Price]
    settings: EvolutionSettings
    on_progress: Callable[[EvolutionProgress], None]
    price_by_genes: dict[Genes, Price] = field(default_factory=dict)

    @property
    def is_spent(self) -> bool:
        return len(self.price_by_genes) >= self.settings.max_measurements

    def has_all_of(self, num_choices: Sequence[int]) -> bool:
        """Say whether every possible individual has been measured."""
        total = 1
        for count in num_choices:
            total *= count
            if total > len(self.price_by_genes):
                return False
        return True

    def measure_first(self, genes: Genes) -> Figure:
        price = self.measure(genes)
        if not isinstance(price, Figure):
            raise TunerError(
                f"the first level's partition could not be measured ({price}); check it by itself"
            )
        self.price_by_genes[genes] = price
        return price

    def measure_all(self, population: Sequence[Genes], generation: int) -> None:
        for genes in population:
            if genes in self.price_by_genes or self.is_spent:
                continue
            self.price_by_genes[genes] = self.measure(genes)
            self.on_progress(
                EvolutionProgress(
                    generation=generation,
                    num_measured=len(self.price_by_genes),
                    max_measurements=self.settings.max_measurements,
                    best_us=self.best()[1].latency_us,
                )
            )

    def best(self) -> tuple[Genes, Figure]:
        """Return the fastest individual; of equal ones the first measured."""
        measured = [
            (genes, price) for genes, price in self.price_by_genes.items() if isinstance(price, Figure)
        ]
        return min(measured, key=lambda entry: entry[1].latency_us)

    def latency_us(self, genes: Genes) -> float:
        """Return what selection compares; what failed or was not measured loses against everything."""
        price = self.price_by_genes.get(genes)
        return price.latency_us if isinstance(price, Figure) else float("inf")


def _first_population(
    num_choices: Sequence[int], settings: EvolutionSettings, rng: np.random.Generator
) -> list[Genes]:
    """Return the first level's answer, all runner-ups, and random mutants of the first level's answer."""
    first = (0,) * len(num_choices)
    population = [first, tuple(min(1, count - 1) for count in num_choices)]
    while len(population) < settings.population_size:
        share = rng.uniform(settings.flip_probability, 1.0)
        population.append(_flip(first, num_choices, share, rng))
    return population


def _next_population(
    population: Sequence[Genes],
    scores: _Scores,
    num_choices: Sequence[int],
    settings: EvolutionSettings,
    rng: np.random.Generator,
) -> list[Genes]:
    """Return the winners of tournaments, crossed and mutated; the best of all stays as it is."""
    chosen = [_tournament(population, scores, settings, rng) for _ in range(settings.population_size)]
    for position in range(1, len(chosen), 2):
        if rng.random() < settings.crossover_probability:
            chosen[position - 1], chosen[position] = _cross(chosen[position - 1], chosen[position], rng)
    mutated = [
        _flip(genes, num_choices, settings.flip_probability, rng)
        if rng.random() < settings.mutation_probability
        else genes
        for genes in chosen
    ]
    return [scores.best()[0], *mutated[1:]]


def _tournament(
    population: Sequence[Genes], scores: _Scores, settings: EvolutionSettings, rng: np.random.Generator
) -> Genes:
    entrants = rng.integers(len(population), size=settings.tournament_size)
    return min((population[int(entrant)] for entrant in entrants), key=scores.latency_us)


def _cross(one: Genes, other: Genes, rng: np.random.Generator) -> tuple[Genes, Genes]:
    """Exchange what lies between two points."""
    first, last = sorted(int(point) for point in rng.integers(len(one) + 1, size=2))
    return (
        (*one[:first], *other[first:last], *one[last:]),
        (*other[:first], *one[first:last], *other[last:]),
    )


def _flip(genes: Genes, num_choices: Sequence[int], probability: float, rng: np.random.Generator) -> Genes:
    """Draw each gene anew with the given probability."""
    return tuple(
        int(rng.integers(count)) if rng.random() < probability else gene
        for gene, count in zip(genes, num_choices, strict=True)
    )
