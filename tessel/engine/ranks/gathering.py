"""Gather at rank 0 what ranks on several machines have at the end: files, and times on one clock.

Machines do not share a clock. Rank 0's counts: each other rank asks it for the time a few times and takes the
answer that came back fastest; the time is then known to within half of that round trip. Clocks run apart by
some ten millionths, so this is done before the first counted step and after the last, and what lies between
is interpolated. Checked in tests/tessel/engine/ranks/test_gathering.py.

Source: Cristian, Probabilistic clock synchronization (1989).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from tessel.engine.job import Event

_ROUNDS = 20
"""Questions for the time; the fastest of so many is rarely delayed."""

_CHUNK_BYTES = 1 << 26
"""What is held in memory of a file that travels."""


class ClockReading(NamedTuple):
    """When rank 0's clock was read.

    Attributes:
        at_s: on this rank's clock.
        ahead_s: how much rank 0's clock was ahead of it.
        error_s: by how much that may be wrong.
    """

    at_s: float
    ahead_s: float
    error_s: float


def read_first_clock(
    group: dist.ProcessGroup, clock: Callable[[], float] = time.perf_counter
) -> ClockReading:
    """Compare this rank's clock with rank 0's; every rank calls this at once."""
    rank = dist.get_rank()
    best = ClockReading(clock(), 0.0, 0.0 if rank == 0 else float("inf"))
    told = torch.zeros(1, dtype=torch.float64)
    for other in range(1, dist.get_world_size()):
        for _ in range(_ROUNDS if rank in (0, other) else 0):
            if rank == 0:
                dist.recv(told, src=other, group=group)
                told[0] = clock()
                dist.send(told, dst=other, group=group)
                continue
            asked_s = clock()
            dist.send(told, dst=0, group=group)
            dist.recv(told, src=0, group=group)
            heard_s = clock()
            if (heard_s - asked_s) / 2 < best.error_s:
                middle_s = (asked_s + heard_s) / 2
                best = ClockReading(middle_s, told.item() - middle_s, (heard_s - asked_s) / 2)
    return best


def on_first_clock(
    steps: Sequence[Sequence[Event]], before: ClockReading, after: ClockReading
) -> tuple[tuple[Event, ...], ...]:
    """Return events with their times on rank 0's clock."""
    span_s = after.at_s - before.at_s

    def shifted(time_s: float) -> float:
        share = (time_s - before.at_s) / span_s if span_s > 0 else 0.0
        return time_s + before.ahead_s + share * (after.ahead_s - before.ahead_s)

    return tuple(
        tuple(
            msgspec.structs.replace(
                event,
                ready_s=shifted(event.ready_s),
                start_s=shifted(event.start_s),
                end_s=shifted(event.end_s),
            )
            for event in step
        )
        for step in steps
    )


def gather_files(folder: Path, own: Sequence[str], group: dist.ProcessGroup) -> None:
    """Send files of this rank's folder to that of rank 0; every rank calls this at once.

    Args:
        folder: where this rank's files are, and on rank 0 where those of the others will be.
        own: names of this rank's files; different ranks have different ones.
        group: of all ranks, over the host.
    """
    rank = dist.get_rank()
    for other in range(1, dist.get_world_size()):
        if rank == other:
            _send_bytes("\n".join(own).encode(), group)
            for name in own:
                _send_file(folder / name, group)
        elif rank == 0:
            for name in _receive_bytes(other, group).decode().splitlines():
                _receive_file(folder / Path(name).name, other, group)


def _send_file(path: Path, group: dist.ProcessGroup) -> None:
    size = path.stat().st_size
    _send_size(size, group)
    with path.open("rb") as file:
        for begin in range(0, size, _CHUNK_BYTES):
            chunk = np.fromfile(file, np.uint8, min(_CHUNK_BYTES, size - begin))
            dist.send(torch.from_numpy(chunk), dst=0, group=group)


def _receive_file(path: Path, source: int, group: dist.ProcessGroup) -> None:
    size = _receive_size(source, group)
    with path.open("wb") as file:
        for begin in range(0, size, _CHUNK_BYTES):
            chunk = torch.empty(min(_CHUNK_BYTES, size - begin), dtype=torch.uint8)
            dist.recv(chunk, src=source, group=group)
            chunk.numpy().tofile(file)


def _send_bytes(content: bytes, group: dist.ProcessGroup) -> None:
    _send_size(len(content), group)
    if content:
        dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), dst=0, group=group)


def _receive_bytes(source: int, group: dist.ProcessGroup) -> bytes:
    content = torch.empty(_receive_size(source, group), dtype=torch.uint8)
    if len(content):
        dist.recv(content, src=source, group=group)
    return content.numpy().tobytes()


def _send_size(size: int, group: dist.ProcessGroup) -> None:
    dist.send(torch.tensor([size], dtype=torch.int64), dst=0, group=group)


def _receive_size(source: int, group: dist.ProcessGroup) -> int:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, src=source, group=group)
    return int(size.item())
