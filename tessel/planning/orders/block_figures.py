"""Spans and memory of a layout's blocks as arrays, `form · stages + stage`; see `rule_order`."""

from __future__ import annotations

import numpy as np

from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.costs.training_step import whole_steps
from tessel.planning.orders.rule_order import IntArray


def spans_of_blocks(figures: StageFigures, step_us: float) -> IntArray:
    """Return whole steps by block; 0 of forms that there are not."""
    nothing = np.zeros(len(figures.devices))
    every = (
        figures.forward_us,
        figures.backward_us,
        figures.backward_input_us,
        figures.backward_weight_us,
    )
    return whole_steps(np.concatenate([nothing if us is None else us for us in every]), step_us)


def memory_of_blocks(figures: StageFigures) -> IntArray:
    """Return the bytes that each block adds to its device."""
    kept = np.ceil(figures.kept_bytes).astype(np.int64)
    halved = np.ceil(figures.halved_bytes).astype(np.int64)
    return np.concatenate([kept, -kept, halved - kept, -halved])
