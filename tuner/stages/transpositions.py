"""Take transpositions out of a backward that its products can read, or write, the other way round.

A head tied to an embedding multiplies by the transposed table: Y = X Wᵀ. Taken operator by operator, its
gradients are dX = dY (Wᵀ)ᵀ and dW = (Xᵀ dY)ᵀ, which transpose the table twice and its gradient once, for each
micro-batch. Two rules of algebra leave none of these, since (Aᵀ)ᵀ = A and (A B)ᵀ = Bᵀ Aᵀ: dX = dY W and
dW = dYᵀ X. What is transposed then is an operand of a product, which libraries read as it lies. The same
holds for every linear layer imported from torch, whose weights are stored as (outputs, inputs), and for the
keys of attention.

A forward value is read in place of its transpose only where nothing else of the backward needs the transpose,
so that not both are kept. Checked in tests/tuner/stages/test_transpositions.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tuner.stages.program import Binding, Expr, Var, operator_name, resolve, variables_of


def absorb_transpositions(
    forward: Sequence[Binding], adjoint: Sequence[Binding]
) -> tuple[tuple[Binding, ...], Mapping[Var, Expr]]:
    """Return the adjoint program without the transpositions that its products can do without.

    Bindings that are no longer read stay; whoever takes slices of the program leaves them out.

    Args:
        forward: what the adjoint program reads, in order.
        adjoint: gradients, in order; each binding is one operator.

    Returns:
        The bindings, and what stands in the place of each variable that the adjoint program bound.
    """
    rewriter = _Rewriter(forward, adjoint)
    with rewriter.builder.function("adjoint", []):
        with rewriter.builder.dataflow():
            for binding in adjoint:
                rewriter.add(binding)
            # An output keeps every value alive until the block has been read.
            kept = rewriter.builder.emit_output(relax.const(0.0, "float32"))
        rewriter.builder.emit_func_output(kept)
    block = rewriter.builder.get()["adjoint"].body.blocks[0]
    bindings = [Binding(entry.var, entry.value, variables_of(entry.value)) for entry in block.bindings][:-1]
    return tuple(bindings), rewriter.known


class _Rewriter:
    """The program under construction, and what each variable of the old and of the new one is bound to."""

    def __init__(self, forward: Sequence[Binding], adjoint: Sequence[Binding]) -> None:
        self.builder: Any = relax.BlockBuilder()
        self.known: dict[Var, Expr] = {}
        self._values: dict[Var, Expr] = {binding.var: binding.value for binding in forward}
        self._forward = frozenset(self._values)
        self._num_readers = Counter(variable for binding in adjoint for variable in binding.reads)
        # How often a forward value is only read to be turned back.
        self._num_inverted = Counter(
            binding.value.args[0] for binding in adjoint if self._undoes(binding.value, self._values)
        )

    def add(self, binding: Binding) -> None:
        """Write a binding, or note which value it equals."""
        value = resolve(binding.value, self.known)
        if _order(value) is not None:
            value = self._without_transposition(value)
        if isinstance(value, relax.Var | relax.Tuple):
            self.known[binding.var] = value
            return
        variable = self.builder.emit(value, name_hint=binding.var.name)
        self.known[binding.var] = variable
        self._values[variable] = value
        self._num_readers[variable] = self._num_readers[binding.var]

    def _without_transposition(self, call: Expr) -> Expr:
        """Return what equals a permutation of axes and costs less, or the permutation itself."""
        (operand,) = call.args
        if self._undoes(call, self._values) and self._is_replaceable(operand):
            return self._values[operand].args[0]
        product = self._values.get(operand)
        if operand in self._forward or self._num_readers[operand] != 1 or not _swaps_last_axes(call):
            return call
        if product is None or not _is_matrix_product(product):
            return call
        left, right = product.args
        return relax.op.matmul(self._turned(right), self._turned(left))

    def _turned(self, matrices: Expr) -> Expr:
        """Return matrices with their last two axes swapped: what they were transposed from, if anything."""
        value = self._values.get(matrices)
        if matrices not in self._forward and value is not None and _swaps_last_axes(value):
            return value.args[0]
        transposition = relax.op.permute_dims(matrices, _swapped(len(matrices.ty.shape)))
        variable = self.builder.emit(transposition)
        self._values[variable] = transposition
        return variable

    def _is_replaceable(self, operand: Var) -> bool:
        """Say whether a value need not be kept once each of its transpositions is read from its source."""
        return operand not in self._forward or self._num_inverted[operand] == self._num_readers[operand]

    @staticmethod
    def _undoes(value: Expr, values: Mapping[Var, Expr]) -> bool:
        """Say whether an expression permutes axes back to where another permutation took them from."""
        outer = _order(value)
        if outer is None:
            return False
        inner = _order(values.get(value.args[0]))
        return inner is not None and [inner[axis] for axis in outer] == sorted(inner)


def _order(value: Expr) -> list[int] | None:
    """Return where each axis of a permutation comes from; None for any other expression."""
    if not isinstance(value, relax.Call) or operator_name(value) != "permute_dims":
        return None
    rank = len(value.args[0].ty.shape)
    axes = value.attrs.axes
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]


def _swaps_last_axes(value: Expr) -> bool:
    order = _order(value)
    return order is not None and len(order) > 1 and order == _swapped(len(order))


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _is_matrix_product(value: Expr) -> bool:
    """Say whether an expression is a product of (batches of) matrices, neither of them a vector."""
    if not isinstance(value, relax.Call) or operator_name(value) != "matmul":
        return False
    return all(len(operand.ty.shape) > 1 for operand in value.args)
