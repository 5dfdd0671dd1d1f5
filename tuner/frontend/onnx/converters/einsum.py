"""Einstein's summation as products of matrices, which every library has kernels for.

Operands are joined from left to right: axes that nobody needs later are contracted by a matrix product, axes
that both have and somebody needs are its batch. Checked in
tests/tuner/frontend/onnx/converters/test_operators.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

_FIRST_HIDDEN = 0x100
"""Code of the letter that the first axis of an ellipsis has."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor whose axes have letters, no two the same."""

    tensor: Any
    axes: str

    def without(self, axes: Sequence[str]) -> _Operand:
        """Return the sum over some axes."""
        if not axes:
            return self
        total = relax.op.sum(self.tensor, [self.axes.index(axis) for axis in axes])
        return _Operand(total, "".join(axis for axis in self.axes if axis not in axes))

    def in_order(self, axes: str) -> _Operand:
        """Return the same with its axes in another order."""
        if axes == self.axes:
            return self
        return _Operand(relax.op.permute_dims(self.tensor, [self.axes.index(axis) for axis in axes]), axes)


def einsum(equation: str, tensors: Sequence[Any]) -> Any:
    """Return the sum that an equation states; with a diagonal, or an axis that is broadcast, as one operator.

    Args:
        equation: as ONNX has it: terms with commas between, and a result after `->` or none.
        tensors: an operand for each term.
    """
    terms, result = _terms(equation.replace(" ", ""), [len(tensor.ty.shape) for tensor in tensors])
    extents: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        shape = [int(extent) for extent in tensor.ty.shape]
        differs = any(extents.setdefault(*each) != each[1] for each in zip(term, shape, strict=True))
        if differs or len(set(term)) < len(term):
            return relax.op.einsum(tuple(tensors), equation)
    joined, *rest = map(_Operand, tensors, terms)
    for position, operand in enumerate(rest):
        needed = result + "".join(each.axes for each in rest[position + 1 :])
        joined = _product(joined, operand, needed, extents)
    return joined.without([axis for axis in joined.axes if axis not in result]).in_order(result).tensor


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand's axes and of the result's, those of an ellipsis among them."""
    stated, arrow, result = equation.partition("->")
    terms = stated.split(",")
    hidden = [rank - len(term) + 3 if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    letters = "".join(chr(_FIRST_HIDDEN + place) for place in range(max(hidden)))
    if not arrow:
        once = [letter for letter in sorted(set(stated) - set(",.")) if stated.count(letter) == 1]
        result = "..." + "".join(once)
    whole = [
        term.replace("...", letters[max(hidden) - own :]) for term, own in zip(terms, hidden, strict=True)
    ]
    return whole, result.replace("...", letters)


def _product(first: _Operand, second: _Operand, needed: str, extents: Mapping[str, int]) -> _Operand:
    """Return two operands' product, summed over all axes that are not needed."""
    first, second = (
        own.without([axis for axis in own.axes if axis not in needed + other.axes])
        for own, other in ((first, second), (second, first))
    )
    shared = [axis for axis in first.axes if axis in second.axes]
    batch = "".join(axis for axis in shared if axis in needed)
    inner = "".join(axis for axis in shared if axis not in needed)
    rows = "".join(axis for axis in first.axes if axis not in second.axes)
    columns = "".join(axis for axis in second.axes if axis not in first.axes)

    def matrices(operand: _Operand, *groups: str) -> Any:
        """Return an operand as matrices, one for each element of the batch."""
        ordered = operand.in_order(batch + "".join(groups)).tensor
        if all(len(group) == 1 for group in groups):
            return ordered
        shape = [extents[axis] for axis in batch]
        shape += [math.prod(extents[axis] for axis in group) for group in groups]
        return relax.op.reshape(ordered, shape)

    left, right = matrices(first, rows, inner), matrices(second, inner, columns)
    product = relax.op.matmul(left, right) if inner else relax.op.multiply(left, right)
    axes = batch + rows + columns
    if len(rows) == len(columns) == 1:
        return _Operand(product, axes)
    return _Operand(relax.op.reshape(product, [extents[axis] for axis in axes]), axes)
