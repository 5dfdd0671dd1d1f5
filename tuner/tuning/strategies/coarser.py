"""Partitions of fewer and larger parts: what the search finds where launches are dearer.

Prices of parts alone leave out what parts do to each other, so a partition that costs more by their sum can
be faster as a whole. Checked in tests/tuner/tuning/strategies/test_coarser.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tuner.tuning.end_to_end.cache import EndToEndCache, Variant, fastest
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, of_parts
from tuner.tuning.strategies.proposed import Proposal, Proposed, Search, as_proposals
from tuner.tuning.strategies.single_backend import single_searches

_DEARER_LAUNCHES = (0.002, 0.02, 1.0)
"""Shares of a partition's cost that a part may have to save to be worth a border; the last leaves the fewest
parts there can be."""

_WORTH_COARSER = 1.5
"""Ratio to the fastest single backend up to which coarser partitions of another one are measured."""


def coarser_single_backends(proposed: Proposed) -> Iterable[Proposal]:
    """Propose fewer parts of each single backend that is nearly as fast as the fastest."""
    singles = proposed.alone
    searches = single_searches(proposed)
    fastest_us = min((figure.latency_us for ((_, figure),) in singles.values()), default=0.0)
    for name, ((function, figure),) in singles.items():
        if figure.latency_us <= _WORTH_COARSER * fastest_us:
            found = find_coarser(proposed.wholes, searches[name], function, label=f"{name}-alone")
            yield from as_proposals(name, found, is_single=True)


def coarser_mix(proposed: Proposed) -> Iterable[Proposal]:
    """Propose what the search finds where launches are dearer."""
    found = find_coarser(proposed.wholes, choose_partition, proposed.first, label="mix")
    return as_proposals("coarser", found)


def find_coarser(
    wholes: EndToEndCache, search: Search, first: PartitionedFunction, *, label: str
) -> Variant | None:
    """Search again with higher launch penalties; return the fastest other program, or None if there is none.

    Args:
        wholes: measures.
        search: what found the first answer.
        label: what records of these wholes are called.
    """
    priced = first.priced
    functions = {}
    for share in _DEARER_LAUNCHES:
        penalty_us = priced.launch_penalty_us + share * first.partition.cost_us
        chosen = search(replace(priced, launch_penalty_us=penalty_us)).partition.chosen
        function = of_parts(priced, chosen)
        functions[function.fingerprint] = function
    functions.pop(first.fingerprint, None)
    found = [wholes.try_measure(function, label=label) for function in functions.values()]
    measured = [each for each in found if each is not None]
    return fastest(*measured) if measured else None
