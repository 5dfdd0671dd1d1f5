"""Cuts with equally many layers a stage, as frameworks make them unless told otherwise.

They are simple starts where memory is so tight that a search of balanced cuts finds none. Checked in
tests/tessel/planning/cutting/test_even_cuts.py.
"""

from __future__ import annotations

import numpy as np

from tessel.planning.cutting.cut import Cut
from tessel.planning.cutting.run_prices import RunPrices


def even_cuts(prices: RunPrices, num_stages: int) -> tuple[Cut, ...]:
    """Return at most two cuts without recomputation, each of the layers that repeat evenly over the stages.

    What comes before these is of the first stage, what comes after of the last: once beside as many layers
    as the others have, once in place of one (Megatron-LM's `account_for_embedding_in_pipeline_split` and
    `account_for_loss_in_pipeline_split`). Stages in the middle have what does not divide.
    """
    num_layers = len(prices.time) - 1
    first, after = _repeated(prices)
    found = []
    for ends in (0, 1):
        lead, trail = ends * (first > 0), ends * (after < num_layers)
        sizes = np.full(num_stages, (after - first + lead + trail) // num_stages)
        rest = (after - first + lead + trail) % num_stages
        begin = (num_stages - rest) // 2
        sizes[begin : begin + rest] += 1
        sizes[0] += first - lead
        sizes[-1] += num_layers - after - trail
        if (sizes > 0).all():
            found.append(Cut((0, *np.cumsum(sizes).tolist()), (False,) * num_stages))
    return tuple(dict.fromkeys(found))


def _repeated(prices: RunPrices) -> tuple[int, int]:
    """Return the first layer of the kind that most are of, and the one after the last."""
    every = np.arange(len(prices.time) - 1)
    kinds = np.stack([each[every, every + 1] for each in (prices.time, prices.static, prices.saved)], axis=1)
    kinds = np.round(kinds / np.maximum(kinds.max(axis=0), 1.0), 9)  # they are differences of sums
    _, kind, counts = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
    places = np.flatnonzero(kind.reshape(-1) == counts.argmax())
    return int(places[0]), int(places[-1]) + 1
