"""Multi-head attention on row-major queries, keys and values, as an untuned TVM kernel.

A partition begins where queries, keys and values are cut into heads, which is before they are split where one
product makes all three, and ends where the heads are one row again: reshaping and transposing, which take a
third of the time of attention over some hundred positions, are all inside, and become addresses. Checked in
tests/tuner/backends/cpu/test_attention.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax
from tvm.relax.dpl import is_op, is_tuple_get_item, wildcard

from tuner.backends.cpu.kernels.attention import AttentionShape, Rows, attention_kernel
from tuner.backends.cpu.kernels.packed_product import LANES
from tuner.backends.kernel_version import CpuKernels
from tuner.backends.library_call import CallReader, read_attention, shape_of
from tuner.backends.tvm.native import replace_function
from tuner.backends.tvm.schedule import as_finished
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.styles import library_rule
from tuner.runtime.library_calls import Attention as AttentionCall
from tuner.targets.target import Target
from tuner.targets.vector_registers import vector_registers

_HEADS_FIRST = (0, 2, 1, 3)
"""Turns (batch, position, head, feature) into (batch, head, position, feature), and back."""


class Attention(CpuKernels):
    """Runs attention of several heads, with what cuts rows into heads and puts them together."""

    name = reference = "attention"
    kernels_version = 4

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes attention with and without a split, a scale and a mask."""
        return library_rule(_PATTERNS, name=self.name)

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function is no such attention."""
        found = _recognise(function)
        if found is None:
            return "it is not attention of float32 from rows of heads to rows of heads"
        if found.shape.depth % LANES:
            return f"its heads do not fill vectors of {LANES}"
        return f"it has fewer than {LANES} keys" if found.shape.keys < LANES else None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as one kernel."""
        for name in functions:
            kernel = _kernel(module[name], vector_registers(target))
            module = replace_function(module, name, kernel)
        return module


@dataclass(frozen=True, slots=True)
class _Found:
    shape: AttentionShape
    operands: tuple[Any, ...]


def _kernel(function: RelaxFunction, registers: int) -> IRModule:
    found = _recognise(function)
    if found is None:
        raise ValueError("the function is not attention; ask `refusal` before lowering")
    fresh = {parameter: relax.Var(parameter.name, parameter.ty) for parameter in function.params}
    builder = relax.BlockBuilder()
    kernel = attention_kernel(replace(found.shape, registers=registers))
    attend = builder.add_func(as_finished(kernel), "attention")
    with builder.function("main", list(fresh.values())):
        with builder.dataflow():
            operands = [fresh.get(operand, operand) for operand in found.operands]
            result = builder.emit_output(relax.call_tir(attend, operands, function.ret_ty))
        builder.emit_func_output(result)
    return builder.get()


def _recognise(function: RelaxFunction) -> _Found | None:
    """Return the attention that a function is from its first operator to its last, or None."""
    reader = CallReader(function)
    merged = reader.call(reader.result, "relax.reshape")
    turned = None if merged is None else _turned(reader, merged.args[0])
    found = None if turned is None else read_attention(reader, turned)
    if found is None:
        return None
    assert isinstance(found.call, AttentionCall)
    sources = [_rows(reader, operand) for operand in found.operands[:3]]
    if None in sources or not found.call.key_transposed or reader.used != reader.bound:
        return None
    cuts, tensors, strides, offsets = zip(*(each for each in sources if each is not None), strict=True)
    (batch, queries, heads, depth), (_, keys, *_), _ = cuts
    if cuts[1:] != ((batch, keys, heads, depth),) * 2:
        return None
    if shape_of(reader.result) != (batch, queries, heads * depth):
        return None
    operands = tuple(dict.fromkeys(tensors))
    mask = found.operands[3] if found.call.has_mask else None
    mask_shape = None if mask is None else (1,) * (4 - len(shape_of(mask))) + shape_of(mask)
    wanted = (batch, heads, queries, keys)
    if mask_shape and any(extent not in (1, full) for extent, full in zip(mask_shape, wanted, strict=True)):
        return None
    query, key, value = (
        Rows(operand=operands.index(tensor), stride=stride, offset=offset)
        for tensor, stride, offset in zip(tensors, strides, offsets, strict=True)
    )
    shape = AttentionShape(
        batch=batch,
        heads=heads,
        depth=depth,
        queries=queries,
        keys=keys,
        scale=found.call.scale,
        operands=tuple(shape_of(operand) for operand in operands),
        rows=(query, key, value),
        mask=None if mask is None else shape_of(mask),
    )
    return _Found(shape, operands if mask is None else (*operands, mask))


def _turned(reader: CallReader, expression: Any) -> Any:
    """Return what is behind a swap of positions and heads, or None."""
    call = reader.call(expression, "relax.permute_dims")
    axes = None if call is None else call.attrs.axes
    return call.args[0] if axes is not None and tuple(map(int, axes)) == _HEADS_FIRST else None


def _rows(reader: CallReader, expression: Any) -> tuple[tuple[int, ...], Any, int, int] | None:
    """Return the shape by heads, the tensor that holds the rows, its stride, and where they begin in it."""
    turned = _turned(reader, expression)
    cut = None if turned is None else reader.call(turned, "relax.reshape")
    if cut is None or len(shape_of(cut.args[0])) != 3:
        return None
    shape, source = shape_of(cut), cut.args[0]
    if shape_of(source) != (*shape[:2], shape[2] * shape[3]):
        return None
    item = reader.values.get(source)
    if not isinstance(item, relax.TupleGetItem):
        return shape, source, shape[2] * shape[3], 0
    reader.used.add(source)
    split = reader.call(item.tuple_value, "relax.split")
    if split is None or int(split.attrs.axis) not in (-1, 2):
        return None
    widths = [int(field.shape[-1]) for field in split.ty.fields]
    return shape, split.args[0], sum(widths), sum(widths[: int(item.index)])


def _patterns() -> Iterator[LabelledPattern]:
    for splits in (True, False):
        for scale in ("", "relax.multiply", "relax.divide"):
            for has_mask in (False, True):
                yield LabelledPattern("attention_of_heads", _pattern(scale, splits=splits, has_mask=has_mask))


def _pattern(scale: str, *, splits: bool, has_mask: bool) -> Any:
    rows = [wildcard(), wildcard(), wildcard()]
    if splits:
        split = is_op("relax.split")(wildcard())
        rows = [is_tuple_get_item(split, index) for index in range(3)]
    query, key, value = (
        is_op("relax.permute_dims")(is_op("relax.reshape")(each, wildcard())) for each in rows
    )
    scores = is_op("relax.matmul")(query, is_op("relax.permute_dims")(key))
    scores = is_op(scale)(scores, wildcard()) if scale else scores
    scores = is_op("relax.add")(scores, wildcard()) if has_mask else scores
    mixed = is_op("relax.matmul")(is_op("relax.nn.softmax")(scores), value)
    return is_op("relax.reshape")(is_op("relax.permute_dims")(mixed), wildcard())


_PATTERNS = tuple(_patterns())
