"""A function of a stage as torch runs it, operator by operator: TVM builds nothing, and nothing is lowered.

The function's bindings become a list of calls of torch once, when the machine is made; a run goes through the
list and forgets each value after its last reader. Calls of torch that an importer left in the program run as
they stand. Checked in tests/tuner/programs/test_torch_machine.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.torch.arrays import as_tensor
from tuner.graph.relax_types import IRModule
from tuner.graph.torch_call import read_torch_call
from tuner.programs.step_results import Tensors
from tuner.programs.torch_operators import torch_operator
from tuner.runtime.operator_call import OperatorCall
from tuner.runtime.torch_operator_calls import compute, compute_gradient
from tuner.stages import StageFunction
from tuner.stages.program import is_tensor, variables_of

_CREATED = ("zeros", "ones", "full", "arange")
"""Operators that read no tensor, and make theirs of nothing."""


class TorchMachine:
    """A function of a stage, which takes and returns torch tensors by name; same interface as `Machine`.

    Args:
        function: is run.
        device: where, as torch calls it.

    Raises:
        UnsupportedOperatorError: torch has no counterpart of an operator; names it.
    """

    storages: tuple[int, ...] = ()  # torch allocates as it goes
    bound_bytes = 0

    def __init__(self, function: StageFunction, device: str = "cpu") -> None:
        self._program = TorchProgram(function.module, device)
        self._inputs = [info.name for info in function.inputs]
        self._outputs = [info.name for info in function.outputs]

    @torch.no_grad()
    def __call__(self, known: Mapping[str, torch.Tensor]) -> Tensors:
        """Run on the inputs among the known tensors; return every output by name."""
        return dict(
            zip(self._outputs, self._program.run([known[name] for name in self._inputs]), strict=True)
        )


class TorchProgram:
    """The calls of torch that a module's `main` is.

    Args:
        module: its `main` has tensors, tuples of them, and operators.
        device: where constants lie, as torch calls it.
        is_checked: whether each value's shape is compared with the one that the program states.

    Raises:
        UnsupportedOperatorError: torch has no counterpart of an operator; names it.
    """

    def __init__(self, module: IRModule, device: str = "cpu", *, is_checked: bool = False) -> None:
        function = module["main"]
        self._device = device
        self._slots: dict[Any, int] = {}
        self._parameters = [self._slot_of(parameter) for parameter in function.params]
        self._steps = [
            _Step(
                self._slot_of(binding.var),
                self._reader(binding.value),
                self._reads(binding.value),
                _shape_of(binding.var) if is_checked else None,
            )
            for block in function.body.blocks
            for binding in block.bindings
        ]
        self._result = self._reader(function.body.body)
        kept = {*self._reads(function.body.body), *self._parameters}
        last: dict[int, int] = {slot: at for at, step in enumerate(self._steps) for slot in step.reads}
        self._dead: list[list[int]] = [[] for _ in self._steps]
        for slot, at in last.items():
            if slot not in kept:
                self._dead[at].append(slot)

    def run(self, arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the tensors that the function returns, in order."""
        values: list[Any] = [None] * len(self._slots)
        for slot, argument in zip(self._parameters, arguments, strict=True):
            values[slot] = argument
        for step, dead in zip(self._steps, self._dead, strict=True):
            values[step.result] = value = step.compute(values)
            assert step.shape is None or step.shape == tuple(value.shape), step
            for slot in dead:
                values[slot] = None
        found = self._result(values)
        return found if isinstance(found, tuple) else (found,)

    def _slot_of(self, variable: Any) -> int:
        return self._slots.setdefault(variable, len(self._slots))

    def _reads(self, expression: Any) -> tuple[int, ...]:
        return tuple(self._slots[variable] for variable in variables_of(expression))

    def _reader(self, expression: Any) -> Callable[[list[Any]], Any]:
        """Return what computes an expression from the values so far."""
        torch_call = read_torch_call(expression)
        if torch_call is not None:
            run = _operator if isinstance(torch_call.what, OperatorCall) else compute_gradient
            return _applied(
                functools.partial(_packed, run, torch_call.what),
                [self._reader(operand) for operand in torch_call.operands],
            )
        match expression:
            case relax.Var():
                slot = self._slots[expression]
                return lambda values: values[slot]
            case relax.Tuple():
                return _applied(lambda *fields: fields, [self._reader(field) for field in expression.fields])
            case relax.TupleGetItem():
                fields, index = self._reader(expression.tuple_value), int(expression.index)
                return lambda values: fields(values)[index]
            case relax.Call():
                return self._call(expression)
            case _:
                constant = self._constant(expression)
                return lambda values: constant

    def _call(self, call: Any) -> Callable[[list[Any]], Any]:
        name = str(getattr(call.op, "name", call.op)).removeprefix("relax.")
        if name in _CREATED:
            made = self._created(name, call)
            return lambda values: made
        operator = torch_operator(name, call.attrs)
        operands = [self._reader(argument) for argument in call.args]
        if name == "one_hot":  # torch takes numbers for its type's own, TVM has it from them
            dtype = getattr(torch, str(call.ty.dtype))
            return _applied(lambda *given: operator(*given).to(dtype), operands)
        return _applied(operator, operands)

    def _created(self, name: str, call: Any) -> torch.Tensor:
        dtype = getattr(torch, str(call.ty.dtype))
        shape = tuple(int(extent) for extent in call.ty.shape)
        if name == "arange":
            first, _, step = (float(_number(each)) for each in call.args)
            places = torch.arange(shape[0], dtype=torch.float64, device=self._device)
            return (first + step * places).to(dtype)
        value = {"zeros": 0, "ones": 1}.get(name)
        filled = value if value is not None else self._constant(call.args[1])
        return torch.zeros(shape, dtype=dtype, device=self._device) + torch.as_tensor(
            filled, dtype=dtype, device=self._device
        )

    def _constant(self, expression: Any) -> Any:
        """Return a constant tensor, the extents of a shape, or a plain number.

        Raises:
            UnsupportedOperatorError: it is something else.
        """
        match expression:
            case relax.ShapeExpr():
                return tuple(int(extent) for extent in expression.values)
            case relax.Tuple():
                return tuple(_number(field) for field in expression.fields)
            case _ if hasattr(getattr(expression, "value", None), "numpy"):
                array = np.array(expression.value.numpy())
                return as_tensor(array).to(self._device, getattr(torch, str(expression.ty.dtype)))
            case _ if hasattr(expression, "value"):
                return _number(expression)
        raise UnsupportedOperatorError(
            f"a {type(expression).__name__} has no counterpart in torch here; run the plan without "
            "--stages torch"
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """One call: where its result goes, what computes it, and what it reads."""

    result: int
    compute: Callable[[list[Any]], Any]
    reads: tuple[int, ...]
    shape: tuple[int, ...] | None


def _shape_of(variable: Any) -> tuple[int, ...] | None:
    """Return the shape that the program states of a value; None of a tuple."""
    return tuple(int(extent) for extent in variable.ty.shape) if is_tensor(variable) else None


def _applied(
    operator: Callable[..., Any], operands: Sequence[Callable[[list[Any]], Any]]
) -> Callable[[list[Any]], Any]:
    return lambda values: operator(*[operand(values) for operand in operands])


def _packed(run: Callable[..., Any], what: Any, *operands: torch.Tensor) -> Any:
    return run(what, list(operands))


def _operator(call: OperatorCall, operands: Sequence[torch.Tensor]) -> Any:
    found = compute(call, operands)
    return found[0] if len(found) == 1 else tuple(found)


def _number(expression: Any) -> Any:
    """Return the number of an expression that is one."""
    value = getattr(expression, "value", expression)
    return getattr(value, "value", value)
