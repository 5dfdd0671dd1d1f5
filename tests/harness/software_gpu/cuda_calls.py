"""CUDA's own calls, for tests that run kernels written by hand: in a process on the software GPU alone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

_COUNTS = (
    "launches",
    "synchronisations",
    "allocations",
    "frees",
    "graph_launches",
    "copies_to_device",
    "copies_to_host",
    "copies_on_device",
    "bytes_to_device",
    "bytes_to_host",
    "bytes_on_device",
)
_DYNAMIC_SHARED = 8
"""The number of the driver's attribute by which a kernel may ask for more shared memory."""


class CudaError(Exception):
    """An error code of a call."""

    def __init__(self, code: int) -> None:
        super().__init__(library().cudaGetErrorName(code).decode())
        self.code = code


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


def library() -> Any:
    """Return the device's library."""
    loaded = ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
    loaded.cudaGetErrorName.restype = ctypes.c_char_p
    return loaded


def call(name: str, *arguments: object) -> None:
    """Call a function of CUDA's.

    Raises:
        CudaError: it answers an error.
    """
    code = getattr(library(), name)(*arguments)
    if code:
        raise CudaError(code)


def counts() -> dict[str, int]:
    """Return what the device has done since the process began, by name."""
    found = (ctypes.c_uint64 * len(_COUNTS))()
    library().softwareGpuCounts(found)
    return dict(zip(_COUNTS, found, strict=True))


def forget_error() -> None:
    """Make the device usable after a kernel failed; a real one needs a new process."""
    library().softwareGpuForgetError()


@contextmanager
def timed_kernels(us: float) -> Iterator[None]:
    """Let each kernel take so long by the device's clock, and nothing else any time."""
    library().softwareGpuTimeKernels(ctypes.c_double(us))
    try:
        yield
    finally:
        library().softwareGpuTimeKernels(ctypes.c_double(0))


def new_stream(*, is_blocking: bool = False) -> ctypes.c_void_p:
    """Return a stream."""
    stream = ctypes.c_void_p()
    call("cudaStreamCreateWithFlags", ctypes.byref(stream), 0 if is_blocking else 1)
    return stream


def synchronise(stream: ctypes.c_void_p | None = None) -> None:
    """Wait for a stream; the null stream if None."""
    call("cudaStreamSynchronize", stream)


class DeviceArray:
    """Memory of the device, freed with the object.

    Args:
        like: its shape and type, and what it holds.
        is_written: whether it holds that; else nothing was written.
    """

    def __init__(self, like: np.ndarray, *, is_written: bool = True) -> None:
        self._like = np.ascontiguousarray(like)
        self.address = ctypes.c_void_p()
        call("cudaMalloc", ctypes.byref(self.address), ctypes.c_size_t(like.nbytes))
        if is_written:
            self.copy_from(self._like)

    def __del__(self) -> None:
        library().cudaFree(self.address)

    def copy_from(self, array: np.ndarray, stream: ctypes.c_void_p | None = None) -> None:
        """Copy an array of the host here, asynchronously."""
        data = ctypes.c_void_p(array.ctypes.data)
        call("cudaMemcpyAsync", self.address, data, ctypes.c_size_t(array.nbytes), 4, stream)

    def numpy(self, stream: ctypes.c_void_p | None = None) -> np.ndarray:
        """Return a copy on the host, made by a stream in its turn."""
        found = np.empty_like(self._like)
        data = ctypes.c_void_p(found.ctypes.data)
        call("cudaMemcpyAsync", data, self.address, ctypes.c_size_t(found.nbytes), 4, stream)
        return found


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of CUDA C++ that was compiled for the device.

    Attributes:
        function: the driver's handle.
    """

    function: ctypes.c_void_p

    @classmethod
    def compiled(cls, source: str, name: str = "kernel") -> Kernel:
        """Return a kernel, compiled as TVM compiles its own.

        Raises:
            ValueError: the compiler refuses it; the message is the compiler's.
        """
        from cuda.bindings import nvrtc  # noqa: PLC0415 - the software device's, where it is on the path

        _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"", 0, None, None)
        if nvrtc.nvrtcCompileProgram(program, 0, [])[0]:
            log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
            nvrtc.nvrtcGetProgramLog(program, log)
            raise ValueError(log.decode())
        code = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, code)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), bytes(code))
        call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return cls(function)

    def allow_shared(self, num_bytes: int) -> None:
        """Let a block ask for more shared memory than 48 KiB."""
        call("cuFuncSetAttribute", self.function, _DYNAMIC_SHARED, num_bytes)

    def launch(
        self,
        *arguments: DeviceArray | ctypes._SimpleCData[Any],
        grid: Sequence[int] = (1,),
        block: Sequence[int] = (32,),
        shared_bytes: int = 0,
        stream: ctypes.c_void_p | None = None,
    ) -> None:
        """Launch it, asynchronously; arguments are arrays of the device and numbers of C's types."""
        values = [each.address if isinstance(each, DeviceArray) else each for each in arguments]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        three = [tuple(each) + (1,) * (3 - len(each)) for each in (grid, block)]
        config = _Config(three[0], three[1], shared_bytes, stream)
        call("cuLaunchKernelEx", ctypes.byref(config), self.function, pointers, None)
