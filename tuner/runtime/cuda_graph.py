"""A compiled program on a GPU: its kernels captured once as a CUDA graph, which every call replays.

A call copies its inputs to where the graph reads them, launches the graph and copies the results out, all in
one stream. The host does nothing between kernels and waits for nothing but results that it reads itself, and
only results that stay on the device are allocated. TVM's kernels and torch's are captured in one stream;
where torch takes part, by torch, so that what its kernels allocate stays the graph's. Checked on the software
GPU in tests/software_gpu/device_graphs.py; torch's part was not run yet.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from tuner.runtime.manifest import Manifest, TensorSpec
from tuner.runtime.native import Library, Tensor, aligned_bytes, in_stream, tensor_of_bytes, tensor_on_gpu

logger = logging.getLogger(__name__)

ALLOCATE_NAME = "allocate_storages"
"""The function of a program for a GPU that makes its storages: see `tuner.lowering.lower`."""

_RUNTIME = "libcudart.so.13"
"""CUDA's runtime library, which TVM's needs: it is loaded by then, from wherever it lies."""

_CPU, _CUDA, _FIRST, _POOLED = 1, 2, 0, 2
"""Kinds and number of a device, and the kind of allocator, as TVM numbers them."""

_NON_BLOCKING, _THREAD_LOCAL, _ANY_DIRECTION = 1, 1, 4
"""CUDA's numbers: of a stream apart from the null stream, a capture of one thread's calls, a copy."""


class CudaError(RuntimeError):
    """Say which of CUDA's calls failed, and how."""


class GraphRunner:
    """Runs a program's `main` on the first GPU, one call after the other.

    Args:
        library: the program's code.
        manifest: what it takes and gives.
        bound: what `main` takes after its inputs, on the device.
    """

    takes_arrays = False

    def __init__(self, library: Library, manifest: Manifest, bound: Sequence[Any]) -> None:
        machine = library["vm_load_executable"]()
        machine["vm_initialization"](_CUDA, _FIRST, _POOLED, _CPU, _FIRST, _POOLED)
        self._machine, self._main = machine, machine["main"]
        self._manifest = manifest
        self._inputs = [_on_gpu(spec) for spec in manifest.inputs]
        self._arguments = (*self._inputs, *bound, *machine[ALLOCATE_NAME]())
        self._capture = partial(captured, by_torch="torch" in manifest.libraries)
        self._launch: Callable[[int], None] | None = None
        self._results: tuple[Tensor, ...] = ()
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """Return what `main` gives for inputs, on the device if all of them are, else on the host.

        Raises:
            CudaError: a kernel or a copy fails.
        """
        is_on_device = bool(inputs) and all(map(_is_on_gpu, inputs))
        with self._lock:
            stream = _callers_stream()
            for spec, given, own in zip(self._manifest.inputs, inputs, self._inputs, strict=True):
                _copy(given, own, spec, stream)
            if self._launch is None:
                self._launch = self._prepared(stream)
            self._launch(stream)
            found = []
            for spec, made in zip(self._manifest.outputs, self._results, strict=True):
                found.append(_on_gpu(spec) if is_on_device else _on_host(spec))
                _copy(made, found[-1], spec, stream)
        return found[0] if len(found) == 1 else found

    def _prepared(self, stream: int) -> Callable[[int], None]:
        """Return what launches the graph in a stream, or the kernels one by one where there is no graph."""

        def call() -> None:
            made = self._main(*self._arguments)
            self._results = (made,) if hasattr(made, "dtype") else tuple(made)

        def launch_each(stream: int) -> None:
            with in_stream(stream):
                call()

        launch_each(stream)  # loads the kernels, which a capture must not
        _cuda("cudaStreamSynchronize", ctypes.c_void_p(stream))
        try:
            return self._capture(call)
        except Exception as error:  # CUDA's, TVM's or torch's, for what it calls is not theirs alone
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            logger.warning("kernels are launched one by one: they cannot be captured (%s)", reason[:200])
            return launch_each


def copied_to_gpu(spec: TensorSpec, data: np.ndarray) -> Tensor:
    """Return a tensor on the device, of the bytes that are given."""
    made = _on_gpu(spec)
    _copy(tensor_of_bytes(data, spec.shape, spec.dtype), made, spec, 0)
    return made


def captured(call: Callable[[], None], *, by_torch: bool) -> Callable[[int], None]:
    """Return what launches the kernels of a call in a stream; they are captured and not run.

    Args:
        call: launches kernels; all that it allocates has to outlive the graph.
        by_torch: whether some kernels are torch's.

    Raises:
        Exception: CUDA's, TVM's or torch's, of a call that cannot be captured.
    """
    return _captured_by_torch(call) if by_torch else _captured(call)


def _captured(call: Callable[[], None]) -> Callable[[int], None]:
    stream, graph, launched = (ctypes.c_void_p() for _ in range(3))
    _cuda("cudaStreamCreateWithFlags", ctypes.byref(stream), _NON_BLOCKING)
    try:
        _cuda("cudaStreamBeginCapture", stream, _THREAD_LOCAL)
        try:
            with in_stream(stream.value or 0):
                call()
        finally:
            _cuda("cudaStreamEndCapture", stream, ctypes.byref(graph))
        _cuda("cudaGraphInstantiate", ctypes.byref(launched), graph, ctypes.c_ulonglong(0))
        _cuda("cudaGraphDestroy", graph)
    finally:
        _cuda("cudaStreamDestroy", stream)
    return lambda current: _cuda("cudaGraphLaunch", launched, ctypes.c_void_p(current))


def _captured_by_torch(call: Callable[[], None]) -> Callable[[int], None]:
    """Return the same of kernels some of which are torch's."""
    torch = sys.modules["torch"]
    graph = torch.cuda.CUDAGraph()
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.graph(graph, capture_error_mode="thread_local"))
        stack.enter_context(in_stream(torch.cuda.current_stream().cuda_stream))
        call()

    def launch(stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            graph.replay()

    return launch


def _callers_stream() -> int:
    """Return torch's current stream where torch uses the device, or else the null stream."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_stream().cuda_stream if torch is not None and torch.cuda.is_initialized() else 0


def _copy(given: Tensor, to: Tensor, spec: TensorSpec, stream: int) -> None:
    """Copy a tensor, between any two places; the call returns once memory of the host may be used again."""
    ends = [ctypes.c_void_p(each.data_ptr()) for each in (to, given)]
    size = ctypes.c_size_t(spec.num_bytes)
    _cuda("cudaMemcpyAsync", *ends, size, _ANY_DIRECTION, ctypes.c_void_p(stream))


def _on_gpu(spec: TensorSpec) -> Tensor:
    return tensor_on_gpu(spec.shape, spec.dtype)


def _on_host(spec: TensorSpec) -> Tensor:
    return tensor_of_bytes(aligned_bytes(spec.num_bytes), spec.shape, spec.dtype)


def _is_on_gpu(tensor: Tensor) -> bool:
    return bool(tensor.device.type == "cuda")


def _cuda(name: str, *arguments: object) -> None:
    """Call a function of CUDA's runtime.

    Raises:
        CudaError: it answers an error.
    """
    library = ctypes.CDLL(_RUNTIME)
    code = getattr(library, name)(*arguments)
    if code:
        describe = library.cudaGetErrorString
        describe.restype = ctypes.c_char_p
        raise CudaError(f"{name}: {describe(code).decode()}")
