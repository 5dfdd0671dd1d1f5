"""The stages of a layout as runs of layers, and sums over what each device of a pipeline holds.

Checked in tests/tessel/planning/costs/test_training_step.py with the figures that are made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.layout import Layout


@dataclass(frozen=True, slots=True, eq=False)
class StageRuns:
    """The stages of the placement as runs of layers; an `xshape` has each twice.

    Attributes:
        first: each stage's first layer.
        after: the layer behind its last.
        recomputes: whether it runs its forward again.
        groups: the positions that run it.
        chains: the stages of each copy of the model, in order.
        next_stages: those that each hands its result to.
    """

    first: np.ndarray[tuple[int], np.dtype[np.int64]]
    after: np.ndarray[tuple[int], np.dtype[np.int64]]
    recomputes: np.ndarray[tuple[int], np.dtype[np.bool_]]
    groups: tuple[tuple[int, ...], ...]
    chains: tuple[tuple[int, ...], ...]
    next_stages: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, sums: LayerSums, layout: Layout) -> StageRuns:
        """Return the runs of a layout."""
        num_stages = len(layout.cuts)
        first = np.array([first for first, _ in layout.cuts])
        after = np.array([last + 1 for _, last in layout.cuts])
        recomputes = np.array(layout.recompute or (False,) * num_stages) & sums.has_backward
        down = tuple(layout.devices_of(stage) for stage in range(num_stages))
        chain = tuple(range(num_stages))
        following = tuple(
            () if later < 0 else (later,) for later in map(layout.next_stage, range(num_stages))
        )
        if layout.placement != "xshape":
            return cls(first, after, recomputes, down, (chain,), following)
        twice = np.concatenate
        return cls(
            twice((first, first)),
            twice((after, after)),
            twice((recomputes, recomputes)),
            (*down, *((layout.pipeline - 1 - device,) for (device,) in down)),
            (chain, tuple(stage + num_stages for stage in chain)),
            (*following, *(tuple(stage + num_stages for stage in later) for later in following)),
        )

    def of_sums(self, sums: FloatArray) -> FloatArray:
        """Return what each stage has of running sums over layers."""
        found: FloatArray = sums[self.after] - sums[self.first]
        return found


def sum_by_device(groups: Sequence[Sequence[int]], values: FloatArray, num_devices: int) -> FloatArray:
    """Return the sum by device of values by stage, each of which holds one device or more."""
    held_by = np.array([device for group in groups for device in group])
    if len(held_by) > len(groups):
        values = np.repeat(values, [len(group) for group in groups])
    found: FloatArray = np.bincount(held_by, weights=values, minlength=num_devices).astype(np.float64)
    return found
