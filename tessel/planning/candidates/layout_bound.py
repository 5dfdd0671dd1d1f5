"""Step time that no order of one layout can beat, by its devices' work and what is ahead of and behind it.

Checked in tests/tessel/planning/candidates/test_bounds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.costs.stage_figures import StageFigures
from tessel.schedule.overlap import DeviceWork, least_end


def layout_bound(figures: StageFigures, *, micro_batches: int) -> float:
    """Return a step time that no order of one layout can beat, by its devices' work; O(stages).

    Args:
        micro_batches: of the layout's placement.
    """
    first_of_all = _shortest(figures)
    heads, tails = _heads(first_of_all), _tails(first_of_all)
    num_devices = len(figures.static_bytes)
    work = _device_work(figures, heads, micro_batches)
    first, last, ends = [np.inf] * num_devices, [np.inf] * num_devices, [np.inf] * num_devices
    us_of = {stage: each.us for each in figures.synchronisations for stage in each.stages}
    for stage, group in enumerate(figures.groups):
        for device in group:
            first[device] = min(first[device], heads[stage])
            last[device] = min(last[device], tails[stage])
            ends[device] = min(ends[device], us_of.get(stage, 0.0))
    least_update_us = min(figures.after_us)
    return max(
        float(
            first[device]
            + work[device]
            + max(ends[device] + figures.after_us[device], last[device] + least_update_us)
        )
        for device in range(num_devices)
    )


def _device_work(
    figures: StageFigures, heads: Sequence[float], micro_batches: int
) -> FloatArray | Sequence[float]:
    """Return the least by device from its first block to the end of its last.

    Where blocks run together, a forward is by itself before the first backward can come, and once at least; a
    backward once at least.
    """
    factor, backward = figures.overlap_factor, figures.least_backward_us()
    if factor is None:
        return figures.device_work_us() * micro_batches
    backward_heads = _backward_heads(figures, heads)
    found = []
    for device, (forward_us, backward_us) in enumerate(
        zip(figures.by_device(figures.forward_us), figures.by_device(backward), strict=True)
    ):
        here = [stage for stage, group in enumerate(figures.groups) if device in group]
        work = DeviceWork(
            forward=float(forward_us) * micro_batches,
            backward=float(backward_us) * micro_batches,
            shortest_forward=min(float(figures.forward_us[stage]) for stage in here),
            shortest_backward=min(float(backward[stage]) for stage in here),
            backward_head=min(backward_heads[stage] for stage in here) - min(heads[stage] for stage in here),
        )
        found.append(least_end(work, factor))
    return found


def _backward_heads(figures: StageFigures, heads: Sequence[float]) -> Sequence[float]:
    """Return the least time ahead of each stage's first backward: there and back."""
    gradient = figures.backward_us
    if figures.backward_input_us is not None:
        gradient = np.minimum(figures.backward_input_us, gradient) if gradient is not None else gradient
    assert gradient is not None, "whole backwards are kept where blocks run together"
    found = [head + float(own) for head, own in zip(heads, figures.forward_us, strict=True)]
    for chain in figures.chains:
        for stage in reversed(chain):
            for later in figures.next_stages[stage]:
                reached = found[later] + float(gradient[later]) + float(figures.hop_us[stage])
                found[stage] = max(found[stage], reached)
    return found


def _shortest(figures: StageFigures) -> StageFigures:
    """Return figures whose times no class of micro-batches falls below."""
    if not figures.by_class:
        return figures

    def least(values: Sequence[FloatArray | None]) -> FloatArray | None:
        known = [value for value in values if value is not None]
        return np.min(known, axis=0) if known else None

    forward_us, backward_us, input_us, hop_us = (
        least([getattr(each, name) for each in figures.by_class])
        for name in ("forward_us", "backward_us", "backward_input_us", "hop_us")
    )
    assert forward_us is not None, "there are forwards"
    assert hop_us is not None, "there are hops, of 0 at least"
    return replace(
        figures, forward_us=forward_us, backward_us=backward_us, backward_input_us=input_us, hop_us=hop_us
    )


def _heads(figures: StageFigures) -> Sequence[float]:
    """Return the least time ahead of each stage's first block: the longest way to it."""
    heads = [0.0] * len(figures.groups)
    for chain in figures.chains:
        for stage in chain:
            reached = heads[stage] + float(figures.forward_us[stage]) + float(figures.hop_us[stage])
            for following in figures.next_stages[stage]:
                heads[following] = max(heads[following], reached)
    return heads


def _tails(figures: StageFigures) -> Sequence[float]:
    """Return the least time behind each stage's last block, where that is always one that others wait for.

    Of forwards alone that is the way to the last stage, of joint backwards the way back to the first. Of
    backwards in halves nobody may wait for the last.
    """
    tails = [0.0] * len(figures.groups)
    if figures.backward_input_us is not None:
        return tails
    for chain in figures.chains:
        for stage in chain if figures.backward_us is not None else reversed(chain):
            hop_us = float(figures.hop_us[stage])
            for following in figures.next_stages[stage]:
                if figures.backward_us is not None:
                    reached = tails[stage] + float(figures.backward_us[stage]) + hop_us
                    tails[following] = max(tails[following], reached)
                else:
                    reached = tails[following] + float(figures.forward_us[following]) + hop_us
                    tails[stage] = max(tails[stage], reached)
    return tails
