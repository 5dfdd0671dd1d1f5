"""Schedules where durations vary: the ends of tasks, and the makespan's quantiles, by replay.

Each sample draws a factor for every block of every micro-batch (`tessel.batches.spread`) and replays the
schedule's orders, as they are or by a greedy runtime under the same draws. Lags do not vary. Equal seeds give
equal figures. Checked in tests/tessel/search/batches/test_greedy.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessel.batches.spread import QUANTILES, Spread
from tessel.orders import device_orders
from tessel.schedule import Schedule
from tessel.search.batches.greedy import greedy_starts
from tessel.search.batches.replay import FloatArray, Replay, replay_of, replayed_starts

SAMPLES = 500
"""Replays that quantiles are taken over: the 95th percentile is then of 25 samples."""

GREEDY_TASKS = 1_500
"""Tasks of a replica up to which a greedy runtime is replayed, too: it takes their square."""

GREEDY_SAMPLES = 200

COMPARED = 95.0
"""Percentile by which a static order stands beside a greedy runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanSpread:
    """What schedules take where durations vary, in steps.

    Attributes:
        mean: on average.
        quantiles: by `QUANTILES`.
        greedy_ratio: a greedy runtime's 95th percentile over the static order's under the same draws; None of
            large schedules, and of blocks on several devices.
    """

    mean: float
    quantiles: tuple[float, ...]
    greedy_ratio: float | None


def spread_of_makespan(schedules: Sequence[Schedule], spread: Spread, *, seed: int) -> MakespanSpread:
    """Return the distribution of the makespan of replicas that end with the slowest.

    Args:
        schedules: of each replica; no blocks run together.
        spread: of durations.
    """
    found = _makespans(schedules, spread, seed, SAMPLES, is_greedy=False)
    ratio = None
    if all(map(has_greedy, schedules)):
        both = (
            _makespans(schedules, spread, seed, GREEDY_SAMPLES, is_greedy=is_greedy)
            for is_greedy in (False, True)
        )
        static, greedy = (float(np.percentile(each, COMPARED)) for each in both)
        ratio = greedy / static if static else None
    quantiles = tuple(np.percentile(found, QUANTILES).tolist())
    return MakespanSpread(mean=float(found.mean()), quantiles=quantiles, greedy_ratio=ratio)


def has_greedy(schedule: Schedule) -> bool:
    """Whether a greedy runtime is replayed beside a schedule's own order."""
    is_apart = all(len(block.devices) == 1 for block in schedule.placement.blocks)
    return is_apart and len(schedule.starts) <= GREEDY_TASKS


def sampled_ends(
    schedule: Schedule, spread: Spread, rng: np.random.Generator, samples: int, *, is_greedy: bool
) -> tuple[Replay, FloatArray]:
    """Return the schedule's tasks, and the ends of each in steps; float64, shape (tasks, samples).

    Args:
        schedule: its orders.
        spread: of durations.
        is_greedy: whether devices run what can start, not what the order says; see `greedy_starts`.
    """
    placement, batch, number = schedule.placement, schedule.classes, schedule.micro_batches
    replay = replay_of(placement, device_orders(placement, schedule.start_by_block(), batch))
    if batch is None:
        figures = [(block.span, block.memory) for block in placement.blocks]
        spans, memory = np.tile(np.array(figures, dtype=np.int64).T[:, None], (1, number, 1))
        lags = np.tile(np.array([edge.lag for edge in placement.edges], dtype=np.int64), (number, 1))
    else:
        spans, memory, lags = batch.spans, batch.memory, batch.lags
    drawn = spans * spread.factors(rng, (samples, *spans.shape))
    waits = lags.astype(np.float64)
    if is_greedy:
        starts = np.zeros((len(replay.block), samples))
        limits = np.array(schedule.peak_memory, dtype=np.int64)
        own = np.zeros(len(replay.block))
        for sample in range(samples):
            greedy_starts(replay, drawn[sample], waits, memory, limits, own)
            starts[:, sample] = own
    else:
        starts = replayed_starts(replay, drawn, np.broadcast_to(waits, (samples, *waits.shape)))
    return replay, starts + drawn[:, replay.position, replay.block].T


def _makespans(
    schedules: Sequence[Schedule], spread: Spread, seed: int, samples: int, *, is_greedy: bool
) -> FloatArray:
    rng = np.random.default_rng(seed)
    own = [sampled_ends(each, spread, rng, samples, is_greedy=is_greedy)[1].max(axis=0) for each in schedules]
    slowest: FloatArray = np.max(own, axis=0)
    return slowest
