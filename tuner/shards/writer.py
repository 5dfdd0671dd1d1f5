"""Write all shards' programs side by side, as the rules of operators ask for it.

A value of the whole function is, on the shards, a `Sharded`: a layout and an expression for each shard. Rules
take such values and emit others (`ShardWriter.emit`); where they need the whole of a partial value they ask
for it (`ShardWriter.reduced`), which writes one collective, however often it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.interface import Offset
from tuner.shards.layouts import Layout, Partial, Reduction, Replicated, Split, take_shard
from tuner.stages.program import Binding, Expr, Var, variables_of


@dataclass(frozen=True, slots=True)
class Sharded:
    """A tensor over the shards.

    Attributes:
        shape: of the whole tensor.
        parts: each shard's expression: a variable or a constant.
    """

    layout: Layout
    shape: tuple[int, ...]
    parts: tuple[Expr, ...]

    @property
    def dtype(self) -> str:
        """The type of its elements."""
        return str(self.parts[0].ty.dtype)

    @property
    def split(self) -> Split | None:
        """Its layout where that is a split."""
        return self.layout if isinstance(self.layout, Split) else None


Value: TypeAlias = "Sharded | tuple[Sharded, ...]"
"""A tensor or the fields of a tuple."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """A collective: each shard's term, and the variable that holds the whole afterwards on each."""

    kind: Reduction
    terms: tuple[Var, ...]
    results: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: each shard's bindings in order, and all collectives in order."""

    bindings: tuple[tuple[Binding, ...], ...]
    reductions: tuple[Reduce, ...]
    offsets: tuple[tuple[Offset, tuple[Var, ...]], ...]


class ShardWriter:
    """Collects the bindings of every shard, and the collectives between them."""

    def __init__(self, num_shards: int) -> None:
        self.num_shards = num_shards
        self._builder: Any = relax.BlockBuilder()
        self._bindings: list[list[Binding]] = [[] for _ in range(num_shards)]
        self._whole: dict[Var, Sharded] = {}
        self._reductions: list[Reduce] = []
        self._offsets: dict[tuple[tuple[int, ...], str], tuple[Offset, tuple[Var, ...]]] = {}

    def emit(self, make: Callable[[int], Expr], layout: Layout, shape: Sequence[int]) -> Sharded:
        """Write an expression for each shard; it may hold others inside."""
        parts = tuple(self._bound(rank, make(rank)) for rank in range(self.num_shards))
        return Sharded(layout, tuple(int(extent) for extent in shape), parts)

    def emit_tuple(
        self, make: Callable[[int], Expr], layouts: Sequence[Layout], shapes: Sequence[Sequence[int]]
    ) -> tuple[Sharded, ...]:
        """Write an expression that gives a tuple for each shard, and take its fields."""
        tuples = [self._bound(rank, make(rank)) for rank in range(self.num_shards)]
        fields = []
        for index, (layout, shape) in enumerate(zip(layouts, shapes, strict=True)):
            parts = tuple(
                self._bound(rank, relax.TupleGetItem(whole, index)) for rank, whole in enumerate(tuples)
            )
            fields.append(Sharded(layout, tuple(shape), parts))
        return tuple(fields)

    def reduced(self, value: Sharded) -> Sharded:
        """Return a value that is not partial: itself, or what a collective makes of its terms."""
        if not isinstance(value.layout, Partial):
            return value
        key = value.parts[0]
        if key not in self._whole:
            results = tuple(relax.Var("reduced", part.ty) for part in value.parts)
            self._reductions.append(Reduce(value.layout.reduction, value.parts, results))
            self._whole[key] = Sharded(Replicated(), value.shape, results)
        return self._whole[key]

    def is_reduced(self, value: Sharded) -> bool:
        """Say whether the whole of a partial value is there already."""
        return value.parts[0] in self._whole

    def laid_out(self, value: Sharded, layout: Layout) -> Sharded:
        """Return a value in a layout that costs no communication, or the collective that it is partial for.

        Raises:
            UnsupportedOperatorError: the value is split in another way.
        """
        value = self.reduced(value)
        if value.layout == layout:
            return value
        if isinstance(value.layout, Replicated) and isinstance(layout, Split):
            return self.emit(lambda rank: _sliced(value.parts[rank], layout, rank), layout, value.shape)
        raise UnsupportedOperatorError(f"a tensor {value.layout} would have to be exchanged to be {layout}")

    def gathered(self, value: Sharded) -> Sharded:
        """Return the whole of a tensor on every shard.

        A split one is summed, with each shard's part among zeros: parts of unequal extents need no collective
        of their own, for twice the bytes of a ring's all-gather.
        """
        split = value.split
        if split is None:
            return self.reduced(value)
        terms = self.emit(
            lambda rank: _among_zeros(value.parts[rank], split, value.shape, rank),
            Partial("sum"),
            value.shape,
        )
        return self.reduced(terms)

    def offset(self, layout: Split, dtype: str) -> Sharded:
        """Return the index at which each shard's part of an axis begins, without axes.

        Raises:
            UnsupportedOperatorError: a shard holds several intervals.
        """
        starts = layout.starts
        if starts is None:
            raise UnsupportedOperatorError("a shard holds several intervals of the axis that is looked up")
        key = starts, dtype
        if key not in self._offsets:
            offset = Offset(name=f"offset.{len(self._offsets)}", dtype=dtype, values=starts)
            variables = tuple(
                relax.Var(offset.name, relax.TensorType((), dtype)) for _ in range(self.num_shards)
            )
            self._offsets[key] = offset, variables
        return Sharded(Replicated(), (), self._offsets[key][1])

    def finish(self) -> Written:
        """Return all that was written."""
        bindings = tuple(map(tuple, self._bindings))
        return Written(bindings, tuple(self._reductions), tuple(self._offsets.values()))

    def _bound(self, rank: int, expression: Expr) -> Expr:
        """Bind an expression on a shard, and those inside it first; what is bound already stays."""
        flat = self._flat(rank, expression)
        if isinstance(flat, relax.Var | tvm.ir.expr.Constant):
            return flat
        value = self._builder.normalize(flat)
        variable = relax.Var("value", value.ty)
        self._bindings[rank].append(Binding(variable, value, variables_of(value)))
        return variable

    def _flat(self, rank: int, expression: Expr) -> Expr:
        if isinstance(expression, relax.Tuple):
            return relax.Tuple([self._inner(rank, field) for field in expression.fields])
        if isinstance(expression, relax.TupleGetItem):
            return relax.TupleGetItem(self._inner(rank, expression.tuple_value), expression.index)
        if not isinstance(expression, relax.Call):
            return expression
        arguments = [self._inner(rank, argument) for argument in expression.args]
        return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)

    def _inner(self, rank: int, expression: Expr) -> Expr:
        if isinstance(expression, relax.Call | relax.TupleGetItem):
            return self._bound(rank, expression)
        return self._flat(rank, expression)


def constant(value: float, dtype: str) -> Expr:
    """Return a number without axes."""
    return relax.const(value, dtype)


def sharded_constant(value: Any, num_shards: int) -> Sharded:
    """Return a constant of the whole function, the same on every shard."""
    shape = tuple(int(extent) for extent in value.ty.shape)
    return Sharded(Replicated(), shape, (value,) * num_shards)


def _sliced(part: Expr, layout: Split, rank: int) -> Expr:
    """Take a shard's part of a tensor that it holds whole."""
    if isinstance(part, tvm.ir.expr.Constant):
        values = take_shard(part.value.numpy(), layout, rank)
        return relax.const(np.ascontiguousarray(values), str(part.ty.dtype))
    runs = [
        relax.op.strided_slice(part, [layout.axis], [first], [first + length])
        for first, length in layout.pieces[rank]
    ]
    return runs[0] if len(runs) == 1 else relax.op.concat(runs, axis=layout.axis)


def _among_zeros(part: Expr, layout: Split, shape: Sequence[int], rank: int) -> Expr:
    """Put a shard's part where it stands in the whole, and zeros elsewhere."""
    axis, dtype = layout.axis, str(part.ty.dtype)
    runs: list[Expr] = []
    done = held = 0
    for first, length in (*layout.pieces[rank], (layout.extent, 0)):
        if first > done:
            runs.append(relax.op.zeros((*shape[:axis], first - done, *shape[axis + 1 :]), dtype))
        if length:
            runs.append(relax.op.strided_slice(part, [axis], [held], [held + length]))
        done, held = first + length, held + length
    return relax.op.concat(runs, axis=axis)
