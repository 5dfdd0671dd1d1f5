"""Ask each strategy in turn for whole programs; each measures some, knowing what the others found.

The searched partition and the single backends are always proposed, the others on request. A further strategy
is one more module with one more function, named in `refinements_of`. Checked in
tests/tuner/tuning/test_tune.py and tests/tuner/tuning/strategies/.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tuner.tuning.end_to_end.cache import EndToEndCache
from tuner.tuning.end_to_end.measurement import measure_partitioned
from tuner.tuning.partitioned_function import PricedFunction, choose_partition
from tuner.tuning.session import Session
from tuner.tuning.strategies.coalesced import coalesced
from tuner.tuning.strategies.coarser import coarser_mix, coarser_single_backends
from tuner.tuning.strategies.graph_level_search import evolved
from tuner.tuning.strategies.left_out import left_out
from tuner.tuning.strategies.proposed import Proposed, Strategy, as_proposals
from tuner.tuning.strategies.single_backend import single_backends


def propose(session: Session, priced: PricedFunction, refinements: Sequence[Strategy] = ()) -> Proposed:
    """Measure the searched partition and each single backend, and what further strategies make of them.

    Args:
        refinements: strategies that start from what was found, in order.

    Raises:
        UnpriceableError: nobody can run an operator; names it.
        TunerError: neither the searched partition nor a single backend's can be measured; says why.
    """
    proposed = Proposed(
        session=session,
        wholes=EndToEndCache(partial(measure_partitioned, session)),
        first=choose_partition(priced),
    )
    whole = proposed.wholes.try_measure(proposed.first, label="mix")
    proposed.proposals.extend(as_proposals("searched", whole))
    proposed.proposals.extend(single_backends(proposed))
    if not proposed.proposals:
        proposed.wholes.measure(proposed.first, label="mix")  # which says why nothing can be run
    for strategy in refinements:
        proposed.proposals.extend(strategy(proposed))
    return proposed


def refinements_of(*, graph_level_search: int, coarser: bool) -> tuple[Strategy, ...]:
    """Return the strategies that options ask for; see `partition_model`."""
    fewer_parts: tuple[Strategy, ...] = (coarser_single_backends, coarser_mix, coalesced, left_out)
    evolution: tuple[Strategy, ...] = (partial(evolved, max_measurements=graph_level_search),)
    return (*(fewer_parts if coarser else ()), *(evolution if graph_level_search else ()))
