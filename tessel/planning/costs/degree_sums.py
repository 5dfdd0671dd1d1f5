"""Costs of layers of which some are split over more devices than others: tensor-parallel degrees by stage.

Each stage has the figures of its own degree's table: a layout's running sums are picked layer by layer
(`DegreeSums.of_layers`), and all that is made of sums of one table is made of these, too. Bounds that hold
for every choice of degrees take the least of each figure (`DegreeSums.least`).

At a boundary between degrees s and r the tensor is cut anew (`reshard_us`). A sender has so many bytes of
it, a receiver needs so many, as the tables of the two degrees say: all of them, or, with sequence
parallelism, a part. Each receiver takes an equal part of what the senders have together, no more than it
needs, and gathers the rest of what it needs from its own group, over the link within a node. The end with
fewer devices sends or takes several parts, one after the other; a hop takes as long as the longer direction:

    s = 2, r = 4, all on each      parts of a half, two from each sender; each receiver gathers the other half
    s = 4, r = 2, a part on each   two parts to each receiver, which then has its half

Source: Zheng et al., Alpa (OSDI 2022), section 6 (cross-mesh resharding, with a local all-gather), for the
rule. Checked in tests/tessel/planning/test_own_degrees.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.planning.cluster import Link
from tessel.planning.costs.stage_costs import BY_LAYER, FloatArray, LayerSums, TiedTensor

_Combine = Callable[[FloatArray], FloatArray]
"""From figures by degree and layer to figures by layer."""

_RUNNING = tuple(name for name in LayerSums.__dataclass_fields__ if name not in BY_LAYER)
_OF_LAYERS = ("peak", "recomputed_peak", "boundary", "taken")


@dataclass(frozen=True, slots=True, eq=False)
class DegreeSums:
    """The tables of several degrees.

    Attributes:
        tables: running sums of each degree, of the same layers.
        degrees: of each table, ascending.
        by_layer: from the name of an attribute of `LayerSums` to what each layer adds to it, or has; float64,
            shape (num_degrees, num_layers).
    """

    tables: tuple[LayerSums, ...]
    degrees: tuple[int, ...]
    by_layer: dict[str, FloatArray]

    @classmethod
    def of(cls, tables: dict[int, LayerSums]) -> DegreeSums:
        """Return the tables by degree."""
        own = tuple(tables[degree] for degree in sorted(tables))
        by_layer = {name: np.diff([getattr(each, name) for each in own]) for name in _RUNNING}
        by_layer |= {name: np.array([getattr(each, name) for each in own]) for name in _OF_LAYERS}
        return cls(own, tuple(sorted(tables)), by_layer)

    def of_layers(self, degrees: npt.NDArray[np.int64]) -> LayerSums:
        """Return the running sums of layers of which each has the degree given; shape (num_layers,)."""
        place = np.searchsorted(self.degrees, degrees), np.arange(len(degrees))
        weights, trained = self.by_layer["weights"][place], self.by_layer["trained"][place]
        tied = tuple(
            tensor._replace(
                num_bytes=(num_bytes := float(weights[list(tensor.layers)].min())),
                trained_bytes=min(num_bytes, float(trained[list(tensor.layers)].max())),
            )
            for tensor in self.tables[0].tied
        )
        return self._combined(lambda values: values[place], tied)

    def of_stages(self, cuts: Sequence[tuple[int, int]], degrees: Sequence[int]) -> LayerSums:
        """Return the same for stages of which each has a degree."""
        return self.of_layers(np.repeat(degrees, [last + 1 - first for first, last in cuts]))

    def least(self) -> LayerSums:
        """Return running sums that no choice of degrees falls below; of tied tensors, the most bytes."""
        tied = tuple(
            same[0]._replace(
                num_bytes=max(each.num_bytes for each in same),
                trained_bytes=max(each.trained_bytes for each in same),
            )
            for same in zip(*(each.tied for each in self.tables), strict=True)
        )
        found = self._combined(lambda values: values.min(axis=0), tied)
        return replace(
            found,
            is_splittable=any(each.is_splittable for each in self.tables),  # some choice of degrees may be
            of_degrees=tuple(zip(self.degrees, self.tables, strict=True)),
        )

    def _combined(self, combine: _Combine, tied: tuple[TiedTensor, ...]) -> LayerSums:
        found: dict[str, Any] = {name: combine(self.by_layer[name]) for name in (*_RUNNING, *_OF_LAYERS)}
        found |= {name: np.concatenate(([0.0], np.cumsum(found[name]))) for name in _RUNNING}
        return replace(
            self.tables[0],
            tied=tied,
            has_update=any(each.has_update for each in self.tables),
            is_splittable=all(each.is_splittable for each in self.tables),
            **found,
        )


class Side(NamedTuple):
    """One side of a boundary between stages of unequal degrees.

    Attributes:
        degree: devices over which its layers are split.
        num_bytes: of the boundary's tensor, that each of them has or needs.
    """

    degree: int
    num_bytes: float


def reshard_us(source: Side, target: Side, link: Link, node: Link) -> float:
    """Return microseconds until each device of the target has what it needs of what the source has.

    Args:
        source: who sends.
        target: who takes it.
        link: between the two.
        node: between the devices of the target.
    """
    ratio = source.degree / target.degree
    taken = min(target.num_bytes, source.num_bytes * ratio)
    if not taken:
        return 0.0
    messages = max(_parts(target.degree, source.degree), _parts(taken, source.num_bytes))
    us = messages * link.latency_us + max(taken, taken / ratio) / link.bytes_per_s * 1e6
    gathered = _parts(target.num_bytes, taken) - 1
    if gathered:
        us += gathered * node.latency_us + (target.num_bytes - taken) / node.bytes_per_s * 1e6
    return us


def _parts(whole: float, part: float) -> int:
    """Return how many parts make up a whole; tables hold whole bytes, so that a thousandth may lack."""
    return math.ceil(whole / part - 1e-3)
