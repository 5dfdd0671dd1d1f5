"""The BLAS inside NumPy: matrix products as zero-copy calls; the rest of a partition is compiled by TVM.

A product becomes a packed call whose operands are views of the virtual machine's own tensors. A transposition
of either operand's last two axes costs nothing, because BLAS reads transposed matrices; bias, activation and
the like become one TVM kernel after the call. A call through Python costs some 4 us, which is part of every
measurement. Checked in tests/tuner/backends/.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tuner.backends.kernel_version import version_entry
from tuner.backends.library_call import shape_of, swaps_last_axes
from tuner.backends.tvm.native import as_public, fuse_as_tvm_does, replace_function
from tuner.backends.tvm.schedule import SCHEDULES_VERSION, schedule_kernels
from tuner.graph.legalization import legalize_operators
from tuner.graph.relax_types import IRModule, RelaxFunction, weights_of
from tuner.rules.pattern import LabelledPattern, Match
from tuner.rules.protocol import Rule
from tuner.rules.styles import library_rule
from tuner.runtime.blas_calls import PACKED_NAME
from tuner.targets.resolution import blas_version
from tuner.targets.target import Target

_DTYPES = frozenset({"float32", "float64"})


class Blas:
    """Runs matrix products with the BLAS inside NumPy."""

    name = "blas"
    settings = ""
    reference = "blas"
    packs_weights = True

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return NumPy's version, its BLAS's with the kernels it chose here, and that of TVM's schedules."""
        numpy = ("numpy", importlib.metadata.version("numpy"))
        return tuple(sorted((blas_version(), numpy, version_entry("tvm", SCHEDULES_VERSION))))

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that a CPU's library does not run elsewhere."""
        return None if target.kind == "cpu" else "NumPy's BLAS runs on this machine's CPU only"

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes each product, with and without the transpositions that it reads."""
        return library_rule(_PATTERNS, name=self.name)

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function has no matrix product, or one of a data type that BLAS lacks."""
        if any(_is_product(call) for call in bound_calls(function)):
            return None
        return f"it holds no matrix product of {' or '.join(sorted(_DTYPES))}"

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with the functions' products as calls of BLAS and the rest as kernels."""
        for name in functions:
            called = call_blas(tvm.IRModule({"main": as_public(module[name])}), weights_of(module[name]))
            kernels = fuse_as_tvm_does(legalize_operators()(called))
            module = replace_function(module, name, schedule_kernels(kernels, target))
        return module


def call_blas(module: IRModule, weights: Collection[int] = ()) -> IRModule:
    """Return the module with each product in `main` that BLAS can do as a call of it.

    Args:
        module: `main` holds operators.
        weights: positions of parameters of `main` that never change between calls.
    """
    return _CallBlas(module, weights).replaced()


def bound_calls(function: RelaxFunction) -> tuple[Any, ...]:
    """Return the calls of operators that the function binds, in order."""
    return tuple(
        binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.Op)
    )


@relax.expr_functor.mutator
class _CallBlas(relax.PyExprMutator):
    """Replaces matrix products, and the transpositions that only they read, by packed calls."""

    def __init__(self, module: IRModule, weights: Collection[int]) -> None:
        super().__init__(module)
        self.module = module
        self.weights = {module["main"].params[position] for position in weights}
        self.transposed: dict[Any, Any] = {}

    def replaced(self) -> IRModule:
        """Return the module with its `main` rewritten."""
        main = self.module["main"]
        for block in main.body.blocks:
            for binding in block.bindings:
                if _swaps_last_axes(binding.value):
                    self.transposed[binding.var] = binding.value.args[0]
        self.builder_.update_func(self.module.get_global_var("main"), self.visit_expr(main))
        return relax.transform.DeadCodeElimination(["main"])(self.builder_.get())

    def visit_call_(self, call: Any) -> Any:
        if not _is_product(call):
            return super().visit_call_(call)
        left, right = call.args
        matrix = self.transposed.get(right, right)
        if left not in self.transposed and matrix in self.weights and len(matrix.ty.shape) == 2:
            turned = tvm.tirx.IntImm("int64", int(right in self.transposed))
            num_rows = tvm.tirx.IntImm("int64", math.prod(shape_of(left)[:-1]))
            arguments = [turned, num_rows, self.visit_expr(matrix)]
            bound = self.builder_.emit(
                relax.call_pure_packed(f"{PACKED_NAME}.bind", *arguments, ty_args=relax.ObjectType())
            )
            return relax.call_dps_packed(
                f"{PACKED_NAME}.bound", [self.visit_expr(left), bound], out_ty=call.ty
            )
        letters, operands = "", []
        for operand in call.args:
            letters += "t" if operand in self.transposed else "n"
            operands.append(self.visit_expr(self.transposed.get(operand, operand)))
        return relax.call_dps_packed(f"{PACKED_NAME}.{letters}", operands, out_ty=call.ty)


def _is_product(call: Any) -> bool:
    """Say whether a call is a matrix product of a data type that BLAS has."""
    is_matmul = isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.matmul"
    return is_matmul and {str(operand.ty.dtype) for operand in call.args} <= _DTYPES


def _swaps_last_axes(value: Any) -> bool:
    """Say whether a value is another one with its last two axes swapped."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    return value.op.name == "relax.permute_dims" and swaps_last_axes(value)


def _patterns() -> tuple[LabelledPattern, ...]:
    """Return one pattern for each choice of which operands are transposed first."""
    patterns = []
    for letters in ("nn", "nt", "tn", "tt"):
        operands = [
            is_op("relax.permute_dims")(wildcard()) if letter == "t" else wildcard() for letter in letters
        ]
        transposed = [operand for operand, letter in zip(operands, letters, strict=True) if letter == "t"]
        patterns.append(
            LabelledPattern(
                f"matmul_{letters}",
                is_op("relax.matmul")(*operands),
                _TranspositionsAreFree(tuple(transposed)),
            )
        )
    return tuple(patterns)


@dataclass(frozen=True, slots=True)
class _TranspositionsAreFree:
    """Accepts a match where each of its transpositions only swaps the last two axes."""

    transpositions: tuple[Any, ...]

    def __call__(self, match: Match) -> bool:
        return all(_swaps_last_axes(match[transposition]) for transposition in self.transpositions)


_PATTERNS = _patterns()
