"""Interface of a rule: a call of the whole function, its operands over the shards, and a writer.

A rule is asked only where some operand is split; none is partial when it arrives, except for those of
`elementwise.ADDITION`. It raises `UnsupportedOperatorError`, with the reason alone, where it cannot shard the
call; the operator's name and place are added by its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Replicated, Split
from tuner.shards.writer import Sharded, ShardWriter, Value
from tuner.stages.program import Expr


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the whole function.

    Attributes:
        call: the call; its arguments are the whole function's.
        operands: its arguments over the shards; tuples of tensors as tuples, and None for what is no tensor,
            such as a shape.
        writer: where the shards' calls go.
    """

    call: Any
    operands: tuple[Value | None, ...]
    writer: ShardWriter

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole result's shape."""
        return shape_of(self.call)

    def tensor(self, index: int) -> Sharded:
        """Return an operand that is a tensor."""
        operand = self.operands[index]
        if not isinstance(operand, Sharded):
            raise UnsupportedOperatorError(f"its argument {index} is no tensor")
        return operand

    def again(self, rank: int, arguments: Sequence[Expr]) -> Expr:
        """Return the same call of a shard's arguments."""
        return relax.Call(self.call.op, list(arguments), self.call.attrs, self.call.ty_args)


Rule: TypeAlias = Callable[[Operation], Value]
"""Writes an operation for every shard, and says how its result lies."""


def shape_of(value: Expr) -> tuple[int, ...]:
    """Return a tensor's static shape."""
    return tuple(int(extent) for extent in value.ty.shape)


def only_split(operation: Operation) -> Split:
    """Return the split of the first operand, where no other operand is split.

    Raises:
        UnsupportedOperatorError: another is, or this one is not.
    """
    for at, operand in enumerate(operation.operands):
        if isinstance(operand, Sharded) and (operand.split is not None) != (at == 0):
            raise UnsupportedOperatorError(f"its argument {at} is {described(operand)}")
    split = operation.tensor(0).split
    if split is None:
        raise UnsupportedOperatorError("its argument 0 is whole on every shard")
    return split


def described(value: Sharded) -> str:
    """Name a layout in words."""
    if isinstance(value.layout, Replicated):
        return "whole on every shard"
    if isinstance(value.layout, Split):
        return f"split along axis {value.layout.axis}"
    return "not reduced yet"


def axis_of(operation: Operation, *, ndim: int, default: int = -1) -> int:
    """Return the axis that an operator's attribute names, counted from the front."""
    axis = operation.call.attrs.axis
    return (default if axis is None else int(axis)) % ndim
