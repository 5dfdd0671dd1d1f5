"""Tensors cut apart and put together along an axis, also along the one that is split.

A product for query, key and value gives each shard its heads of each; cutting it into the three gives each
shard its part of all, and nothing is exchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Interval, Split
from tuner.shards.rules.rule import Operation, Rule, axis_of, only_split, shape_of
from tuner.shards.writer import Sharded, Value

op = relax.op


def _split(operation: Operation) -> Value:
    tensor, split = operation.tensor(0), only_split(operation)
    axis = axis_of(operation, ndim=len(tensor.shape))
    shapes = [tuple(int(extent) for extent in field.shape) for field in operation.call.ty.fields]
    if axis != split.axis:
        return operation.writer.emit_tuple(
            lambda rank: operation.again(rank, [tensor.parts[rank]]), [split] * len(shapes), shapes
        )
    bounds = [0, *itertools.accumulate(shape[axis] for shape in shapes)]
    fields = [_within(split, first, stop) for first, stop in itertools.pairwise(bounds)]
    return operation.writer.emit_tuple(
        lambda rank: op.split(
            tensor.parts[rank],
            list(itertools.accumulate(field.extents[rank] for field in fields))[:-1],
            axis=axis,
        ),
        fields,
        shapes,
    )


def _within(split: Split, first: int, stop: int) -> Split:
    """Return what each shard holds of a run of the axis, counted from the run's first index."""
    pieces: list[tuple[Interval, ...]] = []
    for piece in split.pieces:
        inside = [(max(start, first), min(start + length, stop)) for start, length in piece]
        pieces.append(tuple((start - first, end - start) for start, end in inside if start < end))
    if any(not piece for piece in pieces):
        raise UnsupportedOperatorError(
            f"a shard holds nothing of the indices {first} to {stop - 1} of axis {split.axis}; split each "
            "section of the axis over all shards"
        )
    return Split(split.axis, tuple(pieces))


def _concat(operation: Operation) -> Value:
    tensors = operation.operands[0]
    if not isinstance(tensors, tuple):
        raise UnsupportedOperatorError("it joins the fields of a tuple that is not written out")
    axis = axis_of(operation, ndim=len(operation.shape), default=0)
    layout, own = _joined(operation, tensors, axis)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [relax.Tuple([tensor.parts[rank] for tensor in own])]),
        layout,
        operation.shape,
    )


def _joined(operation: Operation, tensors: Sequence[Sharded], axis: int) -> tuple[Split, Sequence[Sharded]]:
    """Return the layout of what tensors make when joined, and the tensors as each shard joins them."""
    whole = [tensor for tensor in tensors if tensor.split is None]
    splits = {tensor.split for tensor in tensors if tensor.split is not None}
    (first, *others) = sorted(splits, key=lambda split: (split.axis, split.pieces))
    if first.axis != axis and not others:
        return first, [operation.writer.laid_out(tensor, first) for tensor in tensors]
    if whole or any(split.axis != axis for split in splits):
        raise UnsupportedOperatorError("some of the tensors that it joins are split along its axis alone")
    starts = [0, *itertools.accumulate(tensor.shape[axis] for tensor in tensors)]
    pieces = tuple(
        _merged(
            (start + first, length)
            for start, tensor in zip(starts, tensors, strict=False)
            for first, length in (tensor.split.pieces[rank] if tensor.split is not None else ())
        )
        for rank in range(operation.writer.num_shards)
    )
    return Split(axis, pieces), tensors


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Join intervals that touch, so that equal parts are written in one way."""
    merged: list[Interval] = []
    for start, length in intervals:
        if merged and sum(merged[-1]) == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((start, length))
    return tuple(merged)


def _stack(operation: Operation) -> Value:
    tensors = operation.operands[0]
    if not isinstance(tensors, tuple):
        raise UnsupportedOperatorError("it joins the fields of a tuple that is not written out")
    splits = {tensor.split for tensor in tensors if tensor.split is not None}
    if len(splits) != 1:
        raise UnsupportedOperatorError("the tensors that it joins are split in different ways")
    split = splits.pop()
    own = [operation.writer.laid_out(tensor, split) for tensor in tensors]
    axis = axis_of(operation, ndim=len(shape_of(operation.call)), default=0)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [relax.Tuple([tensor.parts[rank] for tensor in own])]),
        split.moved(split.axis + (axis <= split.axis)),
        operation.shape,
    )


JOINING: Mapping[str, Rule] = {"split": _split, "concat": _concat, "stack": _stack}
