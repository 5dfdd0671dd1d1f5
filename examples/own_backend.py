"""A backend of one's own in one module: it runs softmax by SciPy.

Use it by reference, without registering anything:

    tessel partition gpt2:tiny --target cpu --backends tvm,examples.own_backend:OwnBackend

It has the four parts of every backend: who it is, whether it can run here, which sub-graphs it asks for,
and how it lowers the ones that it gets.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import numpy as np
import scipy.special
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tuner.backends.tvm.native import replace_function
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.styles import library_rule
from tuner.targets.target import Target

_SOFTMAX = LabelledPattern("softmax", is_op("relax.nn.softmax")(wildcard()))


class OwnBackend:
    name = "own"
    settings = ""  # what changes its results beside the name, such as `trials=64`: part of a record's key
    reference = "examples.own_backend:OwnBackend"

    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("scipy", importlib.metadata.version("scipy")),)

    def unavailable_reason(self, target: Target) -> str | None:
        return None if target.kind == "cpu" else "SciPy runs on a CPU only"

    def rule(self, target: Target) -> Rule:
        return library_rule([_SOFTMAX], name=self.name)

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        bindings = function.body.blocks[0].bindings
        softmax = bindings[0].value
        if len(bindings) != 1 or not isinstance(softmax, relax.Call) or softmax.op.name != "relax.nn.softmax":
            return "it is not a single softmax"
        last = len(softmax.ty.shape) - 1
        return None if int(softmax.attrs.axis) in (-1, last) else "its softmax is not along the last axis"

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        for name in functions:
            builder = relax.BlockBuilder()
            value = relax.Var("value", module[name].params[0].ty)
            with builder.function("main", [value]):
                with builder.dataflow():
                    call = relax.call_dps_packed("own.softmax", [value], out_ty=value.ty)
                    result = builder.emit_output(call)
                builder.emit_func_output(result)
            module = replace_function(module, name, builder.get())
        return module


@tvm.register_global_func("own.softmax", override=True)
def _softmax(value: tvm.runtime.Tensor, result: tvm.runtime.Tensor) -> None:
    """Compute into the result's own memory: destination last, nothing returned."""
    np.from_dlpack(result)[...] = scipy.special.softmax(np.from_dlpack(value), axis=-1)
