"""Calls of torch operators as data: what a compiled program hands to the packed functions that run them.

A call is a text of JSON that names an operator of ATen and holds the arguments that are no tensors. The text
is data: it is never evaluated, and what it may name is checked where it is run
(`tuner.runtime.callable_operators`). Nothing here needs torch or TVM. Checked in
tests/tuner/graph/test_torch_call.py.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import msgspec

OPERATOR_NAME = "tessel.torch.operator"
"""The packed function that runs an operator: text, operands, then what it gives."""

GRADIENT_NAME = "tessel.torch.operator_gradient"
"""The packed function that runs its backward: text, operands, results' gradients, then an operand's."""

Argument: TypeAlias = Any
"""None, a truth value, a number, a text, a list of arguments, or a dictionary of one key: `tensor` (which
operand), `number` (one that JSON lacks), `complex` (its two parts), `dtype`, `layout`, `memory_format`, or
`device` (the operands')."""


class RecordedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of an operator of ATen within a recorded function; its results are numbered after all before.

    Attributes:
        operator: its name and overload.
        arguments: by position; `tensor` counts what the function is given, then each step's results.
        keywords: by name.
    """

    operator: str
    arguments: tuple[Argument, ...]
    keywords: dict[str, Argument] = msgspec.field(default_factory=dict)


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sequence of operators.

    Attributes:
        steps: in order.
        results: number of each tensor that it gives; None where it gives none.
    """

    steps: tuple[RecordedStep, ...]
    results: tuple[int | None, ...]


class RecordedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A function with a backward of its own (`torch.autograd.Function`), as operators of ATen.

    Attributes:
        forward: takes the arguments.
        backward: takes the arguments, then the gradient of each result of floating point, and gives each
            argument's.
    """

    forward: Recording
    backward: Recording


class OperatorCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of an operator, or of a function that was recorded.

    Attributes:
        operator: its name and overload in ATen, such as `histc.default`; of a function, what it is called.
        arguments: by position.
        keywords: by name.
        results: which of what it gives are wanted, in order.
        complex_operands: operands that are complex, and come as pairs of real numbers in a last axis.
        complex_results: wanted results that are complex, and are given so, by position.
        gradient: whether autograd differentiates it (`autograd`), gives nothing (`none`), or lacks a formula
            for it (`missing`).
        function: what is called in place of an operator.
    """

    operator: str
    arguments: tuple[Argument, ...]
    keywords: dict[str, Argument] = msgspec.field(default_factory=dict)
    results: tuple[int, ...] = (0,)
    complex_operands: tuple[int, ...] = ()
    complex_results: tuple[int, ...] = ()
    gradient: Literal["autograd", "none", "missing"] = "autograd"
    function: RecordedFunction | msgspec.UnsetType = msgspec.UNSET

    @property
    def name(self) -> str:
        """The operator as tables show it, such as `aten.histc`."""
        if self.function is not msgspec.UNSET:
            return self.operator
        return f"aten.{self.operator.removesuffix('.default')}"


class GradientCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of an operator's backward, which runs its forward again.

    Attributes:
        wanted: operand whose gradient it gives.
        given: wanted results whose gradients it is given, by position.
    """

    call: OperatorCall
    wanted: int
    given: tuple[int, ...]


def encode_operator_call(call: OperatorCall | GradientCall) -> str:
    """Return a call as text."""
    return msgspec.json.encode(call, order="sorted").decode()


def decode_operator_call(text: str) -> OperatorCall:
    """Read what `encode_operator_call` wrote of an operator.

    Raises:
        ValueError: the text is no such call.
    """
    return msgspec.json.decode(text, type=OperatorCall)


def decode_gradient_call(text: str) -> GradientCall:
    """Read what `encode_operator_call` wrote of a backward.

    Raises:
        ValueError: the text is no such call.
    """
    return msgspec.json.decode(text, type=GradientCall)


def encode_number(number: complex) -> Argument:
    """Return a number as an argument."""
    if isinstance(number, complex):
        return {"complex": [encode_number(number.real), encode_number(number.imag)]}
    is_plain = not isinstance(number, float) or math.isfinite(number)
    return number if is_plain else {"number": str(number)}
