"""The device of each rank and the transport between ranks, decided before any process starts.

On CPUs tensors travel over gloo, each under a tag of its own. GPUs communicate over NCCL if every rank has
its own. NCCL refuses two ranks on one GPU; ranks that share GPUs transfer through host memory and gloo, which
costs a copy each way. Nothing here imports torch. Checked in tests/tessel/engine/test_devices.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

import msgspec

from tessel.engine.errors import EngineError

DeviceKind: TypeAlias = Literal["cpu", "cuda"]


class Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The device of each rank, and how they exchange tensors.

    Attributes:
        backend: what torch.distributed sends tensors with.
        is_tagged: whether messages are told apart by tags, and not by their order alone; NCCL has no tags.
        gpus: number of each rank's GPU; empty where ranks compute on the CPU.
    """

    backend: Literal["gloo", "nccl"] = "gloo"
    is_tagged: bool = True
    gpus: tuple[int, ...] = ()

    @property
    def kind(self) -> DeviceKind:
        """What ranks compute on."""
        return "cuda" if self.gpus else "cpu"

    @property
    def ranks_per_gpu(self) -> int:
        """Ranks on the GPU that most of them share; 0 on CPUs."""
        return max(Counter(self.gpus).values(), default=0)


CPUS = Devices()
"""Every rank on the CPU."""


def choose_devices(kind: DeviceKind, num_ranks: int, *, num_gpus: int, has_nccl: bool) -> Devices:
    """Return a device for each rank: a GPU of its own where there are enough, else shared in turn.

    Args:
        kind: what the ranks' programs were made for.
        num_ranks: ranks that run at once.
        num_gpus: CUDA devices that torch finds here.
        has_nccl: whether this torch was built with NCCL.

    Raises:
        EngineError: the programs need a GPU, and there is none.
    """
    if kind == "cpu":
        return CPUS
    if num_gpus < 1:
        raise EngineError(
            "no CUDA device: this run is for GPUs, and torch finds none on this machine; run it where one "
            "is, or run a plan for cpu"
        )
    gpus = tuple(rank % num_gpus for rank in range(num_ranks))
    if num_gpus < num_ranks or not has_nccl:
        return Devices(gpus=gpus)
    return Devices(backend="nccl", is_tagged=False, gpus=gpus)


def on_every_node(devices: Devices, num_ranks: int) -> Devices:
    """Return the devices of all ranks, where those of one node are given and each node has as many.

    Args:
        devices: of one node's ranks.
        num_ranks: on all nodes.
    """
    each = len(devices.gpus)
    gpus = tuple(devices.gpus[rank % each] for rank in range(num_ranks)) if each else ()
    return msgspec.structs.replace(devices, gpus=gpus)
