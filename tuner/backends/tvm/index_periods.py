"""Indices that repeat along a loop, beside branches: what LLVM compiles wrongly for some processors.

A reshape makes indices such as `i % 8`, a padding makes branches. LLVM's loop vectoriser takes a masked load
of `x[i % 8 - 4]` in a loop over sixteen `i` for one of sixteen neighbours, and reads what lies behind `x`
(seen with LLVM's tuning for Zen 4; other processors get other vector widths, and so other code). In a loop
that is no longer than the period there is no remainder left to get wrong, and the code is faster too.
Checked in tests/tuner/backends/tvm/test_index_periods.py.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym.analyzer import Analyzer


def has_branches(block: Any) -> bool:
    """Say whether a block computes different things for different indices."""
    found = []

    def visit(call: Any) -> None:
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "prim.if_then_else":
            found.append(call)

    tvm_ffi.structural_walk(block.body, (tvm.ir.Call, visit))
    return bool(found)


def index_periods(block: Any) -> tuple[int, ...]:
    """Return the powers of two at which a block's indices repeat along its last axis, ascending."""
    if not len(block.iter_vars):
        return ()
    analyzer = Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    last = block.iter_vars[-1].var
    found: set[int] = set()

    def visit(division: Any) -> None:
        if isinstance(division.b, tirx.IntImm) and _reads(analyzer.simplify(division.a), last):
            found.add(int(division.b.value))

    for kind in (tirx.FloorMod, tirx.FloorDiv):
        tvm_ffi.structural_walk(block.body, (kind, visit))
    extent = int(block.iter_vars[-1].dom.extent)
    return tuple(sorted(period for period in found if 1 < period < extent and period & (period - 1) == 0))


def _reads(expression: Any, variable: Any) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(expression, (tirx.Var, lambda each: found.append(each.same_as(variable))))
    return any(found)
