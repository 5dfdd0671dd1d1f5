"""Run torch calls: the two packed functions of `tuner.graph.torch_call`.

A call names an operator of ATen; what it may name is `tuner.runtime.callable_operators`. Its backward
runs the forward again under autograd, so that nothing is kept between the two. A function with a backward of
its own comes as two sequences of such operators, its forward and its backward. Only
`tuner.backends.torch.operators` imports this module, and only where torch is installed. Checked in
tests/tuner/backends/torch/test_operator_calls.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
import tvm_ffi

from tuner.runtime.call_arguments import decode_argument, replay
from tuner.runtime.callable_operators import callable_operator
from tuner.runtime.operator_call import (
    GRADIENT_NAME,
    OPERATOR_NAME,
    Argument,
    GradientCall,
    OperatorCall,
    decode_gradient_call,
    decode_operator_call,
)
from tuner.runtime.torch_views import view_of

_operator_call = functools.lru_cache(maxsize=4096)(decode_operator_call)
_gradient_call = functools.lru_cache(maxsize=4096)(decode_gradient_call)


@tvm_ffi.register_global_func(OPERATOR_NAME, override=True)
def run_operator(text: Any, *tensors: Any) -> None:
    """Run an operator on operands; the last tensors receive what it gives."""
    call = _operator_call(str(text))
    given = [view_of(tensor) for tensor in tensors]
    num_operands = _num_operands(call)
    with torch.inference_mode():
        found = compute(call, given[:num_operands])
        for value, result in zip(found, given[num_operands:], strict=True):
            _write(call, value, result)


@tvm_ffi.register_global_func(GRADIENT_NAME, override=True)
def run_gradient(text: Any, *tensors: Any) -> None:
    """Run an operator's backward on operands and gradients; the last tensor receives one operand's."""
    gradient = _gradient_call(str(text))
    *given, receiver = (view_of(tensor) for tensor in tensors)
    _write(gradient.call, compute_gradient(gradient, given), receiver)


def compute_gradient(gradient: GradientCall, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the wanted operand's gradient; zeros where nothing flows to it.

    Args:
        gradient: which of which operator.
        given: the operands, then the gradients of results.
    """
    num_operands = _num_operands(gradient.call)
    operands, result_gradients = list(given[:num_operands]), list(given[num_operands:])
    if gradient.call.function is not msgspec.UNSET:
        value = _recorded_gradient(gradient.call, gradient.wanted, operands, result_gradients)
    else:
        value = _autograd_gradient(gradient, operands, result_gradients)
    return torch.zeros_like(operands[gradient.wanted]) if value is None else value


def _autograd_gradient(
    gradient: GradientCall, operands: list[torch.Tensor], result_gradients: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """Return the wanted operand's gradient, or None where nothing flows to it."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        operands[gradient.wanted] = leaf = operands[gradient.wanted].detach().requires_grad_()
        found = compute(gradient.call, operands)
        arriving = zip(gradient.given, result_gradients, strict=True)
        flowing = [(found[index], each) for index, each in arriving if found[index].requires_grad]
        if flowing:
            results, gradients = zip(*flowing, strict=True)
            (value,) = torch.autograd.grad(results, [leaf], gradients, allow_unused=True)
            return value
    return None


def _recorded_gradient(
    call: OperatorCall, wanted: int, operands: list[torch.Tensor], result_gradients: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """Return an operand's gradient by a function's own backward: the sum over the arguments that it is."""
    assert call.function is not msgspec.UNSET
    arguments = [decode_argument(each, operands) for each in call.arguments]
    with torch.inference_mode():
        found = replay(call.function.backward, [*arguments, *result_gradients])
        own = {"tensor": wanted}
        flowing = [
            each for each, of in zip(found, call.arguments, strict=True) if each is not None and of == own
        ]
        return sum(flowing[1:], flowing[0]) if flowing else None


def compute(call: OperatorCall, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the wanted results of an operator; complex numbers go in and come out as pairs of real ones.

    Raises:
        ValueError: a torch call may not name the operator, or an argument is none.
    """
    taken = [
        torch.view_as_complex(operand) if index in call.complex_operands else operand
        for index, operand in enumerate(operands)
    ]
    arguments = [decode_argument(each, taken) for each in call.arguments]
    if call.function is not msgspec.UNSET:
        made = replay(call.function.forward, arguments)
        return [value for value in made if value is not None]
    keywords = {name: decode_argument(each, taken) for name, each in call.keywords.items()}
    found = callable_operator(call.operator)(*arguments, **keywords)
    every = found if isinstance(found, tuple) else (found,)
    return [
        torch.view_as_real(every[result].resolve_conj()) if index in call.complex_results else every[result]
        for index, result in enumerate(call.results)
    ]


def _write(call: OperatorCall, value: torch.Tensor, receiver: torch.Tensor) -> None:
    """Copy a value to where it is wanted.

    Raises:
        ValueError: it has another type or shape than the program was built for.
    """
    if value.dtype != receiver.dtype or value.shape != receiver.shape:
        raise ValueError(
            f"torch call {call.name} gives {value.dtype}{tuple(value.shape)}, but the program was imported "
            f"for {receiver.dtype}{tuple(receiver.shape)}; import it again with this version of torch"
        )
    receiver.copy_(value)


def _num_operands(call: OperatorCall) -> int:
    return 1 + max(_tensors_in([*call.arguments, *call.keywords.values()]), default=-1)


def _tensors_in(arguments: Sequence[Argument]) -> list[int]:
    found: list[int] = []
    for argument in arguments:
        if isinstance(argument, list):
            found += _tensors_in(argument)
        elif isinstance(argument, dict) and isinstance(argument.get("tensor"), int):
            found.append(argument["tensor"])
    return found
