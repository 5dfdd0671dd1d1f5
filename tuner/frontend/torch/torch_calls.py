"""Keep an operator that has no converter as a call of torch (`tuner.graph.torch_call`).

Only operators of ATen that compute tensors from tensors can be kept so, and functions with a backward of
their own that were recorded as such (`own_functions`); a custom operator, or one that draws random numbers,
is refused by name. Checked in tests/tuner/frontend/torch/test_torch_calls.py.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

import msgspec
import torch
from torch.utils import _pytree as pytree
from tvm import relax

from tuner.frontend.converters.call import ImporterView, dtype_name
from tuner.frontend.torch.own_functions import own_function
from tuner.graph.torch_call import write_torch_call
from tuner.runtime.call_arguments import encode_argument
from tuner.runtime.callable_operators import callable_operator
from tuner.runtime.operator_call import OperatorCall

_HELD = frozenset(
    getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex64", "complex128"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    )
)
"""Types of tensors that both torch and TVM hold."""


def emit_torch_call(node: torch.fx.Node, importer: ImporterView) -> Any:
    """Emit a node as a call of torch, and return what stands for its value: a tensor, or a list of them.

    Raises:
        ValueError: torch calls cannot express it; says why.
    """
    target: Any = node.target
    own = own_function(target)
    if own is None and (not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten"):
        raise ValueError("only operators of ATen can stay calls of torch")
    name = own.name if own is not None else target.__name__
    if own is None:
        callable_operator(name)
    noted: Any = node.meta.get("val")
    is_tuple = isinstance(noted, list | tuple)
    wanted = (0,) if not is_tuple else _wanted(node) if own is None else tuple(range(len(noted)))
    results = [_held(noted[index] if is_tuple else noted) for index in wanted]
    operands: list[torch.fx.Node] = []

    def number_of(operand: torch.fx.Node) -> int:
        if operand not in operands:
            operands.append(operand)
        return operands.index(operand)

    arguments = tuple(encode_argument(each, number_of) for each in node.args)
    keywords = {str(key): encode_argument(each, number_of) for key, each in node.kwargs.items()}
    values = [_held(operand.meta.get("val")) for operand in operands]
    if not operands:
        raise ValueError("it takes no tensor")
    call = OperatorCall(
        operator=name,
        arguments=arguments,
        keywords=keywords,
        results=wanted,
        complex_operands=tuple(index for index, value in enumerate(values) if value.is_complex()),
        complex_results=tuple(index for index, value in enumerate(results) if value.is_complex()),
        gradient=_gradient(node) if own is None else "autograd",
        function=msgspec.UNSET if own is None else own.recorded,
    )
    expressions = [importer.env[operand] for operand in operands]
    types = [_type(value) for value in results]
    made = importer.builder.emit(write_torch_call(call, expressions, types))
    if not is_tuple:
        return made
    fields: dict[int, Any] = {wanted[0]: made}
    if len(wanted) > 1:
        fields = {
            result: importer.builder.emit(relax.TupleGetItem(made, index))
            for index, result in enumerate(wanted)
        }
    return [fields.get(index) for index in range(len(noted))]


def _wanted(node: torch.fx.Node) -> tuple[int, ...]:
    """Return which of several results something reads; the first where nothing does."""
    read = {int(user.args[1]) for user in node.users if user.target is operator.getitem}  # type: ignore[arg-type]  # an index
    return tuple(sorted(read)) or (0,)


def _held(value: Any) -> torch.Tensor:
    """Return a noted value, which must be a dense tensor of a fixed shape and of a type that TVM holds."""
    if not isinstance(value, torch.Tensor):
        raise ValueError("it gives or takes something that is no tensor")
    if value.dtype not in _HELD or value.layout is not torch.strided:
        raise ValueError(f"it has a tensor of type {value.dtype} and layout {value.layout}")
    if not all(isinstance(extent, int) for extent in value.shape):
        raise ValueError("its shape depends on values that are known only when the model runs")
    return value


def _type(value: torch.Tensor) -> Any:
    real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return relax.TensorType(list(real.shape), dtype_name(real.dtype))


def _gradient(node: torch.fx.Node) -> Literal["autograd", "none", "missing"]:
    """Try whether autograd differentiates an operator, on tensors that have shapes and no values."""
    leaves: list[torch.Tensor] = []
    arguments, keywords = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda each: _stand_in(each.meta["val"], leaves)
    )
    keywords = {key: "meta" if isinstance(value, torch.device) else value for key, value in keywords.items()}
    try:
        with torch.enable_grad():
            found = node.target(*arguments, **keywords)  # type: ignore[operator]  # an operator
            results = [each for each in pytree.tree_leaves(found) if each.requires_grad]
            if not results:
                return "none"
            gradients = [torch.empty_like(result) for result in results]
            torch.autograd.grad(results, leaves, gradients, allow_unused=True)
    except (NotImplementedError, RuntimeError) as error:
        return "missing" if _says_no_formula(error) else "autograd"
    return "autograd"


def _says_no_formula(error: Exception) -> bool:
    """Say whether autograd lacks a formula; other errors are of operators that need values."""
    text = str(error)
    return "derivative for" in text and "not implemented" in text


def _stand_in(value: torch.Tensor, leaves: list[torch.Tensor]) -> torch.Tensor:
    stand_in = torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
    if stand_in.is_floating_point() or stand_in.is_complex():
        leaves.append(stand_in.requires_grad_())
    return stand_in
