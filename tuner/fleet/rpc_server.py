"""A device behind TVM's RPC tracker: TVM's own server, started again whenever a program has ended it.

TVM's Python server stops serving once a program has crashed in it, without ending. This one is watched by the
process that starts it. It also says what it is (`DESCRIBE`), so that a tuner's records have the environment
of the device and not the tuner's own. Checked in tests/tuner/fleet/test_rpc_pool.py.

Model of the world: whoever reaches tracker or server can run any code there; TVM's protocol has neither
passwords nor encryption. Both listen to this machine alone unless told otherwise.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec
import tvm_ffi
from tvm.rpc.server import PopenRPCServerState

from records import Environment
from tuner.backends.environment import environment_of
from tuner.measuring.worker_process import worker_environment
from tuner.parent_watch import end_with_parent
from tuner.targets.resolution import check_measurable, resolve_target

DESCRIBE = "tessel.describe"
"""Name of the function by which a server says what it is."""

LOOPBACK = "127.0.0.1"

FIRST_PORT, LAST_PORT = 9091, 9199
"""TVM's own range."""

_RESTART_S = 1.0


class ServedDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a server says that it is.

    Attributes:
        target: TVM's target as canonical JSON, as the server's machine resolves it.
        environment: where programs run there; no backend's versions.
    """

    target: str
    environment: Environment


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a server offers, and where.

    Attributes:
        key: under which tuners ask for such devices.
        host: address to listen at, by which tuners reach this machine.
    """

    tracker_host: str
    tracker_port: int
    key: str
    host: str
    device: ServedDevice


def served_device(target_name: str, *, num_threads: int | None) -> ServedDevice:
    """Return what this machine is for a target.

    Raises:
        TunerError: the target is not the device that is here.
        ValueError: there is no such target.
    """
    target = resolve_target(target_name, num_threads=num_threads)
    check_measurable(target)
    return ServedDevice(target=target.text, environment=environment_of(target))


def serve(settings: ServerSettings, *, tell: Callable[[str], None]) -> None:
    """Keep a server running until SIGINT or SIGTERM.

    Args:
        settings: what it offers, and where.
        tell: is told what happens, a line each.
    """
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: ended.set())
    while not ended.is_set():
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner.fleet.rpc_server", msgspec.json.encode(settings).decode()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=worker_environment(settings.device.environment.num_threads),
        )
        tell(f"serving {settings.key} for {settings.tracker_host}:{settings.tracker_port}")
        try:
            while not ended.is_set() and process.poll() is None:
                ended.wait(0.2)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its session too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended.wait(_RESTART_S)


def _serve(settings: ServerSettings) -> None:
    """Run TVM's server, and anew each time that a program has ended its loop."""
    multiprocessing.set_start_method("fork", force=True)  # a session knows what was registered here
    description = msgspec.json.encode(settings.device).decode()
    tvm_ffi.register_global_func(DESCRIBE, lambda: description, override=True)
    home = os.getcwd()
    while True:
        server = PopenRPCServerState(
            settings.host,
            FIRST_PORT,
            LAST_PORT,
            tracker_addr=(settings.tracker_host, settings.tracker_port),
            key=settings.key,
            custom_addr=settings.host,
            silent=True,
        )
        server.thread.join()
        server.sock.close()
        os.chdir(home)  # it was in the folder of the session that ended


if __name__ == "__main__":
    end_with_parent(os.getppid())
    _serve(msgspec.json.decode(sys.argv[1], type=ServerSettings))
