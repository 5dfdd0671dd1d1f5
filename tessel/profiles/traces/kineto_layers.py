"""Ranges by layer of traces that name no stages: by ranges of one's own, calls of modules, or FSDP's marks.

A forward is what ran inside the range or the call; a backward is what ran in those operations of automatic
differentiation that belong to it by torch's sequence numbers. An accumulation of a gradient has no number,
and goes with the operation before it. A call inside a backward is a recomputation.

Of modules, layers are the largest family of siblings of one class (the blocks), and whatever else stands
beside them or beside one of their ancestors: the tree of calls is opened down to that family and no further.
What ran outside all layers, such as a loss or a residual addition between them, is in none, and is told.
Checked in tests/tessel/profiles/traces/test_kineto.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tessel.names import name_of_path
from tessel.placement import BlockKind
from tessel.profiles.figures import refusal
from tessel.profiles.traces.kineto_events import Event, RankEvents
from tessel.profiles.traces.labels import parse_label
from tessel.profiles.traces.ranges import TraceRange

_INSTANCE = re.compile(r"_[0-9]+$")
_OF_TORCH = re.compile(
    r"PP:|gloo:|nccl:|ProfilerStep#|Optimizer\.|enumerate\(|DistributedDataParallel|FSDP::|torch/|## "
)
"""Ranges that torch names itself, which are no layers."""

_FSDP_MARK = re.compile(r"FSDP::(pre|post)_forward \((.{1,200})\)")
_SHORTEST_NOTED = 0.02
"""Share of the work outside all layers that is told."""


class _Piece(NamedTuple):
    """A stretch of a thread that belongs to a layer."""

    event: Event
    layer: str
    kind: BlockKind


@dataclass(slots=True)
class _Call:
    """A call of a module, and those inside it."""

    event: Event
    inside: list[_Call] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.event.title.removeprefix("nn.Module: ")


def layer_ranges(
    path: Path, by_rank: Mapping[int, RankEvents]
) -> tuple[list[TraceRange], tuple[str, ...], list[str]]:
    """Return ranges by layer, the layers' names in model order, and what the traces leave open.

    Raises:
        DocumentError: no range of the job's own and no call of a module is in them.
    """
    found = {rank: _pieces(events) for rank, events in by_rank.items()}
    if not any(found.values()):
        raise refusal(
            path,
            "",
            "no range in it says which stage or layer it is of",
            "trace with with_stack=True, or put each layer into torch.profiler.record_function(NAME)",
        )
    orders = {rank: _names_in_order(pieces) for rank, pieces in found.items()}
    notes = []
    is_chain = len(by_rank) > 1 and any(map(_hands_on, by_rank.values()))
    if is_chain:
        notes.append(
            "ranks send to each other and name no stages; they are taken to be stages in their order"
        )
    elif len(by_rank) > 1 and len(set(orders.values())) > 1:
        raise refusal(
            path, "", "its ranks run different layers and name no stages", "give the trace of one rank"
        )
    elif len(by_rank) > 1:
        notes.append("all ranks run the same layers, and are taken for replicas")
    names = (
        tuple(f"rank{rank}.{name}" for rank in sorted(orders) for name in orders[rank])
        if is_chain
        else next(iter(orders.values()))
    )
    number = {name: place for place, name in enumerate(names)}
    ranges: list[TraceRange] = []
    for rank, pieces in found.items():
        made, outside = _ranges(rank, by_rank[rank], pieces)
        ranges += [
            each._replace(stage=number[f"rank{rank}.{name}" if is_chain else name]) for name, each in made
        ]
        if outside > _SHORTEST_NOTED:
            notes.append(
                f"{outside:.0%} of rank {rank}'s work is in no layer, such as a loss or an optimizer's step, "
                "and is left out"
            )
    return ranges, tuple(map(name_of_path, names)), notes


def _pieces(events: RankEvents) -> list[_Piece]:
    """Return the stretches of a rank's forwards, and of backwards that have a label."""
    named = []
    for event in events.annotations:
        if not _OF_TORCH.match(event.title):
            label = parse_label(event.title)
            named.append(
                _Piece(event, event.title, BlockKind.FORWARD)
                if label is None
                else _Piece(event, label.layer or f"stage{label.stage}", label.kind)
            )
    if named:
        return _outermost(named)
    called = [
        _Piece(call.event, call.name, BlockKind.FORWARD) for call in _layers_of_calls(_trees(events.calls))
    ]
    return called or _outermost(_between_marks(events.annotations))


def _between_marks(annotations: Iterable[Event]) -> Iterator[_Piece]:
    """Yield the forwards of what FSDP wraps, each named as its last module, between the marks around them."""
    begins: dict[str, float] = {}
    for event in annotations:
        mark = _FSDP_MARK.fullmatch(event.title)
        if mark is None:
            continue
        side, modules = mark.groups()
        if side == "pre":
            begins.setdefault(modules, event.end)  # where several are wrapped, each has one
        elif modules in begins:
            begin = begins.pop(modules)
            between = Event(ts=begin, dur=event.ts - begin, tid=event.tid)
            yield _Piece(between, modules.rpartition(", ")[2], BlockKind.FORWARD)


def _outermost(pieces: Iterable[_Piece]) -> list[_Piece]:
    kept: list[_Piece] = []
    for piece in pieces:
        before = next((each for each in reversed(kept) if each.event.tid == piece.event.tid), None)
        if before is None or piece.event.ts >= before.event.end:
            kept.append(piece)
    return kept


def _trees(calls: Iterable[Event]) -> list[_Call]:
    roots: list[_Call] = []
    open_calls: dict[int | str, list[_Call]] = defaultdict(list)
    for event in calls:
        stack = open_calls[event.tid]
        while stack and event.ts >= stack[-1].event.end:
            stack.pop()
        call = _Call(event)
        (stack[-1].inside if stack else roots).append(call)
        stack.append(call)
    return roots


def _layers_of_calls(roots: Sequence[_Call]) -> list[_Call]:
    """Return the calls of the largest family of siblings, and of what stands beside them or above."""
    opened = _path_to_family(roots)
    layers: list[_Call] = []
    pending = list(reversed(roots))
    while pending:
        call = pending.pop()
        if call.name in opened and call.inside:
            pending += reversed(call.inside)
        else:
            layers.append(call)
    return layers


def _path_to_family(roots: Sequence[_Call]) -> frozenset[str]:
    """Return the names of the modules above the siblings of one class that take longest together."""
    best, path = 0.0, frozenset[str]()
    pending: list[tuple[_Call, tuple[str, ...]]] = [(root, ()) for root in roots]
    time_by_parent: dict[tuple[tuple[str, ...], str], float] = defaultdict(float)
    members: dict[tuple[tuple[str, ...], str], set[str]] = defaultdict(set)
    while pending:
        call, above = pending.pop()
        here = (*above, call.name)
        for each in call.inside:
            key = (here, _INSTANCE.sub("", each.name))
            time_by_parent[key] += each.event.dur
            members[key].add(each.name)
            pending.append((each, here))
    for (above, family), taken in time_by_parent.items():
        if len(members[above, family]) > 1 and taken > best:
            best, path = taken, frozenset(above)
    return path


def _names_in_order(pieces: Iterable[_Piece]) -> tuple[str, ...]:
    forwards = sorted(
        (piece for piece in pieces if piece.kind is BlockKind.FORWARD), key=lambda piece: piece.event.ts
    )
    return tuple(dict.fromkeys(piece.layer for piece in forwards))


def _hands_on(events: RankEvents) -> bool:
    return any(
        event.title.startswith(("gloo:send", "nccl:send", "c10d::send")) for event in events.annotations
    )


def _ranges(
    rank: int, events: RankEvents, pieces: Sequence[_Piece]
) -> tuple[list[tuple[str, TraceRange]], float]:
    """Return a rank's ranges, each with its layer, and the share of its work that is in none."""
    nodes = _Intervals([node.event for node in events.nodes])
    parts: list[tuple[_Piece, list[Event], float]] = []
    for piece in pieces:
        is_again = piece.kind is BlockKind.FORWARD and nodes.holding(piece.event) is not None
        kind = BlockKind.RECOMPUTE if is_again else piece.kind
        parts.append((piece._replace(kind=kind), [piece.event], 0.0))
    if all(piece.kind in (BlockKind.FORWARD, BlockKind.RECOMPUTE) for piece, _, _ in parts):
        parts += _backwards(events, nodes, [piece for piece, _, _ in parts])
    seen: Counter[tuple[int, str, BlockKind]] = Counter()
    steps = [event.ts for event in events.annotations if event.title.startswith("ProfilerStep#")]
    found, busy = [], 0.0
    for piece, stretches, without in sorted(parts, key=lambda part: part[1][0].ts):
        works = [events.work(each.ts, each.end, each.tid) for each in stretches]
        done = [work for work in works if work is not None]
        if not done:
            continue
        label = parse_label(piece.event.title)
        micro_batch = label.micro_batch if label is not None and label.micro_batch is not None else None
        step = max(0, bisect_right(steps, done[0].start) - 1)
        number = seen[step, piece.layer, piece.kind] if micro_batch is None else micro_batch
        seen[step, piece.layer, piece.kind] += 1
        taken = done[0].duration if len(done) == 1 else sum(work.busy for work in done)
        busy += sum(work.busy for work in done) - without
        found.append(
            (
                piece.layer,
                TraceRange(
                    rank=rank,
                    stage=0,
                    micro_batch=number,
                    kind=piece.kind,
                    start_us=events.shift_us + done[0].start,
                    duration_us=max(0.0, taken - without),
                    step=step,
                ),
            )
        )
    whole = _whole_work(events)
    return found, max(0.0, 1 - busy / whole) if whole else 0.0


def _backwards(
    events: RankEvents, nodes: _Intervals, forwards: Sequence[_Piece]
) -> list[tuple[_Piece, list[Event], float]]:
    """Return the operations of differentiation of each forward, and what of them is recomputation."""
    by_thread: dict[int | str, _Intervals] = {
        thread: _Intervals([piece.event for piece in forwards if piece.event.tid == thread])
        for thread in {piece.event.tid for piece in forwards}
    }
    piece_of = {id(piece.event): piece for piece in forwards}
    owner: dict[int, _Piece | None] = {}
    for event, sequence in events.sequences:
        holding = by_thread[event.tid].holding(event) if event.tid in by_thread else None
        # The last operation with a number is the one that made the node; earlier ones made none.
        owner[sequence] = None if holding is None else piece_of[id(holding)]
    inside: dict[int, float] = defaultdict(float)
    for piece in forwards:
        outer = nodes.holding(piece.event)
        work = None if outer is None else events.work(piece.event.ts, piece.event.end, piece.event.tid)
        if outer is not None and work is not None:
            inside[id(outer)] += work.busy
    found: dict[int, tuple[_Piece, list[Event], float]] = {}
    last: _Piece | None = None
    for node in events.nodes:
        last = last if node.sequence is None else owner.get(node.sequence)
        if last is not None:
            piece, stretches, without = found.get(id(last.event), (last, [], 0.0))
            stretches.append(node.event)
            found[id(last.event)] = (
                piece._replace(kind=BlockKind.BACKWARD),
                stretches,
                without + inside[id(node.event)],
            )
    return list(found.values())


class _Intervals:
    """Events of which none overlaps another of its thread, found by time."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: dict[int | str, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.ts):
            own = self._events[event.tid]
            if not own or event.ts >= own[-1].end:
                own.append(event)
        self._starts = {thread: [event.ts for event in own] for thread, own in self._events.items()}

    def holding(self, event: Event) -> Event | None:
        """Return the event of the same thread during which another one ran."""
        place = bisect_right(self._starts.get(event.tid, ()), event.ts) - 1
        if place < 0:
            return None
        found = self._events[event.tid][place]
        return found if event.ts < found.end and event is not found else None


def _whole_work(events: RankEvents) -> float:
    """Return the microseconds in which a rank computed."""
    if not events.operations:
        return 0.0
    threads = {event.tid for event in events.operations}
    first = min(event.ts for event in events.operations)
    last = max(event.end for event in events.operations)
    if events.has_kernels:
        work = events.work(first, last, 0)
        return 0.0 if work is None else work.busy
    works = [events.work(first, last, thread) for thread in threads]
    return sum(work.busy for work in works if work is not None)
