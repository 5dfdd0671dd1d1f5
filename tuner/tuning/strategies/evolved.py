"""Programs that an evolutionary search on end-to-end latency finds from the search's answer on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.partition.evolution import EvolutionProgress, EvolutionSettings
from tuner.partition.price import Price
from tuner.pricing.measured import price_of
from tuner.tuning.end_to_end.cache import Variant
from tuner.tuning.partitioned_function import PartitionedFunction, binding, of_parts
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.strategies.graph_level_search import chosen_parts, evolve_partition, find_groups
from tuner.tuning.strategies.proposed import Proposal, Proposed, as_proposals


def evolved(proposed: Proposed, *, max_measurements: int) -> Iterable[Proposal]:
    """Propose what an evolutionary search on end-to-end latency finds from the search's answer on."""
    if "searched" not in proposed.mixes:
        return ()
    variant = _evolve(proposed.session, proposed.first, max_measurements)
    return as_proposals("evolved", proposed.wholes.known(variant))


def _evolve(session: Session, first: PartitionedFunction, budget: int) -> Variant:
    """Search on measured end-to-end latency, from the first level's answer on."""
    priced = first.priced
    groups = find_groups(
        priced.graph,
        first.partition,
        priced.candidates,
        priced.prices,
        launch_penalty_us=priced.launch_penalty_us,
    )

    def report(progress: EvolutionProgress) -> None:
        text = f"graph-level search: best {progress.best_us / 1000:.2f} ms"
        session.on_progress(
            TuningProgress(text=text, completed=progress.num_measured, total=progress.max_measurements)
        )

    def measure(module: IRModule) -> Price:
        # The program itself names the variant: equal programs are one record, whoever proposed them.
        record = session.measurer.measure_function(
            priced.workload,
            module,
            "mix",
            settings=f"program={Structure(module).fingerprint}{binding(priced)}",
        )
        return price_of(record)

    evolved = evolve_partition(
        priced.graph,
        groups,
        measure,
        rng=np.random.default_rng(session.seed),
        settings=EvolutionSettings(max_measurements=budget),
        on_progress=report,
    )
    return of_parts(priced, chosen_parts(groups, evolved.genes)), evolved.figure
