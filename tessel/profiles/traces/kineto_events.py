"""Events of one rank's PyTorch profiler trace, by thread, and the work that a stretch of a thread's time did.

Where the trace has kernels, work is that of the kernels launched within the stretch, whoever launched them: a
backward's are launched by autograd's own thread while the one that called it waits. Kernels of collectives
are left out. Without kernels, as on a CPU, it is the thread's operations. Times are microseconds on the
clock of the trace. Checked in tests/tessel/profiles/traces/test_kineto.py.

Source: Kineto's trace format as torch 2.13 writes it (`torch.profiler.profile.export_chrome_trace`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from tessel.profiles.figures import decode_json, refusal

COMMUNICATION = ("nccl", "gloo", "c10d", "record_param_comms", "rccl", "mpi", "_c10d")
"""Beginnings of the names of what only moves data between ranks."""

_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_FSDP_FORWARDS = ("FSDP::root_pre_forward", "FSDP::pre_forward")
_KEPT = ("cpu_op", "user_annotation", "python_function", *_LAUNCHES, *_ON_DEVICE)


class _Arguments(msgspec.Struct, frozen=True):
    """The arguments of an event that say how it belongs to others."""

    correlation: int | None = None
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    forward_thread: int | None = msgspec.field(name="Fwd thread id", default=None)


_NO_ARGUMENTS = _Arguments()


class Event(msgspec.Struct, frozen=True):
    """A complete event, or another one, of which only some keys are set."""

    ph: str = ""
    name: str | int = ""
    cat: str | None = None
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def title(self) -> str:
        """Its name as text."""
        return str(self.name)

    @property
    def end(self) -> float:
        """When it ended."""
        return self.ts + self.dur


class _Distributed(msgspec.Struct, frozen=True):
    rank: int | None = None
    world_size: int | None = None


class _Device(msgspec.Struct, frozen=True):
    name: str = ""


class _Document(msgspec.Struct, frozen=True):
    trace_events: tuple[Event, ...] = msgspec.field(name="traceEvents")
    distributed: _Distributed | None = msgspec.field(name="distributedInfo", default=None)
    devices: tuple[_Device, ...] = msgspec.field(name="deviceProperties", default=())
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


class Work(NamedTuple):
    """Work between its first and its last operation.

    Attributes:
        start: microseconds on the trace's clock.
        duration: to the end of the last operation.
        busy: of that, while an operation ran.
    """

    start: float
    duration: float
    busy: float


class Node(NamedTuple):
    """An operation of automatic differentiation, with the number of the forward operation that it belongs to.

    `sequence` is None for what has none, such as the accumulation of a gradient.
    """

    event: Event
    sequence: int | None


class RankEvents:
    """What a trace says of one rank.

    Attributes:
        rank: as the trace says; None if it does not.
        world_size: ranks of the job; None if the trace does not say it.
        device: kind of GPU, empty of a CPU.
        base_ns: what the clock counts from, the same for all ranks of a machine as a rule.
        shift_us: what to add to a time to compare it with those of other ranks.
    """

    def __init__(self, document: _Document) -> None:
        distributed = document.distributed or _Distributed()
        self.rank = distributed.rank
        self.world_size = distributed.world_size
        self.device = document.devices[0].name if document.devices else ""
        self.base_ns = document.base_ns
        self.shift_us = 0.0
        self._by_category: dict[str, list[Event]] = defaultdict(list)
        for event in document.trace_events:
            if event.ph == "X" and event.cat in _KEPT:
                self._by_category[event.cat or ""].append(event)
        for events in self._by_category.values():
            events.sort(key=lambda event: (event.ts, -event.dur))

    @property
    def annotations(self) -> list[Event]:
        """Ranges that the job or torch named, by start."""
        return self._by_category["user_annotation"]

    @cached_property
    def calls(self) -> list[Event]:
        """Calls of modules, by start; there with `with_stack=True` alone."""
        return [
            event for event in self._by_category["python_function"] if event.title.startswith("nn.Module: ")
        ]

    @property
    def operations(self) -> list[Event]:
        """Operations of torch, by start."""
        return self._by_category["cpu_op"]

    @cached_property
    def has_kernels(self) -> bool:
        """Whether work was launched on a device of its own."""
        return bool(self._kernels)

    @cached_property
    def nodes(self) -> list[Node]:
        """Operations of automatic differentiation, by thread, then by start."""
        found = [
            Node(event, _arguments(event).sequence)
            for event in self.operations
            if event.title.startswith("autograd::engine::evaluate_function")
        ]
        return sorted(found, key=lambda node: (str(node.event.tid), node.event.ts))

    @cached_property
    def sequences(self) -> list[tuple[Event, int]]:
        """Forward operations with the number of the backward operation that each would be followed by."""
        return [
            (event, arguments.sequence)
            for event in self.operations
            if (arguments := _arguments(event)).sequence is not None and not arguments.forward_thread
        ]

    def begin_of(self, label: Event) -> float:
        """Return when the work of a labelled range began.

        FSDP copies gathered weights first, and only then a stage waits for what it takes: a range that has
        FSDP's mark of a forward, or a node of a backward, begins with it.
        """
        index = bisect_left(self._beginnings, label.ts)
        found = self._beginnings[index : index + 1]
        return found[0] if found and found[0] < label.end else label.ts

    @cached_property
    def _beginnings(self) -> list[float]:
        marks = (each for each in self.annotations if each.title.startswith(_FSDP_FORWARDS))
        return sorted(each.ts for each in (*marks, *(node.event for node in self.nodes)))

    def work(self, begin: float, end: float, thread: int | str) -> Work | None:
        """Return what was done between two times of a thread; None where nothing was."""
        return _work(self._done(begin, end, thread))

    def _done(self, begin: float, end: float, thread: int | str) -> Iterator[tuple[float, float]]:
        if self.has_kernels:
            first, last = bisect_left(self._launches, (begin,)), bisect_left(self._launches, (end,))
            for _, correlation in self._launches[first:last]:
                yield from self._kernels.get(correlation, ())
            return
        starts, operations = self._of_thread.get(thread, ([], []))
        for event in operations[bisect_left(starts, begin) : bisect_left(starts, end)]:
            yield event.ts, event.end

    @cached_property
    def _of_thread(self) -> dict[int | str, tuple[list[float], list[Event]]]:
        """Starts and operations of each thread, without communication and what is inside it."""
        found: dict[int | str, tuple[list[float], list[Event]]] = {}
        moves_until: dict[int | str, float] = {}
        for event in self.operations:
            starts, events = found.setdefault(event.tid, ([], []))
            if event.title.startswith(COMMUNICATION):
                moves_until[event.tid] = max(event.end, moves_until.get(event.tid, 0.0))
            elif event.ts >= moves_until.get(event.tid, 0.0):
                starts.append(event.ts)
                events.append(event)
        return found

    @cached_property
    def _launches(self) -> list[tuple[float, int]]:
        """Time and number of each launch, by time."""
        return sorted(
            (event.ts, number)
            for category in _LAUNCHES
            for event in self._by_category[category]
            if (number := _arguments(event).correlation) is not None
        )

    @cached_property
    def _kernels(self) -> dict[int, list[tuple[float, float]]]:
        """Begin and end of what each launch ran, without collectives."""
        found: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for category in _ON_DEVICE:
            for event in self._by_category[category]:
                number = _arguments(event).correlation
                if number is not None and not event.title.startswith(COMMUNICATION):
                    found[number].append((event.ts, event.end))
        return found


def read_events(path: Path, text: bytes) -> RankEvents:
    """Read the trace of one rank.

    Raises:
        DocumentError: it is none, or has no event with a duration.
    """
    document = decode_json(text, _Document, path)
    events = RankEvents(document)
    if not events.operations and not events.annotations:
        raise refusal(
            path,
            "",
            "it has neither operations of torch nor named ranges",
            "trace with torch.profiler.profile(activities=[CPU, …]) around whole training steps",
        )
    return events


def _arguments(event: Event) -> _Arguments:
    try:
        return msgspec.json.decode(event.args, type=_Arguments)
    except msgspec.ValidationError:
        return _NO_ARGUMENTS


def _work(pieces: Iterable[tuple[float, float]]) -> Work | None:
    start, end, busy = float("inf"), float("-inf"), 0.0
    for begin, finish in sorted(pieces):
        busy += max(0.0, finish - max(begin, end))
        start, end = min(start, begin), max(end, finish)
    return Work(start, end - start, busy) if end >= start else None
