"""CUDA source to machine code by NVRTC, without the C++ library's headers where a kernel does without them.

TVM puts those headers before every kernel, for the names of integer types and a few traits; parsing them
takes twenty times as long as the kernel, which is all that most measurements compile. `cubin_of` leaves them
out and names the types itself; a source that needs more is compiled as TVM does it. The machine code is the
same (tests/tuner/targets/test_nvrtc.py).
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

EXTRA_OPTIONS = "TVM_CUDA_NVRTC_EXTRA_OPTS"
"""Variable by which TVM's call of NVRTC takes more options."""

_MODE = "TVM_CUDA_COMPILE_MODE"
"""Variable that names TVM's compiler: `nvrtc` unless it says `nvcc`."""

_CALLBACK = "tvm_callback_cuda_compile"
"""What TVM calls with a module's source while it builds it."""

_HEADERS = re.compile(r"#ifdef __CUDACC_RTC__\n.*?\n#else\n.*?\n#endif\n", re.DOTALL)
"""What TVM includes of the C++ library, the branch of NVRTC first; conditions within are indented."""

_LIBRARY = "cuda/std"

_NAMES = """typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
#define INFINITY __int_as_float(0x7f800000)
"""

_UNDEFINED = (
    "__CUDA_NO_HALF_OPERATORS__",
    "__CUDA_NO_HALF_CONVERSIONS__",
    "__CUDA_NO_BFLOAT16_OPERATORS__",
    "__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "__CUDA_NO_BFLOAT162_OPERATORS__",
    "__CUDA_NO_BFLOAT162_CONVERSIONS__",
)


@functools.cache
def install() -> None:
    """Let TVM compile its kernels by `cubin_of` in this process."""

    def compile_kernels(source: str) -> bytes:
        if os.environ.get(_MODE, "nvrtc").lower() != "nvrtc":
            return bytes(nvcc.compile_cuda(source, target_format="fatbin", compiler="nvcc"))
        version = nvcc.get_target_compute_version(Target.current(allow_none=True))
        return cubin_of(source, f"sm_{version.replace('.', '')}")

    tvm_ffi.register_global_func(_CALLBACK, compile_kernels, override=True)


def cubin_of(source: str, architecture: str, *, options: Sequence[str] = ()) -> bytes:
    """Return the machine code of CUDA C++ as TVM writes it.

    Args:
        source: the kernels.
        architecture: such as `sm_90a`.
        options: more of NVRTC's.

    Raises:
        RuntimeError: NVRTC refuses the source; the message is its own.
    """
    lean = lean_source(source)
    code = None if lean is None else _compile(lean, architecture, options)
    if code is not None:
        return code
    return bytes(
        nvcc.compile_cuda(
            source, target_format="cubin", arch=architecture, options=list(options), compiler="nvrtc"
        )
    )


def lean_source(source: str) -> str | None:
    """Return a source that names integer types itself; None where it takes more of the C++ library."""
    lean, count = _HEADERS.subn(lambda found: _NAMES, source, count=1)
    return None if count == 0 or _LIBRARY in lean or "nvshmem" in lean or "CUtensorMap" in lean else lean


def has_toolkit() -> bool:
    """Say whether TVM finds CUDA's headers by itself: not where a link to `nvcc` lies elsewhere."""
    return any((folder / "cuda_runtime.h").exists() for folder in _include_folders(_toolkit()))


def _compile(source: str, architecture: str, options: Sequence[str]) -> bytes | None:
    """Return machine code, by TVM's own options; None where NVRTC refuses the source, or is not here."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return None
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"tvm_kernels.cu", 0, None, None)
    given = [option.encode() for option in (*_options(architecture), *options)]
    try:
        if nvrtc.nvrtcCompileProgram(program, len(given), given)[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return None
        code = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, code)
        return bytes(code)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _options(architecture: str) -> list[str]:
    return [
        f"--gpu-architecture={architecture}",
        "-default-device",
        "--device-int128",
        *(f"-I{folder}" for folder in _include_folders(_toolkit())),
        *(f"-U{name}" for name in _UNDEFINED),
        "--use_fast_math",
        *(f"--ptxas-options={flag}" for flag in _assembler_flags()),
        *shlex.split(os.environ.get(EXTRA_OPTIONS, "")),
    ]


def _assembler_flags() -> list[str]:
    flags: Any = nvcc._ptxas_option_flags()
    return list(map(str, flags))


def _toolkit() -> str | None:
    try:
        return str(nvcc.find_cuda_path())
    except RuntimeError:  # there is none, and most kernels need none
        return None


@functools.cache
def _include_folders(toolkit: str | None) -> tuple[Path, ...]:
    """Return where a toolkit has headers such as those of `half` and `bfloat16`."""
    if toolkit is None:
        return ()
    folders = (Path(toolkit) / "include", *sorted(Path(toolkit).glob("targets/*/include")))
    # Headers of `half` include the C++ library's, which lie beside them since CUDA 13.
    return (*folders, *(folder / "cccl" for folder in folders if (folder / "cccl").exists()))
