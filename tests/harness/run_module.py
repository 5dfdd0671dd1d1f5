"""Run a built module once, in this process; and what is scheduled for a GPU, thread by thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import flat_arrays
from tuner.lowering.weight_binding import bound_arguments
from tuner.targets.resolution import tvm_device
from tuner.targets.target import Target


def run_module(
    executable: Any, arguments: Sequence[np.ndarray], target: Target, function: str = "main"
) -> tuple[np.ndarray, ...]:
    """Run a function once and return its results, flattened, as arrays of their own."""
    device = tvm_device(target)
    machine = relax.VirtualMachine(executable, device)
    tensors = [tvm.runtime.tensor(argument, device) for argument in arguments]
    if function == "main":
        tensors = bound_arguments(machine, tensors)
    return flat_arrays(machine[function](*tensors))


def plain_machine(module: Any, *, is_large: bool = False) -> relax.VirtualMachine:
    """Return a virtual machine of a module for this processor, by TVM's default build and not by the tuner's.

    Optimising small kernels takes longer than running them, and their own checks of their arguments are
    half of their machine code: the virtual machine has checked these already.

    Args:
        module: a module of Relax functions.
        is_large: whether its loops run so long that they are optimised.
    """
    target = tvm.target.Target({"kind": "llvm", "opt-level": 3 if is_large else 0})
    level = tvm.transform.PassContext.current().opt_level
    with tvm.transform.PassContext(opt_level=level, config={"tirx.disable_assert": True}):
        return relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())


def all_in_turn(module: IRModule) -> IRModule:
    """Return a module with all its kernels so; they share nothing between threads."""
    turned = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            turned.update_func(variable, one_after_the_other(function))
    return turned


def one_after_the_other(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel for the CPU that runs the threads of each launch in turn, the last one first."""

    def serial(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        last = int(loop.extent) - 1
        variable = loop.loop_var
        body = tvm_ffi.structural_map(
            loop.body, (tirx.Var, lambda each: last - each if each.same_as(variable) else each)
        )
        return tirx.For(variable, 0, loop.extent, tirx.ForKind.SERIAL, body)

    return tvm_ffi.structural_map(kernel, (tirx.For, serial))
