import socket

import pytest

from records import Environment, Status
from tuner.measuring.communication.transfer import measure_transfers, transfer_workload
from tuner.targets.target import Target

TARGET = Target(name="cpu", kind="cpu", tvm_json='{"kind":"llvm"}', num_threads=1)
ENVIRONMENT = Environment(
    device_kind="cpu", device_model="test", num_cores=1, num_threads=1, driver="test", versions=()
)


def test_each_size_is_measured_under_its_own_workload() -> None:
    sizes = (1, 4096, 1 << 20)

    measured = measure_transfers(sizes, target=TARGET, environment=ENVIRONMENT)

    assert [m.workload_fingerprint for m in measured] == [transfer_workload(s).fingerprint for s in sizes]
    assert all(m.status is Status.OK for m in measured)


def test_a_mebibyte_takes_longer_than_a_byte() -> None:
    byte, mebibyte = measure_transfers((1, 1 << 20), target=TARGET, environment=ENVIRONMENT)

    assert min(mebibyte.samples_us) > min(byte.samples_us)


def test_who_connects_first_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers: list[socket.socket] = []
    connect = socket.create_connection

    def connect_second(address: tuple[str, int], timeout: float) -> socket.socket:
        strangers.append(connect(address, timeout))
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect_second)
    (measured,) = measure_transfers((64,), target=TARGET, environment=ENVIRONMENT)

    assert measured.status is Status.OK
    assert len(strangers) == 1
    with strangers[0] as stranger:
        assert stranger.recv(1) == b""  # closed, and nothing was sent
