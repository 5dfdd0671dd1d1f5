"""The partition that the search found, measured as a whole."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.tuning.strategies.proposed import Proposal, Proposed, as_proposals


def searched(proposed: Proposed) -> Iterable[Proposal]:
    """Propose the partition whose parts add up to the least."""
    return as_proposals("searched", proposed.wholes.try_measure(proposed.first, label="mix"))
