"""Names of a kernel's parameters that CUDA C++ takes: TVM writes those that the model has.

A weight of `torch.nn.Sequential` is called `0.bias`, and no name in C begins with a digit. Checked in
tests/software_gpu/device_graphs.py.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import relax

from tuner.graph.relax_types import IRModule, RelaxFunction


def with_c_names(module: IRModule) -> IRModule:
    """Return the module with parameters of Relax functions under names that begin with a letter."""
    named = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and any(map(_is_refused, function.params)):
            named.update_func(variable, _renamed(function))
    return named


def _is_refused(parameter: Any) -> bool:
    return bool(parameter.name[:1].isdigit())


def _renamed(function: RelaxFunction) -> RelaxFunction:
    fresh = {
        each: relax.Var(f"p{each.name}", each.ty) if _is_refused(each) else each for each in function.params
    }
    return tvm_ffi.structural_map(function, (relax.Var, lambda each: fresh.get(each, each)))
