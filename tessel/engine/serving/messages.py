"""Messages between the processes of a served pipeline: documents in MessagePack, and tensors' bytes.

`multiprocessing.connection` frames them; of it only the functions that send and receive bytes are used, since
the others pickle. Bytes go from memory to memory. Checked in tests/tessel/jobs/test_loading.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from tuner.runtime.manifest import Manifest, TensorSpec
from tuner.runtime.native import aligned_bytes

INPUTS = -1
"""In place of the stage that tensors come from: the caller."""


class RankJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Say what a rank does; the first message to it.

    Attributes:
        provider: `module:function` that builds the stages.
        spec: what that is given, as JSON text.
        stages: numbers of the rank's stages.
        rank_by_stage: of all stages.
        incoming: file descriptor that each rank's tensors arrive at.
        outgoing: file descriptor that tensors for each rank leave by.
    """

    provider: str
    spec: str
    stages: tuple[int, ...]
    rank_by_stage: tuple[int, ...]
    num_threads: int
    incoming: dict[int, int]
    outgoing: dict[int, int]


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Say that a rank's stages are built.

    Attributes:
        manifest: of the whole model, as it is called.
        outputs: names that stages give to what the model returns, in order.
        reads: names of the model's inputs that the rank's stages read.
    """

    manifest: Manifest
    outputs: tuple[str, ...]
    reads: tuple[str, ...]


class Tensors(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Say whose tensors follow.

    Attributes:
        micro_batch: that they are of.
        stage: that takes them; of results, the one that made them.
        origin: stage that made them, or `INPUTS`.
        tensors: what follows, in order.
    """

    micro_batch: int
    stage: int
    origin: int
    tensors: tuple[TensorSpec, ...]


class Failed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Say why a rank ends."""

    reason: str


Message = RankJob | Ready | Tensors | Failed


def send(connection: Connection, message: Message, data: Mapping[str, np.ndarray] | None = None) -> None:
    """Send a message, and the bytes of its tensors by name."""
    connection.send_bytes(msgspec.msgpack.encode(message))
    if isinstance(message, Tensors) and data is not None:
        for header in message.tensors:
            if header.num_bytes:
                connection.send_bytes(data[header.name].data)


def receive(connection: Connection) -> tuple[Message, dict[str, np.ndarray]]:
    """Return a message, and the bytes of its tensors by name, aligned as kernels want them.

    Raises:
        EOFError: the other side has ended.
        OSError: likewise.
    """
    message: Message = msgspec.msgpack.decode(connection.recv_bytes(), type=Message)
    data = {}
    if isinstance(message, Tensors):
        for header in message.tensors:
            data[header.name] = aligned_bytes(header.num_bytes)
            if header.num_bytes:
                connection.recv_bytes_into(data[header.name].data)
    return message, data
