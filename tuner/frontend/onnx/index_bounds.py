"""Indices that stay within what they select from, whatever a caller hands in.

TVM reads and writes at the indices that a program is given, outside of a tensor too, where that ends the
process or changes other data. onnxruntime and torch raise an error there; a compiled program takes the first
or last row instead. Checked in tests/tuner/frontend/onnx/test_index_bounds.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

_BELOW_ZERO = ("scatter_elements",)
"""Operators that count negative indices from the end."""

_OF_ONE_AXIS = ("gather_elements", "scatter_elements")

_OF_AXES = ("gather_nd", "scatter_nd")


def bounded(function: Any) -> Any:
    """Return a function that selects nothing outside of a tensor."""
    return _IndexBounds().visit_expr(function)


@relax.expr_functor.mutator
class _IndexBounds(relax.PyExprMutator):
    """Bounds indices that are not constant."""

    def visit_call_(self, call: Any) -> Any:
        """Return the call, with indices that are bounded."""
        call = super().visit_call_(call)
        name = str(getattr(call.op, "name", "")).removeprefix("relax.")
        if name == "take" and call.attrs.mode == "fast":
            axis = None if call.attrs.axis is None else int(call.attrs.axis)
            return relax.op.take(*call.args, axis, "clip")
        if name not in (*_OF_ONE_AXIS, *_OF_AXES) or isinstance(call.args[1], tvm.ir.GenericConst):
            return call
        x, indices, *rest = call.args
        extents = np.array([int(extent) for extent in x.ty.shape])
        if name in _OF_ONE_AXIS:
            last = extents[int(call.attrs.axis)] - 1
        else:
            first = int(getattr(call.attrs, "batch_dims", 0))
            last = extents[first : first + int(indices.ty.shape[-1])] - 1
        least = -last - 1 if name in _BELOW_ZERO else np.zeros_like(last)
        dtype = str(indices.ty.dtype)
        inside = relax.op.maximum(indices, relax.const(least.astype(dtype), dtype))
        inside = relax.op.minimum(self.builder_.emit(inside), relax.const(last.astype(dtype), dtype))
        return relax.Call(call.op, [x, self.builder_.emit(inside), *rest], call.attrs, call.ty_args)
