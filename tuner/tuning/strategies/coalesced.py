"""The search's answer with neighbouring parts of one backend merged.

Checked in tests/tuner/partition/test_coalesce.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from tuner.backends.protocol import ContiguousBackend
from tuner.partition.candidate import CandidatePartition
from tuner.partition.coalesce import coalesce
from tuner.partition.price import Invalid, Price
from tuner.pricing.measured import MeasuredPricer
from tuner.tuning.partitioned_function import of_partition
from tuner.tuning.session import TuningProgress
from tuner.tuning.strategies.proposed import Proposal, Proposed, as_proposals

_MERGE_SLACK = 0.02
"""Share by which a merged part may be slower alone than its parts: measurements repeat to about so much, and
the whole is measured before it is used."""


def coalesced(proposed: Proposed) -> Iterable[Proposal]:
    """Propose the search's answer with neighbours of one backend merged, where anything can be."""
    session, priced = proposed.session, proposed.first.priced
    if session.pricing.mode != "measured":
        return ()
    session.on_progress(TuningProgress(text=f"{priced.name}: merging neighbours"))
    merged = coalesce(
        priced.graph,
        proposed.first.partition,
        _LongCallsPricer(
            MeasuredPricer(priced.graph, session.measurer),
            {each.name for each in session.backends if isinstance(each, ContiguousBackend)},
        ),
        launch_penalty_us=priced.launch_penalty_us,
        slack=_MERGE_SLACK,
    )
    if not merged.num_merged:
        return ()
    return as_proposals(
        "coalesced", proposed.wholes.try_measure(of_partition(priced, merged.partition), label="mix")
    )


@dataclass(frozen=True, slots=True)
class _LongCallsPricer:
    """Prices merged parts of backends whose parts are one call of any length, where borders cost most.

    Others join what they can by their own rules; to measure every pair of neighbours would take longer than
    the search's own candidates do.
    """

    pricer: MeasuredPricer
    backends: Set[str]

    def price(self, candidates: Sequence[CandidatePartition]) -> tuple[Price, ...]:
        long = [each for each in candidates if each.backend in self.backends]
        found = dict(zip(long, self.pricer.price(long), strict=True))
        return tuple(found.get(each, Invalid("its own rule joins its parts")) for each in candidates)
