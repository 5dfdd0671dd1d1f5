"""A call of a torch operator inside a Relax function: what the importer writes, and `torch` alone can run.

What Relax cannot express stays a call of one packed function, which writes its results in place. Its first
argument is a text of JSON that names the operator of ATen and holds the arguments that are no tensors; the
tensors follow. The text is data: it is never evaluated, and what it may name is checked where it is run
(`tuner.runtime.callable_operators`). Nothing here needs torch. Checked in
tests/tuner/graph/test_torch_call.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tuner.runtime.operator_call import (
    GRADIENT_NAME,
    OPERATOR_NAME,
    GradientCall,
    OperatorCall,
    decode_gradient_call,
    decode_operator_call,
    encode_operator_call,
)

LABEL = "torch call"
"""What tables call such a node, and a partition of one."""


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


def write_torch_call(
    what: OperatorCall | GradientCall, operands: Sequence[Any], results: Sequence[Any]
) -> Any:
    """Return the Relax expression of a call; its value is a tensor, or a tuple where it gives several.

    Args:
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


def _packed_name(expression: Any) -> str:
    if not isinstance(expression, relax.Call) or not isinstance(expression.op, tvm.ir.Op):
        return ""
    if expression.op.name != "relax.call_dps_packed":
        return ""
    return str(getattr(expression.args[0], "global_symbol", ""))
