"""Arguments of torch calls as plain data and back, and sequences of operators that take such arguments.

Checked in tests/tuner/backends/torch/test_operator_calls.py and
tests/tuner/frontend/torch/test_own_functions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tuner.runtime.callable_operators import callable_operator
from tuner.runtime.operator_call import Argument, Recording, encode_number

_CONSTANT_KINDS = ("dtype", "layout", "memory_format")


def encode_argument(value: Any, number_of: Callable[[torch.fx.Node], int]) -> Argument:
    """Return an argument of an operator as plain data.

    Args:
        value: of a node of a graph.
        number_of: gives a tensor's number.

    Raises:
        ValueError: it is nothing that a torch call can hold.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | complex):
        return encode_number(value)
    if isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
        return {"tensor": number_of(value)}
    if isinstance(value, list | tuple):
        return [encode_argument(item, number_of) for item in value]
    if isinstance(value, torch.device):
        return {"device": "operands"}
    for kind in (torch.dtype, torch.layout, torch.memory_format):
        if isinstance(value, kind):
            return {kind.__name__: str(value).removeprefix("torch.")}
    raise ValueError(f"an argument of it is a {type(value).__name__}, which a call of torch cannot hold")


def decode_argument(argument: Argument, operands: Sequence[torch.Tensor]) -> Any:
    """Return what an argument stands for.

    Raises:
        ValueError: it is of no known kind.
    """
    if isinstance(argument, list):
        return [decode_argument(item, operands) for item in argument]
    if not isinstance(argument, dict):
        return argument
    ((kind, value),) = argument.items() if len(argument) == 1 else (("", None),)
    if kind == "tensor" and isinstance(value, int) and 0 <= value < len(operands):
        return operands[value]
    if kind == "number" and value in ("inf", "-inf", "nan"):
        return float(value)
    if kind == "complex" and isinstance(value, list) and len(value) == 2:
        return complex(*(decode_argument(part, operands) for part in value))
    if kind == "device" and value == "operands":
        return operands[0].device
    constant = getattr(torch, str(value), None) if kind in _CONSTANT_KINDS else None
    if constant is not None and isinstance(constant, getattr(torch, kind)):
        return constant
    raise ValueError(f"a torch call has the argument {str(argument)[:100]}, which stands for nothing")


def replay(recording: Recording, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return what a sequence of operators gives for tensors.

    Raises:
        ValueError: a torch call may not name an operator of it, or an argument is none.
    """
    values = list(tensors)
    for step in recording.steps:
        arguments = [decode_argument(each, values) for each in step.arguments]
        keywords = {name: decode_argument(each, values) for name, each in step.keywords.items()}
        found = callable_operator(step.operator)(*arguments, **keywords)
        values += found if isinstance(found, list | tuple) else [found]
    return [None if result is None else values[result] for result in recording.results]
