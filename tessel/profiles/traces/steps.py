"""Training steps out of a profiler's trace, to be replayed as a table is (`tessel.profiles.step_trace`).

Ranks that run the same stages are replicas of each other, by number. A backward's two halves, and the
recomputation before one, are one block where the rank ran nothing between them; halves apart are refused, as
a replay has one backward. A trace holds no transfers that could be told from waits: each border's are taken
to last as long as the shortest time between its two blocks. Steps of which ranges are missing, as at the
begin and the end of a trace, are left out. Checked in tests/tessel/profiles/traces/test_steps.py.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tessel.placement import BlockKind
from tessel.profiles.figures import refusal
from tessel.profiles.step_trace import COMPUTE, FloatArray, StepTrace, trace_of_columns
from tessel.profiles.traces.load import SUFFIXES, load_trace
from tessel.profiles.traces.ranges import Trace, TraceRange

_BACKWARD = (
    BlockKind.BACKWARD,
    BlockKind.BACKWARD_INPUT,
    BlockKind.BACKWARD_WEIGHT,
    BlockKind.RECOMPUTE,
)
US = 1e6
"""Microseconds of a second."""


def is_profiler_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a path is of a profiler's trace, a file or a folder of each rank's, by its name."""
    return Path(path).is_dir() or Path(path).name.endswith(SUFFIXES)


def read_profiler_steps(path: str | os.PathLike[str]) -> StepTrace:
    """Read the steps of a profiler's trace.

    Raises:
        DocumentError: it cannot be read, has no whole step, or halves of a backward that lie apart.
    """
    return steps_of_trace(Path(path), load_trace(path))


def steps_of_trace(path: Path, trace: Trace) -> StepTrace:
    """Return the steps of a trace; see `read_profiler_steps`."""
    places = _places(path, trace)
    blocks = [each for rank in sorted(places) for each in _joined(path, trace, rank)]
    whole, notes = _whole_steps(path, blocks)
    columns: dict[str, list[object]] = defaultdict(list)
    for each in whole:
        replica, device = places[each.rank]
        columns["dp_rank"].append(replica)
        columns["stage"].append(device)
        columns["gmc"].append(each.stage)
        columns["step"].append(each.step)
        columns["optype"].append(COMPUTE[each.kind is not BlockKind.FORWARD])
        columns["start_ts"].append(each.start_us / US)
        columns["duration"].append(each.duration_us / US)
        columns["mb_id"].append(each.micro_batch)
    found = trace_of_columns(path, columns)
    return replace(found, lags_s=_lags(found, columns), notes=(*trace.notes, *notes))


def _places(path: Path, trace: Trace) -> dict[int, tuple[int, int]]:
    """Return replica and device of each rank."""
    stages: dict[int, set[int]] = defaultdict(set)
    for each in trace.ranges:
        stages[each.rank].add(each.stage)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(stages):
        groups[tuple(sorted(stages[rank]))].append(rank)
    sizes = {len(ranks) for ranks in groups.values()}
    if len(sizes) > 1:
        own, ranks = min(groups.items(), key=lambda item: len(item[1]))
        raise refusal(
            path,
            "",
            f"stage {own[0]} was run by {len(ranks)} ranks, and others by {max(sizes)}",
            "give the traces of all ranks of each replica",
        )
    return {
        rank: (replica, device)
        for device, own in enumerate(sorted(groups))
        for replica, rank in enumerate(groups[own])
    }


def _joined(path: Path, trace: Trace, rank: int) -> list[TraceRange]:
    """Return a rank's forwards and whole backwards, in its order."""
    found: list[TraceRange] = []
    for each in trace.ranges:
        if each.rank != rank:
            continue
        last = found[-1] if found else None
        if each.kind in _BACKWARD and last is not None and last.kind is BlockKind.BACKWARD:
            same = (each.stage, each.micro_batch, each.step) == (last.stage, last.micro_batch, last.step)
            if same:
                end = max(last.start_us + last.duration_us, each.start_us + each.duration_us)
                found[-1] = last._replace(duration_us=end - last.start_us)
                continue
        found.append(each._replace(kind=BlockKind.BACKWARD) if each.kind in _BACKWARD else each)
    counts = Counter((each.step, each.stage, each.micro_batch, each.kind) for each in found)
    twice = next((key for key, count in counts.items() if count > 1), None)
    if twice is not None:
        raise refusal(
            path,
            "",
            f"rank {rank} ran other blocks between the parts of the backward of stage {twice[1]}, "
            f"micro-batch {twice[2]}",
            "trace steps whose backwards are joint, which is what is replayed",
        )
    return found


def _whole_steps(path: Path, blocks: Sequence[TraceRange]) -> tuple[list[TraceRange], tuple[str, ...]]:
    """Return the blocks of the steps that have as many as most, numbered anew, and a note on the others."""
    counts = Counter(each.step for each in blocks)
    most = max(counts.values(), default=0)
    kept = {
        step: number for number, step in enumerate(sorted(step for step in counts if counts[step] == most))
    }
    if not kept or not any(each.kind is not BlockKind.FORWARD for each in blocks):
        raise refusal(path, "", "it has no step with a backward", "trace whole training steps")
    left_out = len(counts) - len(kept)
    notes = (f"{left_out} of {len(counts)} steps are not whole, and left out",) if left_out else ()
    return [each._replace(step=kept[each.step]) for each in blocks if each.step in kept], notes


def _lags(trace: StepTrace, columns: Mapping[str, Sequence[object]]) -> FloatArray:
    """Return transfers: of each border the shortest time between its two blocks, 0 on one device."""
    starts, ends = np.empty_like(trace.spans_s), np.empty_like(trace.spans_s)
    whole = {name: np.array(columns[name], dtype=np.int64) for name in ("step", "dp_rank", "mb_id", "gmc")}
    block = whole.pop("gmc") + trace.stages * (np.array(columns["optype"]) == COMPUTE[1])
    place = (*whole.values(), block)
    starts[place] = np.array(columns["start_ts"], dtype=np.float64)
    ends[place] = starts[place] + np.array(columns["duration"], dtype=np.float64)
    lags, index = np.zeros_like(trace.lags_s), trace.placement.index_by_name
    for number, edge in enumerate(trace.placement.edges):
        source, target = index[edge.source], index[edge.target]
        if trace.placement.blocks[source].devices != trace.placement.blocks[target].devices:
            lags[..., number] = max(0.0, float((starts[..., target] - ends[..., source]).min()))
    return lags
