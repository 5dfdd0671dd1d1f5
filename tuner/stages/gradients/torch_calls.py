"""The gradient of a torch call: another one, which runs the operator's backward under torch's autograd.

It runs the forward again, so a forward saves the call's operands and nothing else. Each operand of floating
point has a call of its own: what gives the gradients of inputs and of weights can then be run apart. What
autograd has no formula for is refused by name. Checked against torch's own gradients in
tests/tuner/stages/gradients/test_torch_calls.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.graph.torch_call import TorchCall, write_torch_call
from tuner.runtime.operator_call import GradientCall, OperatorCall
from tuner.stages.program import Expr, Var, is_differentiable


def torch_call_gradient(
    result: Var, call: Any, found: TorchCall, gradient: Expr, builder: Any
) -> Sequence[Expr | None]:
    """Give the gradient of both arguments, the function and what it is given; see `gradient_of`.

    Args:
        result: what the call is bound to.
        found: what it calls.
        gradient: that of the result, a tuple where it has several.
        builder: emits what the gradients read.

    Raises:
        UnsupportedOperatorError: autograd has no formula for it, or it is a gradient itself.
    """
    if not isinstance(found.what, OperatorCall) or found.what.gradient == "missing":
        raise UnsupportedOperatorError(
            f"{found.name}, which computes {result.name!r}, has no gradient under torch either, so the model "
            "cannot be trained in stages; tune it for inference, or write that line in other operators"
        )
    wanted = tuple(
        index
        for index, operand in enumerate(found.operands)
        if isinstance(operand, relax.Var) and is_differentiable(operand)
    )
    is_tuple = isinstance(result.ty, relax.TupleType)
    types = result.ty.fields if is_tuple else [result.ty]
    given = tuple(index for index, type_ in enumerate(types) if "float" in str(type_.dtype))
    if found.what.gradient == "none" or not wanted or not given:
        return None, None
    fields = [_field(gradient, index) for index in given] if is_tuple else [gradient]
    arriving = [_emitted(field, builder) for field in fields]
    # The text comes before the operands; what is no variable of floating point takes no gradient.
    parts: list[Expr] = [call.args[1].fields[0], *found.operands]
    for index in wanted:
        what = GradientCall(call=found.what, wanted=index, given=given)
        read = [*found.operands, *arriving]
        parts[1 + index] = builder.emit(write_torch_call(what, read, [found.operands[index].ty]))
    return None, relax.Tuple(parts)


def _field(gradient: Expr, index: int) -> Expr:
    return (
        gradient.fields[index] if isinstance(gradient, relax.Tuple) else relax.TupleGetItem(gradient, index)
    )


def _emitted(expression: Expr, builder: Any) -> Expr:
    return expression if isinstance(expression, relax.Var) else builder.emit(expression)
