"""Steps of a trace replayed: what they took, and what they would have taken with other durations.

A replica's pipeline is timed as every schedule here: blocks in the order recorded on each worker, each as
early as that order, its input and the transfer of its input allow. A step's pipeline is the slowest
replica's, as all wait for it. Left out is what runs before and after: collectives, the optimizer, and what
the host does between two operations. How far that is from the recorded spans is part of every report.
Checked in tests/tessel/checking/test_trace_assessment.py against an event simulation that shares no code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.profiles.step_trace import StepTrace
from tessel.search.batches.replay import FloatArray, Replay, makespans, replay_of, replayed_starts


@dataclass(frozen=True, slots=True, eq=False)
class TraceReplay:
    """A trace with its orders prepared for replays.

    Attributes:
        trace: what was recorded.
        replays: by distinct order.
        pipeline_s: float64, shape (steps, replicas): replayed with the recorded durations.
        ideal_spans_s: each kind of block as long as its mean over steps, replicas, stages and micro-batches.
        ideal_lags_s: each direction of transfer as long as its median.
    """

    trace: StepTrace
    replays: tuple[Replay, ...]
    pipeline_s: FloatArray
    ideal_spans_s: FloatArray
    ideal_lags_s: FloatArray

    @classmethod
    def of(cls, trace: StepTrace) -> TraceReplay:
        """Return the trace replayed as it was recorded."""
        replays = tuple(replay_of(trace.placement, orders) for orders in trace.orders)
        stages = trace.stages
        spans, lags = np.empty_like(trace.spans_s), np.zeros_like(trace.lags_s)
        spans[..., :stages] = trace.spans_s[..., :stages].mean()
        spans[..., stages:] = trace.spans_s[..., stages:].mean()
        for way in (slice(0, stages - 1), slice(stages - 1, 2 * (stages - 1))):
            if stages > 1:
                lags[..., way] = np.median(trace.lags_s[..., way])
        recorded = _pipelines(trace, replays, trace.spans_s, trace.lags_s)
        return cls(trace, replays, recorded, spans, lags)

    def step_s(self, spans_s: FloatArray, lags_s: FloatArray | None = None) -> FloatArray:
        """Return what each step's pipeline takes with other durations; float64, shape (steps,)."""
        lags = self.trace.lags_s if lags_s is None else lags_s
        slowest: FloatArray = _pipelines(self.trace, self.replays, spans_s, lags).max(axis=1)
        return slowest

    def ideal_with(self, kept: npt.NDArray[np.bool_]) -> float:
        """Return the mean step where all durations are ideal but those of some blocks.

        Args:
            kept: shape (replicas, stages), whose blocks take what was recorded.
        """
        trace, stage = self.trace, self.trace.stage_of_block
        kept_blocks = kept[:, stage][None, :, None, :]
        spans = np.where(kept_blocks, trace.spans_s, self.ideal_spans_s)
        targets = np.array([trace.placement.index_by_name[edge.target] for edge in trace.placement.edges])
        kept_edges = kept[:, stage[targets]][None, :, None, :]
        lags = np.where(kept_edges, trace.lags_s, self.ideal_lags_s)
        return float(self.step_s(spans, lags).mean())


class PathPiece(NamedTuple):
    """A block on a critical path: its stage, its micro-batch, seconds, and seconds waited for its input."""

    stage: int
    micro_batch: int
    duration_s: float
    transfer_s: float


def critical_path(replayed: TraceReplay, step: int, replica: int) -> tuple[PathPiece, ...]:
    """Return the blocks that follow each other without a pause to a replica's last end, first to last.

    Args:
        step: position among the steps.
        replica: position among the replicas.
    """
    trace = replayed.trace
    replay = replayed.replays[int(trace.order_of[step, replica])]
    spans, lags = trace.spans_s[step, replica], trace.lags_s[step, replica]
    starts = replayed_starts(replay, spans[None], lags[None])[:, 0]
    ends = starts + spans[replay.position, replay.block]
    path = [int(ends.argmax())]
    pieces = []
    while True:
        task = path[-1]
        block, position = int(replay.block[task]), int(replay.position[task])
        places = range(replay.before_start[task], replay.before_start[task + 1])
        arrivals = [
            (float(ends[replay.before[place]]) + _lag(replay, lags, place, position), place)
            for place in places
        ]
        _, last = max(arrivals, default=(0.0, -1))
        transfer = 0.0 if last < 0 or starts[task] <= 0 else _lag(replay, lags, last, position)
        pieces.append(
            PathPiece(
                stage=int(trace.stage_of_block[block]),
                micro_batch=position,
                duration_s=float(spans[position, block]),
                transfer_s=transfer,
            )
        )
        if last < 0:
            return tuple(reversed(pieces))
        path.append(int(replay.before[last]))


def _lag(replay: Replay, lags: FloatArray, place: int, position: int) -> float:
    edge = int(replay.before_edge[place])
    return 0.0 if edge < 0 else float(lags[position, edge])


def _pipelines(
    trace: StepTrace, replays: tuple[Replay, ...], spans: FloatArray, lags: FloatArray
) -> FloatArray:
    found = np.zeros(trace.order_of.shape)
    for number, replay in enumerate(replays):
        here = trace.order_of == number
        found[here] = makespans(replay, spans[here], lags[here])
    return found
