"""Tensor transport between ranks: by tags over gloo, or in order over NCCL.

gloo distinguishes messages by tags, so receives are posted ahead in any order and a sender never waits for a
busy receiver. NCCL has no tags: what one rank sends to another arrives in the order in which it was sent.
Each pair of ranks therefore has a channel for each direction, and a receiver takes what it is sent in the
sender's order, keeping what it does not need yet. That adds no wait: the sender made all of it before. On a
GPU a receive occupies multiprocessors until the tensor comes, and an allocation or the first launch of a
kernel may wait for them, so nothing is received before its turn, and the step that warms up goes through the
host. Checked in tests/tessel/engine/ranks/test_executor.py; not yet run on GPUs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from tessel.engine.job import MAX_TENSORS
from tuner.plan import TensorInfo

Tensors = dict[str, torch.Tensor]
Channels = Mapping[tuple[int, int], dist.ProcessGroup]
"""The process group of each direction, by the sending and the receiving rank."""


HandoverKey = tuple[int, int, bool, int]
"""The stage that takes it, the micro-batch, whether it is a gradient, and the stage that it comes from."""


class Handover(NamedTuple):
    """What one action hands to a neighbouring stage.

    Attributes:
        stage: the stage that it is for.
        micro_batch: its micro-batch.
        is_gradient: whether it comes from a stage after.
        origin: the stage that it comes from.
        tensors: what it is, in order.
    """

    stage: int
    micro_batch: int
    is_gradient: bool
    origin: int
    tensors: tuple[TensorInfo, ...]

    @property
    def key(self) -> HandoverKey:
        """Tell it from all others of a step."""
        return self.stage, self.micro_batch, self.is_gradient, self.origin


class Transport(Protocol):
    """Carries what actions hand to stages on other ranks."""

    def start_step(self, arrivals: Mapping[int, Sequence[Handover]]) -> None:
        """Begin a step in which each of these ranks sends these, in this order."""
        ...

    def expect(self, handover: Handover, source: int) -> None:
        """Take note that this is wanted soon."""
        ...

    def receive(self, handover: Handover, source: int) -> Tensors:
        """Return what was handed over, on this rank's device; waits for it."""
        ...

    def send(self, handover: Handover, made: Tensors, peer: int) -> None:
        """Hand over what was made; does not wait for the receiver."""
        ...

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        ...


class TaggedTransport:
    """Sends from the host's memory, each tensor under a tag of its own (edge, micro-batch, number).

    Args:
        num_stages: stages of the pipeline.
        device: where this rank computes; tensors of a GPU are copied to the host's pinned memory and back.
        farthest: largest difference of the numbers of stages that hand over to each other; 1 in a chain.
    """

    def __init__(self, num_stages: int, device: torch.device, *, farthest: int = 1) -> None:
        self._num_stages = num_stages
        self._farthest = farthest
        self._device = device
        self._posted: dict[HandoverKey, list[tuple[torch.Tensor, dist.Work]]] = {}
        self._sends: list[tuple[dist.Work, torch.Tensor]] = []

    def start_step(self, arrivals: Mapping[int, Sequence[Handover]]) -> None:
        """Begin a step; tags need no order."""

    def expect(self, handover: Handover, source: int) -> None:
        """Post the receive ahead."""
        if handover.key in self._posted:
            return
        posted = []
        for number, info in enumerate(handover.tensors):
            buffer = self._on_host(info.shape, getattr(torch, info.dtype))
            posted.append((buffer, _work(dist.irecv(buffer, src=source, tag=self._tag(handover, number)))))
        self._posted[handover.key] = posted

    def receive(self, handover: Handover, source: int) -> Tensors:
        """Return what was handed over, on this rank's device; waits for it."""
        self.expect(handover, source)
        given = {}
        for info, (buffer, work) in zip(handover.tensors, self._posted.pop(handover.key), strict=True):
            work.wait()
            given[info.name] = buffer.to(self._device)
        return given

    def send(self, handover: Handover, made: Tensors, peer: int) -> None:
        """Hand over what was made; does not wait for the receiver."""
        for number, info in enumerate(handover.tensors):
            tensor = made[info.name].contiguous()
            if tensor.is_cuda:
                tensor = self._on_host(tensor.shape, tensor.dtype).copy_(tensor)
            work = _work(dist.isend(tensor, dst=peer, tag=self._tag(handover, number)))
            self._sends.append((work, tensor))

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()

    def _on_host(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=self._device.type == "cuda")

    def _tag(self, handover: Handover, number: int) -> int:
        transfer = handover.micro_batch * self._num_stages + handover.stage
        edge = (transfer * 2 + handover.is_gradient) * self._farthest + abs(handover.stage - handover.origin)
        return (edge - 1) * MAX_TENSORS + number


class OrderedTransport:
    """Sends from the device's own memory; messages of a channel keep their order and have no tags.

    Args:
        channels: as `open_channels` returns them.
        device: where this rank computes.
    """

    def __init__(self, rank: int, channels: Channels, device: torch.device) -> None:
        self._rank = rank
        self._channels = channels
        self._device = device
        self._due: dict[int, deque[Handover]] = {}
        self._arrived: dict[HandoverKey, Tensors] = {}
        self._sends: list[tuple[dist.Work, torch.Tensor]] = []

    def start_step(self, arrivals: Mapping[int, Sequence[Handover]]) -> None:
        """Begin a step in which each of these ranks sends these, in this order."""
        self._due = {source: deque(handovers) for source, handovers in arrivals.items()}

    def expect(self, handover: Handover, source: int) -> None:
        """Do nothing: a receive before its turn would occupy the GPU."""

    def receive(self, handover: Handover, source: int) -> Tensors:
        """Return what was handed over; waits for it, on a GPU as its stream does."""
        while handover.key not in self._arrived:
            first = self._due[source].popleft()
            self._arrived[first.key] = self._receive_next(first, source)
        return self._arrived.pop(handover.key)

    def send(self, handover: Handover, made: Tensors, peer: int) -> None:
        """Hand over what was made; does not wait for the receiver."""
        # What has left frees its memory: a GPU's is what the schedule was planned for.
        self._sends = [(work, tensor) for work, tensor in self._sends if not work.is_completed()]
        for info in handover.tensors:
            tensor = made[info.name].contiguous()
            work = _work(dist.isend(tensor, dst=peer, group=self._channels[self._rank, peer]))
            self._sends.append((work, tensor))

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sends:
            work.wait()
        synchronize(self._device)
        self._sends.clear()

    def _receive_next(self, handover: Handover, source: int) -> Tensors:
        group = self._channels[source, self._rank]
        buffers = {
            info.name: torch.empty(info.shape, dtype=getattr(torch, info.dtype), device=self._device)
            for info in handover.tensors
        }
        works = [_work(dist.irecv(buffer, src=source, group=group)) for buffer in buffers.values()]
        for work in works:
            work.wait()
        return buffers


def open_channels(
    rank: int,
    ranks_by_stage: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    *,
    backend: str,
    device: torch.device,
    timeout: timedelta,
) -> Channels:
    """Open and connect a channel for each direction in which neighbouring stages send.

    Every rank calls this, and gets the channels that it is an end of. They are connected one after the other,
    alike on all ranks: NCCL would otherwise do it when first used, where two ranks may wait for each other.

    Args:
        ranks_by_stage: ranks of each stage.
        before: of each stage, those that it receives from.
        device: where this rank computes.
    """
    opened: dict[tuple[int, int], dist.ProcessGroup] = {}
    for source, target in _directions(ranks_by_stage, before):
        group = dist.new_group([source, target], backend=backend, timeout=timeout)
        if rank not in (source, target):
            continue
        opened[source, target] = group
        token = torch.zeros(1, device=device)
        if rank == source:
            _work(dist.isend(token, dst=target, group=group)).wait()
        else:
            _work(dist.irecv(token, src=source, group=group)).wait()
        synchronize(device)
    return opened


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told; on a GPU, in this stream.

    Not the whole device: a send in a stream of its own lasts until its receiver takes it.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _directions(
    ranks_by_stage: Sequence[Sequence[int]], before: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """Return who sends to whom: a stage's first rank, to the neighbour's ranks that lack the stage."""
    found: set[tuple[int, int]] = set()
    for stage, earlier in enumerate(before):
        for source in earlier:
            ends = ranks_by_stage[source], ranks_by_stage[stage]
            for own, others in (ends, ends[::-1]):
                found.update((own[0], other) for other in others if other not in own)
    return sorted(found)


def _work(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise RuntimeError("this process is not part of the group that the tensor travels in")
    return work
