"""Lower a model for a GPU that need not be here, down to the machine code of every kernel.

Everything that a run on the GPU would do happens except the run: the `tvm` backend schedules and fuses, TVM
writes CUDA C++, NVRTC compiles it, and each kernel's launch is held against the device's limits. Checked in
tests/tuner/lowering/test_gpu_code.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import tvm
from tvm.s_tir.analysis import calculate_allocated_bytes

from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import build_module
from tuner.targets.cuda_compiler import KernelUsage, compile_source, excess
from tuner.targets.target import Target

_SPLIT = "tirx.SplitHostDevice"
"""TVM's pass after which every kernel is a function of its own, its shared memory merged."""

_DYNAMIC = "shared.dyn"


class GpuCode(msgspec.Struct, frozen=True, kw_only=True):
    """A model's machine code for one GPU target.

    Attributes:
        kernels: what each kernel takes.
        code_bytes: of all machine code.
        excesses: of each kernel that the device could not launch, which limit it is beyond.
    """

    kernels: tuple[KernelUsage, ...]
    code_bytes: int
    excesses: tuple[str, ...]


def compile_for_gpu(module: IRModule, target: Target) -> GpuCode:
    """Return the machine code that a module has on a GPU.

    Args:
        module: a Relax module whose `main` is to run.

    Raises:
        TunerError: the module cannot be lowered, or the compiler refuses a kernel; says why.
    """
    try:
        built = build_with_launches(lambda: build_module(module, target).mod)
    except Exception as error:  # foreign code: TVM's passes raise what they like
        first = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise TunerError(f"TVM cannot lower it for {target.name}: {first[:300]}") from error
    return compile_built(built, target)


class BuiltModule(NamedTuple):
    """What TVM built, and what its kernels ask for at launch.

    Attributes:
        dynamic_shared_bytes: shared memory of a block by kernel.
    """

    module: Any
    dynamic_shared_bytes: dict[str, int]


def build_with_launches(build: Callable[[], Any]) -> BuiltModule:
    """Return what a call of TVM's builder returns, with the launches that TVM decided on meanwhile."""
    launches = _Launches()
    with tvm.transform.PassContext(instruments=[launches]):
        module = build()
    return BuiltModule(module, launches.dynamic_shared_bytes)


def compile_built(built: BuiltModule, target: Target) -> GpuCode:
    """Return the machine code of all sources in a module that TVM built.

    Raises:
        TunerError: the compiler refuses a kernel.
    """
    attributes = json.loads(target.tvm_json)
    compiled = [
        compile_source(source, attributes, dynamic_shared_bytes=built.dynamic_shared_bytes)
        for source in cuda_sources(built.module)
    ]
    kernels = tuple(kernel for each in compiled for kernel in each.kernels)
    return GpuCode(
        kernels=kernels,
        code_bytes=sum(len(each.cubin) for each in compiled),
        excesses=tuple(found for kernel in kernels if (found := excess(kernel, attributes)) is not None),
    )


def cuda_sources(built: Any) -> Iterator[str]:
    """Yield the CUDA C++ of a module that TVM built, and of all that it imports."""
    if built.kind == "cuda":
        yield str(built.inspect_source("cuda"))
    for imported in built.imports:
        yield from cuda_sources(imported)


@tvm.instrument.pass_instrument
class _Launches:
    """Notes the shared memory that kernels ask for at launch."""

    def __init__(self) -> None:
        self.dynamic_shared_bytes: dict[str, int] = {}

    def run_after_pass(self, module: Any, info: Any) -> None:
        """Look at the kernels once the pass is done that splits them off."""
        if str(info.name) != _SPLIT:
            return
        for variable, function in module.functions_items():
            if isinstance(function, tvm.tirx.PrimFunc):
                scopes = calculate_allocated_bytes(function)["main"]
                for scope, count in scopes.items():
                    if str(scope) == _DYNAMIC:
                        self.dynamic_shared_bytes[variable.name_hint] = int(count)
