"""Draws of durations, and a greedy runtime against an event simulation that shares no code."""

from __future__ import annotations

import numpy as np
import pytest

from tessel.batches.spread import Spread
from tessel.errors import UsageError
from tessel.handwritten import HANDWRITTEN
from tessel.orders import Orders, Task
from tessel.placement import Placement
from tessel.search.batches.greedy import greedy_starts
from tessel.search.batches.replay import replay_of
from tessel.shapes import vshape

POSITIONS = 5


def event_simulation(
    placement: Placement,
    orders: Orders,
    spans: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    limits: list[int],
) -> dict[Task, float]:
    """Return starts: at each moment, every free device runs the first ready block whose rest still fits."""
    index = placement.index_by_name
    before: dict[int, list[int]] = {}
    for edge in placement.edges:
        before.setdefault(index[edge.target], []).append(index[edge.source])
    left = [list(own) for own in orders]
    starts: dict[Task, float] = {}
    ends: dict[Task, float] = {}
    held, free, now = [0] * len(left), [0.0] * len(left), 0.0

    def fits(device: int, task: Task) -> bool:
        if task == left[device][0]:
            return True
        level = held[device]
        for each in (task, *(other for other in left[device] if other != task)):
            level += placement.blocks[each.block_index].memory
            if level > limits[device]:
                return False
        return True

    while any(left):
        for device, own in enumerate(left):
            ready = [
                task
                for task in own
                if free[device] <= now
                and all(
                    ends.get(Task(block, task.micro_batch), np.inf) <= now
                    for block in before.get(task.block_index, [])
                )
                and fits(device, task)
            ]
            if ready:
                task = ready[0]
                starts[task] = now
                ends[task] = free[device] = now + spans[task.micro_batch, task.block_index]
                held[device] += placement.blocks[task.block_index].memory
                own.remove(task)
        now = min((end for end in ends.values() if end > now), default=now)
    return starts


@pytest.mark.parametrize("seed", range(4))
def test_the_greedy_runtime_is_that_of_an_event_simulation(seed: int) -> None:
    placement = vshape(3, forward_span=10, backward_span=20)
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    orders = rule.orders(placement, micro_batches=POSITIONS)
    replay = replay_of(placement, orders)
    spans = np.array([[block.span for block in placement.blocks]] * POSITIONS, dtype=np.float64)
    spans = spans * Spread.of("uniform:0.9").factors(np.random.default_rng(seed), spans.shape)
    memory = np.array([[block.memory for block in placement.blocks]] * POSITIONS, dtype=np.int64)
    limits = [3 + seed % 2, 2 + seed % 2, 1 + seed % 3]
    starts = np.zeros(len(replay.block))
    lags = np.zeros((POSITIONS, len(placement.edges)))
    greedy_starts(replay, spans, lags, memory, np.array(limits), starts)
    expected = event_simulation(placement, orders, spans, limits)
    for block, position, start in zip(replay.block, replay.position, starts, strict=True):
        assert start == pytest.approx(expected[Task(int(block), int(position))])


@pytest.mark.parametrize(("text", "sigma"), [("lognormal:0.3", 0.3069), ("uniform:0.6", 0.3464)])
def test_factors_have_mean_one_and_the_spread_that_is_said(text: str, sigma: float) -> None:
    drawn = Spread.of(text).factors(np.random.default_rng(0), (200_000,))
    assert drawn.mean() == pytest.approx(1, abs=0.005)
    assert drawn.std() == pytest.approx(sigma, rel=0.02)
    assert drawn.min() > 0


@pytest.mark.parametrize("text", ["normal:0.1", "lognormal:0", "uniform:1.5", "lognormal", "lognormal:-1"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no distribution; write lognormal:0\.1"):
        Spread.of(text)
