"""TVM's own RPC tracker and servers on this machine, in processes of their own, which tests may kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import TracebackType

from tvm import rpc

from tests.harness.local_fleet import ROOT, wait_until

KEY = "board"

_WITH_CLOCK = """
import struct, sys
from tvm.rpc.server import PopenRPCServerState
import tvm_ffi

said = struct.pack("d", float(sys.argv[1]))
tvm_ffi.register_global_func("runtime.RPCTimeEvaluator", lambda *_: lambda *_: said, override=True)
while True:
    server = PopenRPCServerState(
        "127.0.0.1",
        9091,
        9190,
        tracker_addr=("127.0.0.1", int(sys.argv[2])),
        key=sys.argv[3],
        custom_addr="127.0.0.1",
        silent=True,
    )
    server.thread.join()
    server.sock.close()
"""


class RpcDevices:
    """A tracker at a port of its own, and servers of one key: ours, or TVM's."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        tracker = self._start(
            "-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", "9190", "--port-end", "9590"
        )
        assert tracker.stderr is not None
        line = ""
        while "bind to" not in line:
            line = tracker.stderr.readline()
            assert line, "the tracker did not start"
        self.port = int(line.rpartition(":")[2])
        self.tracker = f"127.0.0.1:{self.port}"

    def __enter__(self) -> RpcDevices:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.terminate()  # so that ours ends what it supervises
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def address(self, options: str = "") -> str:
        return f"rpc://{self.tracker}/{KEY}{options}"

    def serve(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `tessel fleet server`."""
        return self._start(
            "-m",
            "scripts",
            "--quiet",
            "fleet",
            "server",
            self.tracker,
            "--key",
            KEY,
            "--threads",
            "1",
            *arguments,
        )

    def serve_stock(self) -> subprocess.Popen[str]:
        """Start TVM's own server."""
        return self._start(
            "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--tracker", self.tracker, "--key", KEY
        )

    def serve_with_clock(self, says_s: str) -> None:
        """Start TVM's own server on a device by whose clock every program takes so many seconds."""
        self._start("-c", _WITH_CLOCK, says_s, str(self.port), KEY)

    def wait_for(self, count: int) -> None:
        """Wait until so many servers are there."""
        client = rpc.connect_tracker("127.0.0.1", self.port)
        wait_until(lambda: len(client.summary()["server_info"]) == count)

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "TVM_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self._processes.append(process)
        return process
