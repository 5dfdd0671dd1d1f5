"""The searches, each without one of its phases."""

from __future__ import annotations

from dataclasses import dataclass

from tessel.search import MakespanParams, Phase, RepetendParams, RepetendPhase


@dataclass(frozen=True, slots=True)
class Variant:
    """A search without one of its parts.

    Attributes:
        phase: what is left out, as the table names it.
        module: where it is.
        source: what it is after, as the table names it.
        makespan: parameters of the search for whole schedules; None where only repetends are concerned.
        repetend: parameters of the search for repetends; None where only whole schedules are.
        max_copies: copies of a repetend.
    """

    phase: str
    module: str
    source: str
    makespan: MakespanParams | None = None
    repetend: RepetendParams | None = None
    max_copies: int = 3


def _without(phase: Phase) -> MakespanParams:
    return MakespanParams(left_out=frozenset({phase}))


def _without_in_repetends(phase: RepetendPhase) -> RepetendParams:
    return RepetendParams(left_out=frozenset({phase}))


VARIANTS = (
    Variant(
        Phase.HANDWRITTEN, "makespan.rule_schedules", "the rules of the first table",
        makespan=_without(Phase.HANDWRITTEN),
    ),
    Variant(
        Phase.LIST_SCHEDULING, "makespan.list_scheduling", "Giffler and Thompson 1960; Dijkstra, EWD 623",
        makespan=_without(Phase.LIST_SCHEDULING),
    ),
    Variant(
        Phase.LIMITS_IN_FLIGHT, "makespan.limits_in_flight", "Qi et al., Controllable Memory, 2024",
        makespan=_without(Phase.LIMITS_IN_FLIGHT),
    ),
    Variant(
        Phase.REPETENDS, "makespan.warmup_cooldown", "Lin et al., HPCA 2024",
        makespan=_without(Phase.REPETENDS),
    ),
    Variant(
        Phase.TABU_SEARCH, "makespan.tabu_search",
        "Nowicki and Smutnicki 1996; Balas and Vazacopoulos 1998; Taillard 1994",
        makespan=_without(Phase.TABU_SEARCH),
    ),
    Variant(
        Phase.OPTIONS, "makespan.option_search", "–", makespan=_without(Phase.OPTIONS),
    ),
    Variant(
        Phase.WINDOWS, "makespan.window_search", "Shaw 1998; Ruiz and Stützle 2007",
        makespan=_without(Phase.WINDOWS),
    ),
    Variant(
        Phase.DECISION_DIAGRAMS, "makespan.exact.prover",
        "Andersen et al., CP 2007; Bergman et al. 2016",
        makespan=_without(Phase.DECISION_DIAGRAMS),
    ),
    Variant(
        Phase.EXACT, "makespan.exact.exact_search", "Held and Karp 1962; Klein and Scholl 1999",
        makespan=_without(Phase.EXACT),
    ),
    Variant(
        "device subsets", "makespan.exact.device_subsets", "–", makespan=MakespanParams(subset_share=0.0),
    ),
    Variant(
        Phase.CP_SAT,
        "makespan.constraint_model",
        "Perron and Furnon, OR-Tools",
        makespan=_without(Phase.CP_SAT),
    ),
    Variant(
        RepetendPhase.NESTED_CHAINS, "repetend.chain_dp.nested_chain_dp", "–",
        repetend=_without_in_repetends(RepetendPhase.NESTED_CHAINS),
    ),
    Variant(
        RepetendPhase.CROSSING_CHAINS, "repetend.chain_dp.crossing_chain_dp", "–",
        repetend=_without_in_repetends(RepetendPhase.CROSSING_CHAINS),
    ),
    Variant(
        "orders before slots", "repetend.branch_and_bound", "–",
        repetend=RepetendParams(max_blocks_ordered_first=0),
    ),
    Variant(
        RepetendPhase.LATENCY, "repetend.latency", "–",
        makespan=None, repetend=_without_in_repetends(RepetendPhase.LATENCY),
    ),
    Variant(
        "several copies", "repetend.find_repetend", "–", repetend=RepetendParams(), max_copies=1,
    ),
)  # fmt: skip
"""The rows of the table."""
