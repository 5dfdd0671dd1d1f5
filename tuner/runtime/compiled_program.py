"""A compiled program in this process: its code, its weights, and the machines that run it.

There are as many virtual machines as calls that run at once: a machine holds the registers of one call, so
that each call has one to itself; code and weights are shared. TVM keeps a pool of worker threads for each
thread that calls it, with as many workers as the program was compiled for. Checked in
tests/tessel/compiling/test_program.py.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace

from tuner.runtime.bound_arguments import MadeObject, make_argument
from tuner.runtime.cuda_graph import GraphRunner, copied_to_gpu
from tuner.runtime.manifest import Manifest
from tuner.runtime.native import Library, Tensor, tensor_of_bytes, use_threads

_LACKED_BY_NUMPY = {"bfloat16"}


QuickRun = Callable[[Sequence[Any]], list[np.ndarray] | None]
"""Runs arrays as they are given, or gives None where they are not what the program takes."""


class Runner(Protocol):
    """Runs a program; may be called from several threads.

    Attributes:
        takes_arrays: whether it takes and gives NumPy's arrays; else tensors of TVM or torch.
    """

    takes_arrays: bool

    def run(self, inputs: Sequence[Any]) -> Any:
        """Return what the program gives for inputs: a tensor, or a sequence of them."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """What runs, and what is needed to save it.

    Attributes:
        weights: bytes of each tensor that it keeps, in the manifest's order.
    """

    manifest: Manifest
    machines: Runner
    weights: tuple[np.ndarray, ...]


def assemble(manifest: Manifest, library: Library, weights: Sequence[np.ndarray]) -> CompiledProgram:
    """Return a program that is ready to run; what libraries make of weights is made here.

    Args:
        manifest: what it is.
        library: its code; the packed functions that it calls are provided.
        weights: bytes of each tensor that it keeps, aligned.

    Raises:
        ValueError: the manifest names what there is not.
    """
    tensors = [
        tensor_of_bytes(data, spec.shape, spec.dtype) if manifest.gpu is None else copied_to_gpu(spec, data)
        for data, spec in zip(weights, manifest.weights, strict=True)
    ]
    bound: list[Any] = []
    chosen = []
    for argument in manifest.bound:
        made, way = make_argument(argument, tensors)
        bound.append(made)
        chosen.append(replace(argument, way=way) if isinstance(argument, MadeObject) else argument)
    manifest = replace(manifest, bound=tuple(chosen))
    machines: Runner = (
        _library_runner(manifest, bound) or _Machines(library, bound, manifest.num_threads)
        if manifest.gpu is None
        else GraphRunner(library, manifest, bound)
    )
    return CompiledProgram(manifest, machines, tuple(weights))


def _library_runner(manifest: Manifest, bound: Sequence[Any]) -> Runner | None:
    """Return what runs a program that is one call of a library, without a machine around it; else None."""
    specs = (*manifest.inputs, *manifest.outputs)
    if len(bound) != 1 or not hasattr(bound[0], "as_runner") or _LACKED_BY_NUMPY & {s.dtype for s in specs}:
        return None
    runner: Runner | None = bound[0].as_runner()
    return runner


_CPU, _FIRST, _POOLED = 1, 0, 2
"""Kind and number of the device, and the kind of allocator, as TVM numbers them."""

_here = threading.local()
"""Of each thread, how many threads TVM uses for its calls."""


class _Machines:
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
