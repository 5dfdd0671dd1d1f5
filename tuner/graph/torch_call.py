"""A call of a torch operator inside a Relax function: what the importer writes, and `torch` alone can run.

What Relax cannot express stays a call of one packed function, which writes its results in place. Its first
argument is a text of JSON that names the operator of ATen and holds the arguments that are no tensors; the
tensors follow. The text is data: it is never evaluated, and what it may name is checked where it is run
(`tuner.frontend.torch.callable_operators`). Nothing here needs torch. Checked in
tests/tuner/graph/test_torch_call.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import tvm
from tvm import relax

OPERATOR_NAME = "tessel.torch.operator"
"""The packed function that runs an operator: text, operands, then what it gives."""

GRADIENT_NAME = "tessel.torch.operator_gradient"
"""The packed function that runs its backward: text, operands, results' gradients, then an operand's."""

LABEL = "torch call"
"""What tables call such a node, and a partition of one."""

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
        call: the forward.
        wanted: operand whose gradient it gives.
        given: wanted results whose gradients it is given, by position.
    """

    call: OperatorCall
    wanted: int
    given: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TorchCall:
    """A call of torch in a Relax function: what is called, and the expressions that it reads, in order."""

    what: OperatorCall | GradientCall
    operands: tuple[Any, ...]

    @property
    def name(self) -> str:
        """What tables call it, such as `torch call aten.histc`."""
        if isinstance(self.what, GradientCall):
            return f"{LABEL} {self.what.call.name} gradient"
        return f"{LABEL} {self.what.name}"


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


def write_torch_call(
    what: OperatorCall | GradientCall, operands: Sequence[Any], results: Sequence[Any]
) -> Any:
    """Return the Relax expression of a call; its value is a tensor, or a tuple where it gives several.

    Args:
        what: is called.
        operands: expressions that it reads.
        results: type of each tensor that it gives.
    """
    name = OPERATOR_NAME if isinstance(what, OperatorCall) else GRADIENT_NAME
    text = tvm.ir.StringImm(encode_operator_call(what))
    out = results[0] if len(results) == 1 else list(results)
    return relax.call_dps_packed(name, [text, *operands], out_ty=out)


def read_torch_call(expression: Any) -> TorchCall | None:
    """Return the torch call that a Relax expression is, or None."""
    name = _packed_name(expression)
    if name not in (OPERATOR_NAME, GRADIENT_NAME):
        return None
    text, *operands = expression.args[1].fields
    decode = decode_operator_call if name == OPERATOR_NAME else decode_gradient_call
    return TorchCall(decode(str(text.value)), tuple(operands))


def torch_calls_in(function: Any) -> Iterator[TorchCall]:
    """Give the torch calls among the bindings of a Relax function, in order; none for other functions."""
    if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
        return
    for block in function.body.blocks:
        for binding in block.bindings:
            found = read_torch_call(getattr(binding, "value", None))
            if found is not None:
                yield found


def encode_number(number: complex) -> Argument:
    """Return a number as an argument."""
    if isinstance(number, complex):
        return {"complex": [encode_number(number.real), encode_number(number.imag)]}
    is_plain = not isinstance(number, float) or math.isfinite(number)
    return number if is_plain else {"number": str(number)}


def _packed_name(expression: Any) -> str:
    if not isinstance(expression, relax.Call) or not isinstance(expression.op, tvm.ir.Op):
        return ""
    if expression.op.name != "relax.call_dps_packed":
        return ""
    return str(getattr(expression.args[0], "global_symbol", ""))
