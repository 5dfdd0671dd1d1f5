"""Threads for kernels of plain loops, which no schedule rule takes: TVM would run them on the host.

Scatters, searches and the gradient of a look-up are loops over raw buffers. Each loop nest becomes a launch
of its own. Its outermost loop is shared out among threads where no two of its iterations touch the same
element: TVM says so of a parallel loop, and of others it is proven by TVM's analysis of iterator maps, with
an element that is looked up as an iterator of its own. Any other nest is run by one thread: slower, never
wrong. Checked in tests/tuner/backends/tvm/test_gpu_loops.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import detect_iter_map
from tvm.sym.analyzer import Analyzer
from tvm.sym.iter_affine_map import IterMapLevel

from tuner.graph.relax_types import PrimFunc

_THREADS = 128
"""Of a block; a launch of few iterations has fewer."""

_THREAD_INDEX = 1
"""Kind of an iterator that is a thread's index, as TVM counts the kinds."""


def has_threads(kernel: PrimFunc) -> bool:
    """Say whether any loop of a kernel is bound to a GPU's threads."""
    found: list[Any] = []

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            found.append(loop)

    tvm_ffi.structural_walk(kernel.body, (tirx.For, visit))
    return bool(found)


def share_out(kernel: PrimFunc) -> PrimFunc:
    """Return a kernel whose loop nests, one after the other, are run by a GPU's threads."""
    return kernel.with_body(_bound(kernel.body))


def _bound(statement: Any) -> Any:
    """Return a statement whose outermost loops are bound; blocks around them stay."""
    if isinstance(statement, tirx.For):
        return _launch(statement)
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_bound(each) for each in statement])
    if hasattr(statement, "block"):
        block = statement.block
        inner = type(block)(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            _bound(block.body),
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )
        return type(statement)(statement.iter_values, statement.predicate, inner)
    if isinstance(statement, tirx.AttrStmt):
        return _bound(statement.body)  # a mark of TVM's script builder, which says nothing
    return _by_threads(1, lambda _: statement)


def _launch(loop: tirx.For) -> Any:
    """Return a loop nest as one launch."""
    extent = getattr(loop.extent, "value", None)
    if extent is None or not _is_independent(loop):
        return _by_threads(1, lambda _: loop)

    def iteration(number: Any) -> Any:
        variable = loop.loop_var
        value = tirx.Cast(str(variable.ty.dtype), number) if str(variable.ty.dtype) != "int32" else number
        return _substituted(loop.body, variable, loop.min + value)

    return _by_threads(int(extent), iteration)


def _by_threads(count: int, body_of: Callable[[Any], Any]) -> Any:
    threads = min(_THREADS, count)
    blocks = -(-count // threads)
    block, thread = (tirx.Var(name, "int32") for name in ("block", "thread"))
    number = block * threads + thread
    body = body_of(number)
    if blocks * threads > count:
        body = tirx.IfThenElse(number < count, body, None)
    return _bind(block, blocks, "blockIdx.x", _bind(thread, threads, "threadIdx.x", body))


def _bind(variable: Any, extent: int, tag: str, body: Any) -> Any:
    iterator = tirx.IterVar(None, tirx.Var(tag, "int32"), _THREAD_INDEX, tag)
    return tirx.For(variable, 0, extent, tirx.ForKind.THREAD_BINDING, body, iterator)


def _is_independent(loop: tirx.For) -> bool:
    """Say whether no two iterations of a loop touch an element that one of them writes."""
    stores: list[Any] = []
    loads: list[Any] = []
    own: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, stores.append))
    tvm_ffi.structural_walk(loop.body, (tvm.ir.TensorLoad, loads.append))
    tvm_ffi.structural_walk(loop.body, (tirx.AllocBuffer, lambda each: own.append(each.buffer)))
    shared = [store for store in stores if not any(store.buffer.same_as(buffer) for buffer in own)]
    written = [store.buffer for store in shared]
    read_back = [load for load in loads if any(_buffer(load).same_as(buffer) for buffer in written)]
    if loop.kind == tirx.ForKind.PARALLEL and not read_back:
        return True
    return all(_is_apart(loop, store) for store in shared) and all(
        any(_is_same_element(load, store) for store in shared) for load in read_back
    )


def _is_same_element(load: Any, store: Any) -> bool:
    return _buffer(load).same_as(store.buffer) and all(
        tvm_ffi.structural_equal(first, second)
        for first, second in zip(load.indices, store.indices, strict=True)
    )


def _buffer(load: Any) -> Any:
    return load.buffer if hasattr(load, "buffer") else load.source


def _is_apart(loop: tirx.For, store: Any) -> bool:
    """Say whether a store writes different elements in different iterations, whatever it looks up."""
    shape = [int(extent) for extent in store.buffer.shape if hasattr(extent, "value")]
    extent = int(loop.extent)
    if len(shape) != len(store.buffer.shape) or extent == 1:
        return extent == 1
    unknown: list[tuple[Any, Any]] = []
    indices = [_with_unknown(index, loop.loop_var, unknown) for index in store.indices]
    if len(unknown) > 1 or math.prod(shape) % extent:
        return False
    domain = {loop.loop_var: tvm.ir.Range(0, extent)}
    for variable, _ in unknown:
        domain[variable] = tvm.ir.Range(0, math.prod(shape) // extent)
    analyzer = Analyzer()
    for variable, values in domain.items():
        analyzer.bind(variable, values)
    plain = [analyzer.simplify(index) for index in indices]
    found = detect_iter_map(plain, domain, True, IterMapLevel.Bijective, True)
    return len(found.indices) > 0


def _with_unknown(index: Any, loop_variable: Any, unknown: list[tuple[Any, Any]]) -> Any:
    """Return an index with each thing in it that is not the loop's variable as a variable of its own."""

    def stand_in(part: Any) -> Any:
        for variable, known in unknown:
            if tvm_ffi.structural_equal(known, part):
                return variable
        variable = tirx.Var(f"unknown{len(unknown)}", str(part.ty.dtype))
        unknown.append((variable, part))
        return variable

    looked_up = tvm_ffi.structural_map(index, (tvm.ir.TensorLoad, stand_in))
    variables: list[Any] = []
    tvm_ffi.structural_walk(looked_up, (tirx.Var, variables.append))
    for variable in variables:
        known = variable.same_as(loop_variable) or any(variable.same_as(each) for each, _ in unknown)
        if not known:  # of an inner loop
            looked_up = _substituted(looked_up, variable, stand_in(variable))
    return looked_up


def _substituted(root: Any, variable: Any, value: Any) -> Any:
    return tvm_ffi.structural_map(root, (tirx.Var, lambda each: value if each.same_as(variable) else each))
