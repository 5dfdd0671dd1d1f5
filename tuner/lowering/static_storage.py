"""A program whose memory is the caller's, so that its kernels can be replayed as one CUDA graph.

A graph holds addresses, and what `main` allocates is free again when it returns: others may get it. So `main`
takes its storages after all other arguments, and `ALLOCATE_NAME` makes them, once. Checked in
tests/software_gpu/device_graphs.py.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.runtime.cuda_graph import ALLOCATE_NAME

_STORAGE = "relax.memory.alloc_storage"


def hoist_storages() -> Any:
    """Return the pass that takes the storages out of `main`; it follows `LowerAllocTensor`."""

    @tvm.transform.module_pass(opt_level=0, name="TesselHoistStorages")
    def run(module: IRModule, _context: Any) -> IRModule:
        main, allocate = _hoisted(module["main"])
        hoisted = module.clone()
        hoisted.update_func(hoisted.get_global_var("main"), main)
        hoisted.update_func(relax.GlobalVar(ALLOCATE_NAME), allocate)
        return hoisted

    return run


def _hoisted(main: RelaxFunction) -> tuple[RelaxFunction, RelaxFunction]:
    storages: list[Any] = []
    blocks = []
    for block in main.body.blocks:
        kept: list[Any] = []
        for binding in block.bindings:
            is_storage = getattr(getattr(binding.value, "op", None), "name", "") == _STORAGE
            (storages if is_storage else kept).append(binding)
        blocks.append(relax.BindingBlock(kept))
    # The variables of the bindings are now parameters; the function that makes storages binds its own.
    parameters = [*main.params, *(binding.var for binding in storages)]
    body = relax.SeqExpr(blocks, main.body.body)
    hoisted = relax.Function(parameters, body, main.ret_ty, is_pure=False, attrs=main.attrs)
    builder = relax.BlockBuilder()
    with builder.function(ALLOCATE_NAME, [], attrs={"relax.force_pure": True}):
        builder.emit_func_output(relax.Tuple([builder.emit(binding.value) for binding in storages]))
    return hoisted, builder.get()[ALLOCATE_NAME]
