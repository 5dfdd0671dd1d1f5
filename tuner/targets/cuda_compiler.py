"""Compile CUDA source to machine code without a GPU, with the compiler that NVIDIA's packages bring.

The extra `cuda-compile` installs NVRTC, its headers and cuobjdump; TVM's own call of NVRTC runs them, so that
the machine code is what a machine with the GPU would load. cuobjdump then says what each kernel takes, and
the limits of the device's compute capability whether it can be launched. Checked in
tests/tuner/targets/test_cuda_compiler.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from cost_model.gpu.devices import ComputeLimits
from tuner.errors import TunerError
from tuner.targets import nvrtc
from tuner.targets.gpu_targets import compute_capability, limits_of
from tuner.targets.nvrtc import EXTRA_OPTIONS

LEAST_CAPABILITY = 7.5
"""The oldest devices that the compiler of CUDA 13 still knows."""

EXTRA = "cuda-compile"

_WARP = 32
_REGISTER_UNIT = 8
"""Registers are handed to warps in units of so many a thread."""

_RESERVED_SHARED_BYTES = 1024
"""The system's own in a block with shared memory: in machine code from capability 9.0 on, in no limit."""

_TIMEOUT_S = 60.0
_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)[^)]*\)\s+(\w+)\s*\(")


NONE: Mapping[str, int] = MappingProxyType({})


class KernelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one compiled kernel takes.

    Attributes:
        threads: of a block, as its launch bounds say.
        registers: of each thread.
        shared_bytes: shared memory that a block declares.
        dynamic_shared_bytes: shared memory that a block asks for at launch.
        spilled_bytes: of each thread's registers, kept in memory.
    """

    name: str
    threads: int
    registers: int
    shared_bytes: int
    dynamic_shared_bytes: int = 0
    spilled_bytes: int


class CompiledSource(msgspec.Struct, frozen=True, kw_only=True):
    """Machine code of one source.

    Attributes:
        kernels: what each kernel takes, in the compiler's order.
    """

    cubin: bytes
    kernels: tuple[KernelUsage, ...]


def provide_compiler() -> None:
    """Let TVM compile for this machine's GPU by NVRTC, of the packages where the machine has no toolkit."""
    nvrtc.install()
    folder = _package_folder()
    if "CUDA_PATH" in os.environ or nvrtc.has_toolkit() or not (folder / "include").exists():
        return
    os.environ["CUDA_PATH"] = str(folder)
    include = f"-I{folder / 'include' / 'cccl'}"
    given = os.environ.get(EXTRA_OPTIONS, "")
    os.environ[EXTRA_OPTIONS] = f"{given} {include}".strip()


def compiler_obstacle() -> str | None:
    """Return what is missing to compile for a GPU; None where nothing is."""
    missing = [name for name in ("cuda.bindings", "cuda.pathfinder") if not _is_installed(name)]
    folder = None if missing else _package_folder()
    if not missing:
        for what in ("include/cuda_runtime.h", "include/cccl", "bin/cuobjdump"):
            if folder is None or not (folder / what).exists():
                missing.append(what)
    if not missing:
        return None
    return f"{', '.join(missing)} of CUDA's compiler not found; pip install 'tessel-tuner[{EXTRA}]'"


def architecture_obstacle(attributes: Mapping[str, Any]) -> str | None:
    """Return why the compiler has no code for a GPU target's attributes; None where it has."""
    capability = compute_capability(str(attributes["arch"]))
    if float(capability) >= LEAST_CAPABILITY:
        return None
    return f"compute capability {capability} is older than {LEAST_CAPABILITY}, the oldest of CUDA 13"


def compile_source(
    source: str, attributes: Mapping[str, Any], *, dynamic_shared_bytes: Mapping[str, int] = NONE
) -> CompiledSource:
    """Return a source's machine code for a GPU target, and what its kernels take.

    Args:
        source: CUDA C++, as TVM writes it.
        attributes: TVM's, of the target.
        dynamic_shared_bytes: what each kernel asks for at launch, by name; machine code does not say it.

    Raises:
        TunerError: the compiler is not installed or does not know the architecture, or refuses the source.
    """
    obstacle = compiler_obstacle() or architecture_obstacle(attributes)
    if obstacle is not None:
        raise TunerError(f"nothing can be compiled for {attributes['arch']}: {obstacle}")
    folder = _package_folder()
    with _cuda_path(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of NVRTC's version, which the packages fix
        try:
            options = [f"-I{folder / 'include' / 'cccl'}"]
            cubin = nvrtc.cubin_of(source, str(attributes["arch"]), options=options)
        except RuntimeError as error:
            reason = _first_error(error)
            raise TunerError(f"NVRTC refuses a kernel for {attributes['arch']}: {reason}") from error
    is_reserved_counted = float(compute_capability(str(attributes["arch"]))) >= 9
    reserved = _RESERVED_SHARED_BYTES if is_reserved_counted else 0
    return CompiledSource(
        cubin=cubin, kernels=_usages(cubin, source, folder, dynamic_shared_bytes, reserved=reserved)
    )


def excess(kernel: KernelUsage, attributes: Mapping[str, Any]) -> str | None:
    """Return which limit of the device a kernel is beyond, so that its launch would fail; None where none."""
    limits = limits_of(attributes)
    for what, found, most in _figures(kernel, limits):
        if found > most:
            return f"kernel {kernel.name} takes {found} {what}, {attributes['arch']} allows {most}"
    return None


def _figures(kernel: KernelUsage, limits: ComputeLimits) -> Iterator[tuple[str, int, int]]:
    threads = -(-kernel.threads // _WARP) * _WARP
    registers = -(-kernel.registers // _REGISTER_UNIT) * _REGISTER_UNIT
    yield "threads in a block", kernel.threads, limits.threads_per_block
    yield "registers in a thread", kernel.registers, limits.registers_per_thread
    yield "registers in a block", threads * registers, limits.registers_per_block
    yield "bytes of declared shared memory", kernel.shared_bytes, limits.static_shared_bytes
    yield "bytes of shared memory", kernel.shared_bytes + kernel.dynamic_shared_bytes, limits.shared_bytes


def _usages(
    cubin: bytes, source: str, folder: Path, dynamic_shared_bytes: Mapping[str, int], *, reserved: int
) -> tuple[KernelUsage, ...]:
    """Return what the kernels in machine code take; their launch bounds stand in the source alone."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "kernels.cubin"
        path.write_bytes(cubin)
        command = [str(folder / "bin" / "cuobjdump"), "-res-usage", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise TunerError(f"cuobjdump cannot read what NVRTC made: {error}") from error
    threads = {name: int(count) for count, name in _BOUNDS.findall(source)}
    return tuple(
        KernelUsage(
            name=name,
            threads=threads.get(name, 1),
            registers=int(registers),
            shared_bytes=max(0, int(shared) - reserved),
            dynamic_shared_bytes=dynamic_shared_bytes.get(name, 0),
            spilled_bytes=int(stack) + int(local),
        )
        for name, registers, stack, shared, local in _USAGE.findall(done.stdout)
    )


def _first_error(error: RuntimeError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "error" in line]
    return (lines or str(error).splitlines() or ["no reason given"])[0][:300]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


@cache
def _package_folder() -> Path:
    """Return the folder that NVIDIA's packages share, in whichever folder of the path they are."""
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for toolkit in sorted(Path(folder).glob("cu[0-9]*"), reverse=True):
            if (toolkit / "include" / "cuda_runtime.h").exists():
                return toolkit
    return Path("nvidia")


@contextmanager
def _cuda_path(folder: Path) -> Iterator[None]:
    """Let TVM find the packages' headers, whatever toolkit the machine has."""
    before = os.environ.get("CUDA_PATH")
    os.environ["CUDA_PATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_PATH"]
        else:
            os.environ["CUDA_PATH"] = before
