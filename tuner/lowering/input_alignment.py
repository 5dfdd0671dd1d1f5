"""Kernels that read a program's inputs wherever allocators put them.

TVM's code loads vectors by instructions that fault off a multiple of 64 bytes, so that each call of a program
would copy the inputs that lie elsewhere: NumPy's and torch's begin at multiples of 16. Instructions without
that demand take as long where tensors are aligned. Checked in tests/tessel/compiling/test_program.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tuner.graph.relax_types import IRModule
from tuner.runtime.native import INPUT_ALIGNMENT


def reads_inputs_anywhere() -> Any:
    """Return the pass that lets what kernels read of inputs begin at any multiple of `INPUT_ALIGNMENT`."""

    @tvm.transform.module_pass(opt_level=0, name="TesselInputAlignment")
    def run(module: IRModule, _context: Any) -> IRModule:
        loose = module.clone()
        for _, function in module.functions_items():
            if isinstance(function, relax.Function):
                for kernel in set(_readers(function)):
                    loose.update_func(kernel, _loosened(module[kernel]))
        return loose

    return run


def _readers(function: Any) -> Iterator[Any]:
    """Yield the kernels that are given an input, or what may be a view of one."""
    views = set(function.params)
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            is_kernel = isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir"
            read = value.args[1] if is_kernel else value
            if views.isdisjoint(relax.analysis.free_vars(read)):
                continue
            if is_kernel:
                yield value.args[0]
            else:
                views.add(binding.var)


def _loosened(kernel: Any) -> Any:
    tensors = {each: _anywhere(each) for each in kernel.params if isinstance(each.ty, tirx.buffer.BufferType)}
    return tvm_ffi.structural_map(kernel, (tvm.ir.Var, lambda each: tensors.get(each, each)))


def _anywhere(tensor: Any) -> Any:
    return tirx.decl_buffer(
        tensor.shape,
        tensor.dtype,
        tensor.name,
        strides=tensor.strides or None,
        elem_offset=tensor.elem_offset,
        data_alignment=INPUT_ALIGNMENT,
        offset_factor=tensor.offset_factor,
    )
