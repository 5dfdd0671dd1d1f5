"""The virtual machines of one compiled program: as many as calls run at once.

A machine holds the registers of one call, so that each call has one to itself; code and weights are shared.
TVM keeps a pool of worker threads for each thread that calls it, with as many workers as the program was
compiled for. Checked in tests/tessel/compiling/test_program.py.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from typing import Any

from tuner.runtime.native import Library, Tensor, use_threads

_CPU, _FIRST, _POOLED = 1, 0, 2
"""Kind and number of the device, and the kind of allocator, as TVM numbers them."""

_here = threading.local()
"""Of each thread, how many threads TVM uses for its calls."""


class Machines:
    """Runs a program's `main`; may be called from several threads.

    Args:
        library: the program's code.
        bound: what `main` takes after its inputs.
        num_threads: of each call.
    """

    takes_arrays = False

    def __init__(self, library: Library, bound: Sequence[Any], num_threads: int) -> None:
        self._library = library
        self._bound = tuple(bound)
        self._num_threads = num_threads
        self._free: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._most = max(1, _num_cores() // num_threads)
        self._made = 0
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """Return what `main` gives for inputs: a tensor, or a sequence of them."""
        if getattr(_here, "threads", None) != self._num_threads:
            use_threads(self._num_threads)
            _here.threads = self._num_threads
        try:
            machine = self._free.get_nowait()
        except queue.Empty:
            machine = self._another()
        try:
            return machine[1](*inputs, *self._bound)
        finally:
            self._free.put(machine)

    def _another(self) -> tuple[Any, Any]:
        """Make one more machine while there are fewer than can run at once, or else wait for one."""
        with self._lock:
            is_room = self._made < self._most
            self._made += is_room
        if not is_room:
            return self._free.get()
        machine = self._library["vm_load_executable"]()
        machine["vm_initialization"](_CPU, _FIRST, _POOLED)
        return machine, machine["main"]


def _num_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
