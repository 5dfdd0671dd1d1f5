"""TVM's run-time libraries without its compiler and without its Python package, which take seconds to import.

Importing this module loads them. tvm_ffi imports torch wherever that is installed; a process that has not
imported torch is spared that. Checked in tests/tessel/compiling/test_loading.py.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

_HAS_TORCH = "torch" in sys.modules
if not _HAS_TORCH:
    sys.modules["torch"] = None  # type: ignore[assignment]  # what is None is not imported
try:
    import tvm_ffi
finally:
    if not _HAS_TORCH:
        del sys.modules["torch"]

ALIGNMENT = 64
"""Bytes at whose multiples a tensor begins: kernels read whole vectors there."""

INPUT_ALIGNMENT = 16
"""Bytes at whose multiples inputs may begin, as allocators give them (`tuner.lowering.input_alignment`)."""

Library: TypeAlias = Any
"""A `tvm_ffi.Module` that holds the bytecode and the kernels of a program."""

Tensor: TypeAlias = Any
"""A `tvm_ffi.Tensor`."""


def _library_folder() -> Path:
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("a compiled program needs apache-tvm, which is not installed", name="tvm")
    return Path(found.origin).parent / "lib"


def _load_native_libraries() -> ctypes.CDLL:
    folder = _library_folder()
    # As TVM's own package loads them; what is loaded already is found again.
    (runtime,) = [
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in sorted(folder.glob("*tvm_runtime.*"))
    ]
    for path in sorted(folder.glob("*tvm_runtime_extra.*")):
        ctypes.CDLL(str(path), ctypes.RTLD_LOCAL)
    return runtime


_runtime = _load_native_libraries()
_CUDA, _EXISTS, _COMPUTE_VERSION = 2, 0, 4
"""Numbers that TVM gives a kind of device and two of its attributes."""
_BFLOAT16 = tvm_ffi.dtype("bfloat16")
_create_view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
_SET_MAX_CONCURRENCY = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
"""`tvm::runtime::threading::SetMaxConcurrency(int)`, unknown to TVM's registry; the function that is
registered would also bind the calling thread to one core."""


def use_threads(number: int) -> None:
    """Let TVM use so many threads for the calls of this thread, from now on."""
    set_number = getattr(_runtime, _SET_MAX_CONCURRENCY, None)
    if set_number is not None:
        set_number(ctypes.c_int(number))


def compute_capability() -> str | None:
    """Return that of this machine's first GPU, as `9.0`; None where TVM reaches none."""
    for path in sorted(_library_folder().glob("*tvm_runtime_cuda.*")):
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_LOCAL)
        except OSError:  # there is no driver
            return None
    attribute = tvm_ffi.get_global_func("runtime.GetDeviceAttr")
    return str(attribute(_CUDA, 0, _COMPUTE_VERSION)) if attribute(_CUDA, 0, _EXISTS) else None


def tensor_on_gpu(shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a tensor on the first GPU, of what its memory holds."""
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    return allocate(tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), tvm_ffi.device("cuda", 0), None)


def in_stream(stream: int) -> AbstractContextManager[Any]:
    """Let TVM launch kernels of the first GPU in a stream of CUDA's meanwhile, instead of the null stream."""
    return cast(AbstractContextManager[Any], tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream))


def load_library(code: bytes) -> Library:
    """Return the library whose bytes are given. This makes its machine code part of the process.

    Raises:
        OSError: the system's loader refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="tessel-program-") as folder:
        path = Path(folder) / "program.so"  # a loader takes a file; once loaded, it needs its name no more
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "wb") as file:
            file.write(code)
        try:
            return tvm_ffi.load_module(str(path))
        except (RuntimeError, ValueError) as error:
            raise OSError(str(error).strip().splitlines()[-1]) from error


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a contiguous copy of an array that begins where kernels want it."""
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def aligned_bytes(count: int) -> np.ndarray:
    """Return memory for so many bytes that begins where kernels want it."""
    held = np.empty(count + ALIGNMENT, np.uint8)
    start = -held.ctypes.data % ALIGNMENT
    return held[start : start + count]


def tensor_of_bytes(data: np.ndarray, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a tensor over the memory of an array of bytes, which it keeps alive; `bfloat16` is known too.

    Args:
        data: uint8, shape (number of bytes,), aligned.
    """
    if not data.size:
        data = np.zeros(ALIGNMENT, np.uint8)
    return _create_view(tvm_ffi.from_dlpack(data), tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), 0)


def tensor_of_array(array: np.ndarray) -> Tensor:
    """Return a tensor over the memory of an array, or over a copy where kernels cannot read that."""
    if not array.flags.carray:  # contiguous, and may be written
        array = aligned_copy(array)
    if array.dtype.kind == "V":  # a type that NumPy lacks, such as bfloat16
        array = aligned_copy(array) if array.ctypes.data % INPUT_ALIGNMENT else array
        return tensor_of_bytes(array.reshape(-1).view(np.uint8), array.shape, str(array.dtype))
    tensor = tvm_ffi.from_dlpack(array)
    return tvm_ffi.from_dlpack(aligned_copy(array)) if tensor.data_ptr() % INPUT_ALIGNMENT else tensor


def tensor_of_dlpack(value: Any) -> Tensor:
    """Return a tensor over what speaks DLPack, or over a copy where kernels cannot read that."""
    tensor = tvm_ffi.from_dlpack(value)
    if tensor.is_contiguous() and not tensor.data_ptr() % INPUT_ALIGNMENT:
        return tensor
    return tensor_of_array(np.from_dlpack(value))


def array_of_tensor(tensor: Tensor) -> np.ndarray:
    """Return an array over the memory of a tensor; NumPy has bfloat16 from `ml_dtypes` alone."""
    if tensor.dtype != _BFLOAT16:
        return np.from_dlpack(tensor)
    import ml_dtypes  # noqa: PLC0415 - where it is met

    bits = _create_view(tensor, tvm_ffi.Shape(tensor.shape), tvm_ffi.dtype("uint16"), 0)
    return np.from_dlpack(bits).view(ml_dtypes.bfloat16)
