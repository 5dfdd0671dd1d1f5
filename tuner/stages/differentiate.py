"""Take gradients of a list of bindings, as bindings: reverse-mode automatic differentiation.

The gradient bindings read the forward's values by their own variables, so what a backward reads that it
does not compute is exactly what a forward must save. They are one program; which of it is the joint
backward, the input-gradient half or the weight-gradient half is a question of what is asked for (see
`tuner.stages.build`).

Each operator's gradient comes from `tuner.stages.gradients.operator_gradients`, or from TVM where none stands
there; what products need not have transposed is taken out at the end (`tuner.stages.transpositions`). Checked
against finite differences in tests/tuner/stages/gradients/test_operator_gradients.py and against the uncut
model in tests/tuner/stages/test_build.py.

Source: Griewank and Walther, "Evaluating Derivatives", 2nd ed., section 3.2 (reverse mode); TVM's
`relax.transform.Gradient` does the same inside one function, but repeats the forward in it and knows one
output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tuner.errors import MissingGradientError
from tuner.stages.gradients.operator_gradients import gradient_of
from tuner.stages.program import (
    Binding,
    Expr,
    Program,
    Var,
    blocks_gradients,
    is_differentiable,
    operator_name,
    resolve,
    variables_of,
)
from tuner.stages.transpositions import absorb_transpositions


@dataclass(frozen=True, slots=True)
class Adjoint:
    """Gradients as a program.

    Attributes:
        bindings: compute all gradients; they read forward values, weights and the seeds.
        gradients: the gradient of each value asked for; one that no output depends on is absent.
    """

    bindings: tuple[Binding, ...]
    gradients: Mapping[Var, Expr]


def differentiate(
    bindings: Sequence[Binding],
    *,
    seeds: Mapping[Var, Expr],
    wanted: Sequence[Var],
    padding_rows: Mapping[Var, int] | None = None,
) -> Adjoint:
    """Take the gradients of `wanted` values, given those of the outputs.

    Args:
        bindings: the forward, in order.
        seeds: for each output, the gradient that arrives for it; for a loss, the constant one. Where an
            output is read by other bindings too, both parts add up.
        wanted: inputs or weights whose gradients are asked for.
        padding_rows: row of a table that its look-ups give no gradient.

    Raises:
        UnsupportedOperatorError: an operator between `wanted` and an output has no gradient.
    """
    return _differentiate(bindings, seeds, wanted, _Tape(_dependent_on(bindings, wanted), padding_rows or {}))


def missing_gradients(program: Program) -> tuple[MissingGradientError, ...]:
    """Return an error for each operator between a weight that trains and the loss that has no gradient.

    What stands before one of them is not looked at, unless there is another way from it to the loss.
    """
    wanted = [variable for variable in program.parameters if program.names[variable] not in program.untrained]
    seeds = {output: relax.const(1.0, output.ty.dtype) for output in program.outputs}
    found: list[MissingGradientError] = []
    tape = _Tape(_dependent_on(program.bindings, wanted), program.padding_rows, found)
    _differentiate(program.bindings, seeds, wanted, tape)
    return tuple(found)


def _differentiate(
    bindings: Sequence[Binding], seeds: Mapping[Var, Expr], wanted: Sequence[Var], tape: _Tape
) -> Adjoint:
    with tape.builder.function("adjoint", []):
        with tape.builder.dataflow():
            for variable, seed in seeds.items():
                tape.accumulate(variable, seed)
            for binding in reversed(bindings):
                if binding.var in tape.depends:
                    _propagate(tape, binding)
            # An output keeps every value alive until the block has been read.
            kept = tape.builder.emit_output(relax.const(0.0, "float32"))
        tape.builder.emit_func_output(kept)
    block = tape.builder.get()["adjoint"].body.blocks[0]
    emitted = [Binding(entry.var, entry.value, variables_of(entry.value)) for entry in block.bindings][:-1]
    absorbed, renamed = absorb_transpositions(bindings, emitted)
    gradients = {value: tape.gradients[value] for value in wanted if value in tape.gradients}
    return Adjoint(absorbed, {value: resolve(gradient, renamed) for value, gradient in gradients.items()})


class _Tape:
    """The gradients known so far, tuples field by field, and the block that they are written into.

    Attributes:
        depends: values that depend on what gradients are asked for.
        padding_rows: see `differentiate`.
        found_missing: takes an error for each operator without a gradient; None where the first is raised.
        gradients: the whole gradient of each value that is no tuple.
    """

    def __init__(
        self,
        depends: frozenset[Var],
        padding_rows: Mapping[Var, int],
        found_missing: list[MissingGradientError] | None = None,
    ) -> None:
        self.depends = depends
        self.padding_rows = padding_rows
        self.found_missing = found_missing
        self.builder: Any = relax.BlockBuilder()
        self.gradients: dict[Var, Expr] = {}
        self._fields: dict[Var, dict[int, Expr]] = {}

    def accumulate(self, target: Expr, gradient: Expr) -> None:
        """Add a gradient to that of a value; one that nobody asked for is dropped before it is written."""
        if isinstance(target, relax.Tuple):
            self._spread(target, gradient)
        elif isinstance(target, relax.Var) and target in self.depends:
            if isinstance(target.ty, relax.TupleType):
                for index in range(len(target.ty.fields)):
                    self.accumulate_field(target, index, self._field(gradient, index))
            elif is_differentiable(target):
                before = self.gradients.get(target)
                total = gradient if before is None else relax.op.add(before, gradient)
                self.gradients[target] = self.emit(total)

    def accumulate_field(self, target: Var, index: int, gradient: Expr) -> None:
        """Add a gradient to that of one field of a tuple."""
        fields = self._fields.setdefault(target, {})
        before = fields.get(index)
        fields[index] = self.emit(gradient if before is None else relax.op.add(before, gradient))

    def of(self, variable: Var) -> Expr | None:
        """Give the whole gradient of a value, or None where no output depends on it."""
        if not isinstance(variable.ty, relax.TupleType):
            return self.gradients.get(variable)
        fields = self._fields.get(variable)
        if not fields:
            return None
        types = enumerate(variable.ty.fields)
        return relax.Tuple([fields[index] if index in fields else _zeros(field) for index, field in types])

    def _spread(self, target: Any, gradient: Expr) -> None:
        if not any(variable in self.depends for variable in variables_of(target)):
            return
        whole = gradient if isinstance(gradient, relax.Tuple) else self.emit(gradient)
        for index, field in enumerate(target.fields):
            self.accumulate(field, self._field(whole, index))

    def _field(self, gradient: Expr, index: int) -> Expr:
        return (
            gradient.fields[index]
            if isinstance(gradient, relax.Tuple)
            else relax.TupleGetItem(gradient, index)
        )

    def emit(self, gradient: Expr) -> Expr:
        """Bind an expression, unless it is a variable or a constant."""
        return (
            gradient
            if isinstance(gradient, relax.Var | tvm.ir.expr.Constant)
            else self.builder.emit(gradient)
        )


def _propagate(tape: _Tape, binding: Binding) -> None:
    """Hand the gradient of a binding's value on to what it was computed from."""
    gradient = tape.of(binding.var)
    if gradient is None:
        return
    value = binding.value
    if isinstance(value, relax.Var | relax.Tuple):
        tape.accumulate(value, gradient)
    elif isinstance(value, relax.TupleGetItem):
        tape.accumulate_field(value.tuple_value, value.index, gradient)
    elif isinstance(value, relax.Call):
        row = tape.padding_rows.get(value.args[0]) if operator_name(value) == "take" else None
        if row is not None:
            gradient = tape.emit(_but_for_row(gradient, value.args[1], row))
        try:
            parts = gradient_of(binding.var, value, gradient, tape.builder)
        except MissingGradientError as error:
            if tape.found_missing is None:
                raise
            tape.found_missing.append(error)
            return
        for argument, part in zip(value.args, parts, strict=True):
            if part is not None:
                tape.accumulate(argument, part)


def _but_for_row(gradient: Expr, indices: Expr, row: int) -> Expr:
    """Give the gradient of looked-up rows, a matrix, with zeros where the row of padding was."""
    looked_up = relax.op.expand_dims(indices, -1)
    is_padding = relax.op.equal(looked_up, relax.const(row, indices.ty.dtype))
    return relax.op.where(is_padding, relax.op.zeros_like(gradient), gradient)


def _dependent_on(bindings: Sequence[Binding], wanted: Sequence[Var]) -> frozenset[Var]:
    depends = {value for value in wanted if is_differentiable(value)}
    for binding in bindings:
        if blocks_gradients(binding.value):
            continue
        if is_differentiable(binding.var) and not depends.isdisjoint(binding.reads):
            depends.add(binding.var)
    return frozenset(depends)


def _zeros(field: Any) -> Expr:
    return relax.op.zeros(field.shape, field.dtype)
