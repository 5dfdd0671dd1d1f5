"""The latency of sending a tensor to the next device, measured between two processes of this machine.

The figure is half of a round trip through a loopback TCP connection, the path that torch.distributed's gloo
takes between ranks of one machine. Contention between several transfers at once is left out. A transfer is
a workload of its own, so its measurements are kept and reused like any other. Checked in
tests/tuner/measuring/communication/test_transfer.py.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from records import Environment, Measurement, Status, Tensor, Workload
from records.workload import describe
from tuner.errors import TunerError
from tuner.targets.target import Target

BACKEND = "loopback-tcp"

_NUM_SAMPLES = 15
_NUM_WARM_UP = 3
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20


def transfer_workload(num_bytes: int) -> Workload:
    """Return the workload of handing over that many bytes."""
    return describe("transfer", [Tensor((num_bytes,), "uint8")], [], [0])


def measure_transfers(
    sizes_bytes: Sequence[int], *, target: Target, environment: Environment
) -> tuple[Measurement, ...]:
    """Measure one hop of each size, in order.

    Args:
        sizes_bytes: bytes handed over, each at least 1.
        target: the target the records are kept under.
        environment: where it is measured.

    Raises:
        TunerError: the peer process did not start or went away.
    """
    try:
        own, peers = _connected_pair()
        with own:
            with peers:
                peer = subprocess.Popen(
                    [sys.executable, "-m", "tuner.measuring.communication.transfer", str(peers.fileno())],
                    pass_fds=[peers.fileno()],
                )
            try:
                samples = [_round_trips_us(own, size) for size in sizes_bytes]
            finally:
                peer.kill()
                peer.wait()
    except OSError as error:
        raise TunerError(
            f"the transfer measurement lost its peer process ({error}); run it again, or give the hop "
            "latency with --hop-us"
        ) from error
    return tuple(
        Measurement(
            workload_fingerprint=transfer_workload(size).fingerprint,
            backend=BACKEND,
            target=target.text,
            environment=environment,
            status=Status.OK,
            samples_us=tuple(round_trip / 2 for round_trip in round_trips),
            measured_at=time.time(),
        )
        for size, round_trips in zip(sizes_bytes, samples, strict=True)
    )


def _connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a loopback TCP connection; anybody else who connects is turned away.

    The peer process inherits its end: were it to connect by itself, another user's process could be first,
    and its answers would be recorded as the latency of a hop.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        listener.settimeout(_TIMEOUT_S)
        peers = socket.create_connection(listener.getsockname(), timeout=_TIMEOUT_S)
        while True:
            own, address = listener.accept()
            if address == peers.getsockname():
                break
            own.close()
    for connection in (own, peers):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own.settimeout(_TIMEOUT_S)
    return own, peers


def _round_trips_us(connection: socket.socket, size: int) -> list[float]:
    payload = bytes(size)
    samples = []
    for repeat in range(_NUM_WARM_UP + _NUM_SAMPLES):
        start = time.perf_counter()
        connection.sendall(size.to_bytes(8, "big") + payload)
        _receive(connection, size)
        if repeat >= _NUM_WARM_UP:
            samples.append((time.perf_counter() - start) * 1e6)
    return samples


def _receive(connection: socket.socket, size: int) -> bytearray:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(min(_CHUNK_BYTES, size - len(received)))
        if not part:
            raise ConnectionError("the other side closed the connection")
        received += part
    return received


def _echo(descriptor: int) -> None:
    """Send back every message, whole, until the other side closes."""
    with socket.socket(fileno=descriptor) as connection:
        connection.settimeout(_TIMEOUT_S)
        while True:
            try:
                size = int.from_bytes(_receive(connection, 8), "big")
                connection.sendall(_receive(connection, size))
            except OSError:
                return


if __name__ == "__main__":
    _echo(int(sys.argv[1]))
