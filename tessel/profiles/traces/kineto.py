"""Traces of the PyTorch profiler (Kineto JSON): one file a rank.

Stages are found by labels: those of torch.distributed.pipelining, or ranges that the job names itself
(`tessel.profiles.traces.labels`). A trace without labels of stages is read by layers
(`tessel.profiles.traces.kineto_layers`). Checked in tests/tessel/profiles/traces/test_kineto.py, on traces
of real ranks, and test_recorded.py, on one of torchtitan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tessel.names import name_of_path
from tessel.profiles.figures import refusal
from tessel.profiles.traces.kineto_events import RankEvents, Work, read_events
from tessel.profiles.traces.kineto_layers import layer_ranges
from tessel.profiles.traces.labels import parse_label
from tessel.profiles.traces.ranges import Trace, TraceRange, in_order

_RANK = re.compile(r"rank[_-]?([0-9]{1,6})|[_-]([0-9]{1,6})(?=\.|$)", re.IGNORECASE)


def read_kineto(path: Path, texts: Mapping[Path, bytes]) -> Trace:
    """Read the traces of one or several ranks of a job.

    Args:
        path: of the file or folder, for messages and titles.
        texts: of each rank's file.

    Raises:
        DocumentError: one is no such trace, two are of one rank, or no range says which stage or layer it is
            of.
    """
    by_rank: dict[int, RankEvents] = {}
    for position, (file, text) in enumerate(sorted(texts.items())):
        events = read_events(file, text)
        rank = _rank_of(file, position) if events.rank is None else events.rank
        if rank in by_rank:
            raise refusal(path, "", f"two files are of rank {rank}", "give one trace of each rank")
        by_rank[rank] = events
    first_ns = min(events.base_ns for events in by_rank.values())
    for events in by_rank.values():
        events.shift_us = (events.base_ns - first_ns) / 1e3
    ranges, notes = _labelled(by_rank)
    if ranges:
        names = tuple(f"stage{number}" for number in range(1 + max(each.stage for each in ranges)))
    else:
        ranges, names, notes = layer_ranges(path, by_rank)
    first = next(iter(by_rank.values()))
    return Trace(
        name=name_of_path(path.name.partition(".")[0] or "trace"),
        ranges=in_order(ranges),
        stage_names=names,
        device=name_of_path(first.device),
        notes=(*notes, *_notes_of_ranks(by_rank)),
    )


def _rank_of(file: Path, position: int) -> int:
    """Return the rank that a file's name says, or else the file's place among the others."""
    found = _RANK.search(file.name)
    return position if found is None else int(found[1] or found[2])


def _labelled(by_rank: Mapping[int, RankEvents]) -> tuple[list[TraceRange], list[str]]:
    """Return the ranges whose labels name a stage and a micro-batch, and what they leave open."""
    ranges: list[TraceRange] = []
    empty = overlapped = without_stage = 0
    has_operations = any(events.has_kernels or events.operations for events in by_rank.values())
    for rank, events in by_rank.items():
        for event in events.annotations:
            overlapped += "OVERLAP_F_B" in event.title
            label = parse_label(event.title)
            if label is None or label.layer or label.micro_batch is None:
                continue
            without_stage += label.stage is None
            if has_operations:
                work = events.work(events.begin_of(event), event.end, event.tid)
            else:
                work = Work(event.ts, event.dur, event.dur)
            empty += work is None
            ranges.append(
                TraceRange(
                    rank=rank,
                    stage=rank if label.stage is None else label.stage,
                    micro_batch=label.micro_batch,
                    kind=label.kind,
                    start_us=events.shift_us + (event.ts if work is None else work.start),
                    duration_us=0.0 if work is None else work.duration,
                )
            )
    notes = []
    if without_stage:
        notes.append("labels do not name a stage; each rank is taken for the stage of its number")
    if empty:
        notes.append(
            f"{empty} of {len(ranges)} labelled ranges hold no operation, and count 0, such as the input "
            "half of a first stage"
        )
    if overlapped:
        notes.append(
            f"{overlapped} forwards that overlap a backward have one label for both, and are left out"
        )
    return ranges, notes


def _notes_of_ranks(by_rank: Mapping[int, RankEvents]) -> Sequence[str]:
    worlds = {events.world_size for events in by_rank.values() if events.world_size is not None}
    notes = []
    if worlds and max(worlds) > len(by_rank):
        notes.append(f"traces of {len(by_rank)} of {max(worlds)} ranks are read; what others did is unknown")
    if any(events.has_kernels for events in by_rank.values()):
        notes.append("times are those of kernels, from the first to the last that a range launched")
    elif not any(events.operations for events in by_rank.values()):
        notes.append("no operation was recorded: times are those of the labelled ranges, waiting included")
    else:
        notes.append("times are of operations on the CPU, which the profiler makes longer")
    return notes
