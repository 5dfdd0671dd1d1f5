"""Messages between the measuring process and its worker: tagged documents in MessagePack.

`multiprocessing.connection` frames them; of it only the functions that send and receive bytes are used, since
the others pickle. Arrays follow without frames, from memory to memory: what is sent before says how long they
are. Nothing that could run code crosses: modules travel as TVM's JSON, backends as references, inputs as
shapes and a seed. Checked in tests/tuner/measuring/test_worker.py.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import TypeAlias

import msgspec
import numpy as np

from records import Status
from records.measurement import NOT_BY_PROGRAM
from tuner.numerical_error import Deviation
from tuner.targets.remote import RemoteDevice
from tuner.targets.target import Target


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long one program is timed.

    Attributes:
        budget_s: time spent on samples, unless a single execution takes longer; three times as much where
            other programs disturb too many of them.
        sample_s: time of one sample; a shorter program is executed several times in each. Short samples fit
            between the moments at which the operating system hands the processor to another program.
        min_samples: samples taken even where the budget has ended, unless each alone exceeds it.
        long_s: time of one execution from which a program counts as long: what disturbs it for a moment is a
            small part of it.
        min_long_samples: `min_samples` of a long program.
        max_samples: samples after which timing ends.
        margin: relative margin of error of the median (95 %) at which timing ends early.
    """

    budget_s: float = 0.15
    sample_s: float = 0.0005
    min_samples: int = 7
    long_s: float = 0.05
    min_long_samples: int = 3
    max_samples: int = 100
    margin: float = 0.02


DEFAULT_TIMING = Timing()
"""A seventh of a second per program, less where the median is known to 2 %."""


class Start(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Say what the worker works with; the first message.

    Attributes:
        folder: for its temporary files. Whoever started it removes the folder, since a worker that is killed
            removes nothing.
    """

    target: Target
    backends: tuple[str, ...]
    memory_limit_bytes: int | None
    folder: str
    remote: RemoteDevice | None = None


class Acquire(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Wait for a device behind a tracker, and hold it for the next request alone.

    Attributes:
        session_s: seconds after which the device's server ends whatever still runs there.
    """

    session_s: float


class Build(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Lower and build a module under a key, and check its results where asked.

    With a reference they are checked against it, without one against the module by TVM's default lowering.
    With `as_graph`, a program for a GPU that is here is timed as one CUDA graph, as a compiled one runs.
    """

    key: int
    module_json: str
    check: bool
    reference_json: str | None = None
    seed: int
    as_graph: bool = False


class Time(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Time the module that was built under the key, then free it unless it is to race later."""

    key: int
    seed: int
    timing: Timing
    keep: bool = False


class Race(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Time built modules in turn: each once per round, in an order of the round's own.

    They stay loaded until a later race leaves them out.

    Attributes:
        keys: the modules that run; all others that were built are forgotten.
        seed: of the inputs and of the orders.
        first_round: number of the first round, which with the seed decides its order.
        sample_s: time of one sample; a shorter program is executed several times in each.
    """

    keys: tuple[int, ...]
    seed: int
    first_round: int
    num_rounds: int
    sample_s: float


class Run(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run a module once on the arrays that follow, and send its results back.

    Attributes:
        module_json: a module whose partitions their backends lower.
        function: the one of its functions that is run.
        calls_blas: whether matrix products that no partition holds are NumPy's on a CPU; TVM's take several
            times as long.
    """

    module_json: str
    function: str
    arrays: tuple[ArrayInfo, ...]
    calls_blas: bool = False


class Compare(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run two modules on the same random inputs, and return the largest difference of their results.

    Attributes:
        module_json: a module whose partitions their backends lower.
        reference_json: what it is compared with.
        unscheduled: whether what no partition holds, in either module, is run by TVM's own loops and NumPy's
            matrix products instead of this project's schedules.
    """

    module_json: str
    reference_json: str
    seed: int
    unscheduled: bool = False


class ArrayInfo(msgspec.Struct, frozen=True):
    """Shape and data type of an array whose bytes follow."""

    shape: tuple[int, ...]
    dtype: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The request was carried out; the largest error of checked results.

    It is None where nothing was checked, and where the reference has no number for any input that was drawn.
    """

    relative_error: float | None = None


class Timed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The samples in microseconds, and the peak bytes held beside the arguments."""

    samples_us: tuple[float, ...]
    peak_memory_bytes: int | None


class Raced(msgspec.Struct, frozen=True, tag=True):
    """The samples in microseconds, by program in the order of the keys, and by round."""

    samples_us: tuple[tuple[float, ...], ...]


class Compared(msgspec.Struct, frozen=True, tag=True):
    """The result that is furthest from the reference's; named by its position."""

    worst: Deviation


class Ran(msgspec.Struct, frozen=True, tag=True):
    """The results whose bytes follow."""

    arrays: tuple[ArrayInfo, ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Why it could not be done.

    Attributes:
        status: of the measurement.
        message: one line.
        has_lost_device: whether the process that says it can use its GPU no more, and is of no further use.
    """

    status: Status
    message: str
    has_lost_device: bool = False


Request: TypeAlias = Start | Acquire | Build | Time | Race | Run | Compare
Reply: TypeAlias = Done | Timed | Raced | Compared | Ran | Failed


_BUFFER_BYTES = 4 << 20
"""What a socket is to take before its writer waits for its reader; systems cut it to what they allow."""

WRONG_NUMBERS = "wrong numbers"
"""How the message of a failed check begins."""


def not_by_program(reason: str) -> Failed:
    """Return a failure that says nothing of the program, so that its record is never reused."""
    return Failed(Status.ERROR, f"{NOT_BY_PROGRAM}{reason}")


def why_failed(reply: Reply) -> Failed:
    """Return the failure that a reply is, or that it was not the one asked for."""
    if isinstance(reply, Failed):
        return reply
    return not_by_program(f"unexpected reply {type(reply).__name__}")


def send(connection: Connection, message: Request | Reply) -> None:
    """Send one message."""
    connection.send_bytes(msgspec.msgpack.encode(message))


def widen(end: socket.socket) -> None:
    """Let a socket take more at once, as far as the system allows: arrays of weights cross it."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def send_arrays(connection: Connection, arrays: Iterable[np.ndarray]) -> None:
    """Send the bytes of arrays; what is sent before them says what they are."""
    for array in arrays:
        rest = _bytes_of(np.ascontiguousarray(array))
        while rest:
            rest = rest[os.write(connection.fileno(), rest) :]


def receive_request(connection: Connection) -> Request:
    """Wait for a request.

    Raises:
        EOFError: the other side has closed the connection.
    """
    request: Request = msgspec.msgpack.decode(connection.recv_bytes(), type=Request)
    return request


def receive_reply(connection: Connection) -> Reply:
    """Wait for a reply.

    Raises:
        EOFError: the other side has closed the connection.
        OSError: the other side has ended amid a message.
    """
    reply: Reply = msgspec.msgpack.decode(connection.recv_bytes(), type=Reply)
    return reply


def receive_arrays(connection: Connection, infos: Sequence[ArrayInfo]) -> tuple[np.ndarray, ...]:
    """Wait for arrays, which are read-only.

    Raises:
        EOFError: the other side has closed the connection.
        OSError: the other side has ended amid a message.
    """
    return tuple(_receive_array(connection, info) for info in infos)


def _receive_array(connection: Connection, info: ArrayInfo) -> np.ndarray:
    array = np.empty(info.shape, info.dtype)
    rest = _bytes_of(array)
    while rest:
        num_read = os.readv(connection.fileno(), [rest])
        if not num_read:
            raise EOFError
        rest = rest[num_read:]
    array.flags.writeable = False
    return array


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return a contiguous array's memory; a data type of its own, such as bfloat16, has no buffer."""
    return array.reshape(-1).view(np.uint8).data
