"""A schedule as a trace in Chrome's event format, which Perfetto and chrome://tracing open.

Devices are tracks, blocks are slices, arrows follow the dependencies between devices, and a counter for each
device shows its memory. A step is a microsecond where it has no length of its own. Events are in order of
time; processes and threads count from 1, because viewers take 0 for the idle process of an operating system.
Checked against the format's rules in tests/tessel/picture/test_trace.py.

Source: the Trace Event Format document of the Chromium project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from tessel.picture.bars import bars_of, memory_curves, names_of
from tessel.schedule import Schedule

Event = dict[str, Any]

_PROCESS = 1
_MEASURED_PROCESS = 2
_COLOR_BY_KIND = {
    "forward": "thread_state_running",
    "backward": "thread_state_iowait",
    "backward_input": "yellow",
    "backward_weight": "good",
    "recompute": "bad",
    "other": "grey",
}


class MeasuredSlice(NamedTuple):
    """What a device really did: an action such as `0F3`, and when, in microseconds from the step's begin."""

    device: int
    action: str
    start_us: float
    duration_us: float


_COLOR_BY_LETTER = {
    "F": _COLOR_BY_KIND["forward"],
    "B": _COLOR_BY_KIND["backward"],
    "I": _COLOR_BY_KIND["backward_input"],
    "W": _COLOR_BY_KIND["backward_weight"],
}


def trace_document(
    schedule: Schedule,
    *,
    step_us: float = 1.0,
    name: str = "schedule",
    measured: Sequence[MeasuredSlice] = (),
    device_names: Sequence[str] | None = None,
) -> bytes:
    """Return the trace as JSON.

    Args:
        step_us: microseconds of a step.
        name: name of the process in the trace.
        measured: what a run really did, shown as a process of its own below the planned one.
        device_names: of each row, what its device is called; the numbers from 0 on if None.
    """
    names = names_of(schedule, device_names)
    events = [
        *_track_names(_PROCESS, name, [f"device {each}" for each in names], 1),
        *_measured_names(schedule, measured, name),
        *sorted(
            (
                *_slices(schedule, step_us),
                *_flows(schedule, step_us),
                *_counters(schedule, step_us, names),
                *_measured_slices(schedule, measured),
            ),
            key=lambda event: event["ts"],
        ),
    ]
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"found_by": schedule.found_by}}
    return msgspec.json.encode(document, order="sorted")


def _track_names(process: int, name: str, tracks: Sequence[str], first: int) -> Iterator[Event]:
    """Yield the names of a process and of its tracks, and the order in which viewers show them."""
    yield _metadata("process_name", process, first, {"name": name})
    yield _metadata("process_sort_index", process, first, {"sort_index": process})
    for thread, track in enumerate(tracks, first):
        yield _metadata("thread_name", process, thread, {"name": track})
        yield _metadata("thread_sort_index", process, thread, {"sort_index": thread})


def _metadata(kind: str, process: int, thread: int, arguments: dict[str, object]) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0.0, "args": arguments}


def _thread(device: int) -> int:
    return device + 1


def _measured_thread(schedule: Schedule, rank: int) -> int:
    return schedule.placement.devices + rank + 1


def _measured_names(schedule: Schedule, measured: Sequence[MeasuredSlice], name: str) -> Iterator[Event]:
    if measured:
        ranks = [f"rank {rank}" for rank in range(max(piece.device for piece in measured) + 1)]
        yield from _track_names(_MEASURED_PROCESS, f"{name}, as it ran", ranks, _measured_thread(schedule, 0))


def _measured_slices(schedule: Schedule, measured: Sequence[MeasuredSlice]) -> Iterator[Event]:
    for piece in measured:
        letter = piece.action.strip("0123456789")
        yield {
            "ph": "X",
            "name": piece.action,
            "cat": "real",
            "cname": _COLOR_BY_LETTER.get(letter, _COLOR_BY_KIND["other"]),
            "pid": _MEASURED_PROCESS,
            "tid": _measured_thread(schedule, piece.device),
            "ts": piece.start_us,
            "dur": piece.duration_us,
        }


def _slices(schedule: Schedule, step_us: float) -> Iterator[Event]:
    for bar in bars_of(schedule):
        yield {
            "ph": "X",
            "name": f"{bar.block} · {bar.micro_batch}",
            "cat": bar.kind.value,
            "cname": _COLOR_BY_KIND[bar.kind.value],
            "pid": _PROCESS,
            "tid": _thread(bar.device),
            "ts": bar.start * step_us,
            "dur": (bar.end - bar.start) * step_us,
            "args": {"micro_batch": bar.micro_batch, "phase": bar.phase.value},
        }


def _flows(schedule: Schedule, step_us: float) -> Iterator[Event]:
    """Yield an arrow for each dependency whose ends are on different devices."""
    placement = schedule.placement
    start = {(s.block, s.micro_batch): s.start for s in schedule.starts}
    number = 0
    for edge in placement.edges:
        source, target = placement.block(edge.source), placement.block(edge.target)
        if source.devices == target.devices:
            continue
        for micro_batch in range(schedule.micro_batches):
            begin = start.get((edge.source, micro_batch))
            finish = start.get((edge.target, micro_batch))
            if begin is None or finish is None:
                continue
            number += 1
            span = schedule.span_of(placement.index_by_name[edge.source], micro_batch)
            common = {"cat": "dependency", "name": "dependency", "id": number, "pid": _PROCESS}
            yield {
                **common,
                "ph": "s",
                "tid": _thread(source.devices[0]),
                # An arrow starts inside its slice, or viewers drop it.
                "ts": (begin + span) * step_us - min(0.001, span * step_us / 2),
            }
            yield {**common, "ph": "f", "bp": "e", "tid": _thread(target.devices[0]), "ts": finish * step_us}


def _counters(schedule: Schedule, step_us: float, names: Sequence[str]) -> Iterator[Event]:
    for curve in memory_curves(schedule):
        for step, units in zip(curve.steps, curve.units, strict=True):
            yield {
                "ph": "C",
                "name": f"memory of device {names[curve.device]}",
                "pid": _PROCESS,
                "ts": step * step_us,
                "args": {"held": units},
            }
