"""Cuts: where stages begin, and which run their forward again; and the cuts near by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.cutting.run_prices import RunPrices


@dataclass(frozen=True, slots=True)
class Cut:
    """Where stages begin, and which run their forward again.

    Attributes:
        bounds: 0, the first layer of each later stage, and the number of layers.
        recompute: by stage.
    """

    bounds: tuple[int, ...]
    recompute: tuple[bool, ...]


def neighbours(cut: Cut, figures: StageFigures, *, may_recompute: bool, reach: int = 1) -> Iterator[Cut]:
    """Yield the cuts that differ by one bound moved, or by recomputation of one stage; busiest devices first.

    Args:
        cut: where from.
        reach: layers that a bound moves at most.
    """
    work = figures.device_work_us()
    num_stages = len(cut.recompute)
    load = [work[figures.devices[stage]] for stage in range(num_stages)]
    for stage in sorted(range(num_stages), key=lambda stage: (-load[stage], stage)):
        for bound, step in ((stage, 1), (stage + 1, -1)):
            for layers in range(1, reach + 1):
                moved = list(cut.bounds)
                moved[bound] += step * layers
                if 0 < bound < num_stages and moved[bound - 1] < moved[bound] < moved[bound + 1]:
                    yield Cut(tuple(moved), cut.recompute)
        if cut.recompute[stage] or may_recompute:
            flipped = (*cut.recompute[:stage], not cut.recompute[stage], *cut.recompute[stage + 1 :])
            yield Cut(cut.bounds, flipped)


def transfers(cut: Cut, prices: RunPrices) -> Iterator[Cut]:
    """Yield the cuts that take a layer from a stage to a shorter one further on, whatever stands between.

    All bounds between the two move by a layer. Of cuts whose devices are equally loaded, warm-up is
    shorter where the first stages of an interleaved pipeline are: single bounds cannot go there, since each
    move alone makes some device slower.

    Args:
        cut: where from.
    """
    bounds = np.array(cut.bounds)
    time = prices.time[bounds[:-1], bounds[1:]]
    sizes = np.diff(bounds)
    for giver in range(len(sizes)):
        for taker in range(len(sizes)):
            if abs(giver - taker) < 2 or sizes[giver] < 2 or time[taker] >= time[giver] * (1 - 1e-9):
                continue
            moved = bounds.copy()
            if giver < taker:
                moved[giver + 1 : taker + 1] -= 1
            else:
                moved[taker + 1 : giver + 1] += 1
            yield Cut(tuple(moved.tolist()), cut.recompute)


class Section(NamedTuple):
    """Consecutive layers that are cut by themselves.

    Attributes:
        first: its first layer.
        after: the first layer behind it.
        num_stages: stages that it is cut into.
    """

    first: int
    after: int
    num_stages: int


def every_cut(sections: Sequence[Section], *, may_recompute: bool) -> Iterator[Cut]:
    """Yield all cuts of each section into its stages, with every set of stages that recompute if any may."""
    num_stages = sum(section.num_stages for section in sections)
    inner = (
        itertools.combinations(range(section.first + 1, section.after), section.num_stages - 1)
        for section in sections
    )
    for chosen in itertools.product(*inner):
        bounds = [
            bound for section, own in zip(sections, chosen, strict=True) for bound in (section.first, *own)
        ]
        sets = (
            itertools.product((False, True), repeat=num_stages) if may_recompute else [(False,) * num_stages]
        )
        for recompute in sets:
            yield Cut((*bounds, sections[-1].after), tuple(recompute))


def num_cuts(sections: Sequence[Section], *, may_recompute: bool) -> int:
    """Return how many cuts `every_cut` yields."""
    found = math.prod(math.comb(after - first - 1, stages - 1) for first, after, stages in sections)
    return found * 2 ** sum(section.num_stages for section in sections) if may_recompute else found
