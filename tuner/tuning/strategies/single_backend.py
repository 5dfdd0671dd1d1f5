"""Each backend by itself, with the reference backend for what it cannot run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tuner.errors import UnpriceableError
from tuner.plan import Figure
from tuner.tuning.partitioned_function import choose_partition
from tuner.tuning.strategies.proposed import Proposal, Proposed, Search, as_proposals


def single_backends(proposed: Proposed) -> Iterable[Proposal]:
    """Propose each backend that can run something, with the reference backend for the rest."""
    for name, search in single_searches(proposed).items():
        try:
            function = search(proposed.first.priced)
        except UnpriceableError:
            # Active pricing leaves out what it need not know, a single backend's other kernels among it.
            continue
        variant = proposed.wholes.try_measure(function, label=f"{name}-alone")
        yield from as_proposals(name, variant, is_single=True)


def single_searches(proposed: Proposed) -> dict[str, Search]:
    """Return the search of each backend alone that can run something."""
    priced = proposed.first.priced
    usable = zip(priced.candidates, priced.prices, strict=True)
    able = {candidate.backend for candidate, price in usable if isinstance(price, Figure)}
    return {
        backend.name: partial(choose_partition, only=backend.name)
        for backend in proposed.session.backends
        if backend.name in able
    }
