"""One call of an ATen operator, as a converter sees it.

Arguments are found by the names of the operator's schema, with its defaults, so that it does not matter how
an exported program passes them. What a converter gives must have the type and the shape that `torch.export`
noted for the call: the importer compares them. Operands are promoted to a common type before TVM sees them,
since its operators take two tensors of one type only. Checked by every test in
tests/tuner/frontend/converters/.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
import tvm
from tvm import relax

from tuner.frontend.emission import PathBuilder

FxNode: TypeAlias = Any
"""A `torch.fx.Node`; the declared types of its arguments are all that an argument can be."""

Expr: TypeAlias = Any
"""An expression of Relax; TVM ships no types."""

_HALVES = ("float16", "bfloat16")

_NUMBER_ERROR = 1e-3
"""Relative error from which a number is not held by a type; float16's own is half of it."""


class ImporterView(Protocol):
    """What a converter sees of the importer.

    Attributes:
        builder: emits into the function being built.
        padding_rows: row of each table that its look-ups give no gradient; converters add to it.
    """

    builder: PathBuilder
    padding_rows: dict[Any, int]

    @property
    def env(self) -> Mapping[Any, Any]:
        """What each node that was converted became."""
        ...

    def known(self, node: FxNode) -> torch.Tensor | None:
        """Return what a node gives if that depends on no input and no weight."""
        ...


class Call:
    """A node of an exported program that calls an operator.

    Attributes:
        importer: what converts the program.
    """

    def __init__(self, node: FxNode, importer: ImporterView) -> None:
        self.node = node
        self.importer = importer
        self._given = _arguments(node)

    def __getitem__(self, name: str) -> Any:
        """Return an argument by name: expressions in place of nodes, all else as it is."""
        return self._resolved(self._given[name])

    def given(self, name: str) -> Any:
        """Return an argument as it stands in the program, with nodes in it."""
        return self._given[name]

    def has(self, name: str) -> bool:
        """Say whether the operator has such an argument, and it is not None here."""
        return self._given.get(name) is not None

    def known(self, name: str) -> torch.Tensor | None:
        """Return what an argument holds if that depends on no input and no weight."""
        value = self._given[name]
        return self.importer.known(value) if isinstance(value, torch.fx.Node) else None

    def meta(self, name: str) -> Any:
        """Return what `torch.export` noted of an argument: a tensor without values, or the number itself."""
        value = self._given[name]
        return value.meta["val"] if isinstance(value, torch.fx.Node) else value

    @property
    def results(self) -> Sequence[torch.Tensor]:
        """What `torch.export` noted of each tensor that the call gives."""
        value = self.node.meta["val"]
        return value if isinstance(value, list | tuple) else (value,)

    @property
    def names(self) -> Collection[str]:
        """Names of the operator's arguments."""
        return self._given.keys()

    @property
    def used_results(self) -> frozenset[int]:
        """Which of several results something reads."""
        picked = [user for user in self.node.users if user.target is operator.getitem and user.users]
        return frozenset(int(user.args[1]) for user in picked)

    @property
    def dtype(self) -> str:
        """Type of the first result."""
        return dtype_name(self.results[0].dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(self.results[0].shape)

    def emit(self, expression: Expr) -> Expr:
        """Bind an expression and return its variable."""
        return self.importer.builder.emit(expression)

    def cast(self, value: Expr | float, dtype: str) -> Expr:
        """Return a tensor or a number in a type; truth values are what differs from zero."""
        if isinstance(value, bool | int | float):
            return relax.const(np.asarray(value).astype(dtype), dtype)
        if dtype_of(value) == dtype:
            return value
        if is_constant(value) and "bfloat16" not in (dtype, dtype_of(value)):
            return relax.const(value.value.numpy().astype(dtype), dtype)
        if dtype == "bool":
            return self.emit(relax.op.not_equal(value, relax.const(0, dtype_of(value))))
        return self.emit(relax.op.astype(value, dtype))

    def operand(self, name: str, dtype: str | None = None) -> Expr:
        """Return an argument, a tensor or a number, in a type; that of the result by default."""
        return self.cast(self[name], dtype or self.dtype)

    def working_type(self, *names: str) -> str:
        """Return the type that a result is computed in, of operands of which some may be numbers.

        torch computes halves with numbers in float32; that matters where a half does not hold the number.
        """
        dtype = self.dtype
        numbers = [self[name] for name in names if isinstance(self._given[name], int | float)]
        return "float32" if dtype in _HALVES and not all(map(_fits_half, numbers)) else dtype

    def reshaped(self, value: Expr, shape: Sequence[int]) -> Expr:
        """Return a tensor in another shape."""
        if shape_of(value) == tuple(shape):
            return value
        return self.emit(relax.op.reshape(value, list(shape)))

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.importer.env[value]
        if isinstance(value, list | tuple):
            return [self._resolved(item) for item in value]
        return value


Converter: TypeAlias = Callable[[Call], Any]
"""Emits what a call computes; gives a tensor, or a list of what the call gives."""


def constant(values: np.ndarray) -> Expr:
    """Return an array as a tensor that is known; without its type, TVM makes 32 bits of 64."""
    return relax.const(values, str(values.dtype))


def is_constant(value: Expr) -> bool:
    """Say whether a tensor is known; its `value` is what it holds."""
    return isinstance(value, tvm.ir.expr.Constant)


def dtype_name(dtype: torch.dtype) -> str:
    """Return TVM's name of a type of torch."""
    return str(dtype).removeprefix("torch.")


def dtype_of(value: Expr) -> str:
    """Return the type of a tensor's elements."""
    return str(value.ty.dtype.dtype)


def shape_of(value: Expr) -> tuple[int, ...]:
    """Return a tensor's extents."""
    return tuple(int(extent) for extent in value.ty.shape)


def rank_of(value: Expr) -> int:
    """Return the number of a tensor's axes."""
    return len(value.ty.shape)


def axes_of(given: int | Sequence[int] | None, rank: int) -> list[int]:
    """Return axes counted from the first, in order; all of them for None, or for none."""
    if given is None or (not isinstance(given, int) and len(given) == 0):
        return list(range(rank))
    axes = [given] if isinstance(given, int) else given
    return sorted(axis % max(rank, 1) for axis in axes)


def size_of(value: Expr) -> int:
    """Return the number of a tensor's elements."""
    return math.prod(shape_of(value))


def _fits_half(number: float) -> bool:
    with np.errstate(over="ignore"):
        held = float(np.float16(number))
    return held == number or abs(held - number) <= _NUMBER_ERROR * abs(number)


def _arguments(node: FxNode) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args) and not argument.kwarg_only:
            given[argument.name] = node.args[index]
        elif argument.name in node.kwargs:
            given[argument.name] = node.kwargs[argument.name]
        else:
            given[argument.name] = argument.default_value if argument.has_default_value() else None
    return given
