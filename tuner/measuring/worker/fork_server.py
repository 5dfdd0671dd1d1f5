"""The process that measuring workers are forked from: it imports all that they need, and nothing else.

It is started as `python -m tuner.measuring.worker.fork_server DESCRIPTOR WITH_TORCH` with a listening Unix
socket (`tuner.measuring.forked_process`). A client that connects is sent one end of a socket pair, whose
other end the new worker serves as `worker.server` does. The connection itself stays: a byte on it kills the
worker, the worker's exit status is the answer when it has ended, and a client that goes away, killed or not,
takes its worker with it, so that nothing holds the device that nobody waits for. No device is touched and no
thread started before the fork. Checked in tests/tuner/measuring/test_forked_process.py.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import signal
import socket
import sys
from multiprocessing.connection import Connection

if __name__ == "__main__":
    # As in `worker.server`: tvm_ffi imports torch wherever it is installed.
    sys.modules["torch"] = None  # type: ignore[assignment]
import tvm  # noqa: F401 - before the workers need it

if __name__ == "__main__":
    del sys.modules["torch"]

from tuner.measuring.forked_process import STATUS
from tuner.measuring.messages import widen
from tuner.measuring.worker.server import serve
from tuner.parent_watch import end_with_parent

_PERIOD_S = 1.0
"""How often the server looks whether whoever started it is still there."""


class _Server:
    """Forks a worker for each connection, and watches both."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._pid_by_control: dict[socket.socket, int] = {}
        self._parent = os.getppid()
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # wakes the selector through the pipe
        self._wakes, wakes_by = socket.socketpair()
        for end in (self._wakes, wakes_by):
            end.setblocking(False)
        self._wakes_by = wakes_by
        signal.set_wakeup_fd(wakes_by.fileno())
        self._selector.register(self._wakes, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the parent has ended."""
        while os.getppid() == self._parent:
            for key, _ in self._selector.select(_PERIOD_S):
                if key.fileobj is self._listener:
                    self._fork()
                elif key.fileobj is self._wakes:
                    with contextlib.suppress(BlockingIOError):
                        self._wakes.recv(4096)
                else:
                    self._heed(key.fileobj)
            self._reap()

    def _fork(self) -> None:
        control, _ = self._listener.accept()
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            widen(end)
        pid = os.fork()
        if pid == 0:
            self._become_worker(control, ours, theirs)
        theirs.close()
        with ours, contextlib.suppress(OSError):
            socket.send_fds(control, [b"c"], [ours.fileno()])
        self._pid_by_control[control] = pid
        self._selector.register(control, selectors.EVENT_READ)

    def _become_worker(self, control: socket.socket, ours: socket.socket, theirs: socket.socket) -> None:
        """Serve one client in this process, which ends here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for end in (self._listener, self._wakes, self._wakes_by, control, ours, *self._pid_by_control):
                end.close()
            end_with_parent(os.getppid())
            with Connection(theirs.detach()) as connection:
                serve(connection)
            status = 0
        finally:
            os._exit(status)

    def _heed(self, control: object) -> None:
        """Kill a worker whose client asks for it, or is gone."""
        assert isinstance(control, socket.socket)
        try:
            request = control.recv(64)
        except OSError:
            request = b""
        if control in self._pid_by_control:
            os.kill(self._pid_by_control[control], signal.SIGKILL)  # it has not been reaped
        if not request:
            self._selector.unregister(control)

    def _reap(self) -> None:
        for control, pid in list(self._pid_by_control.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                continue
            del self._pid_by_control[control]
            with contextlib.suppress(OSError):
                control.send(STATUS.pack(os.waitstatus_to_exitcode(status)))
            with contextlib.suppress(KeyError):
                self._selector.unregister(control)
            control.close()


if __name__ == "__main__":
    if int(sys.argv[2]):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("torch")
    _Server(socket.socket(fileno=int(sys.argv[1]))).run()
