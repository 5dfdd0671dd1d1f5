"""The matrices of Winograd's method, and products with them as additions of vectors.

A transform is matrix x values x matrix transposed. Its weights are few and simple: what rows and columns have
in common is computed once, and products with 1 and 0 are left out. Checked in
tests/tuner/backends/cpu/kernels/test_winograd.py.

Source: the matrices of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.memory import Vector

Load: TypeAlias = Callable[[int, int], Vector]
"""Returns a value by its row and column."""

Matrix: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Transforms:
    """The matrices of one F(m x m, 3 x 3): of data, of weights and of results."""

    data: Matrix
    weights: Matrix
    results: Matrix


TRANSFORMS = {
    2: Transforms(
        data=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        weights=((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        results=((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: Transforms(
        data=(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        weights=(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        results=((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
"""By tile side. The weights' matrices are real numbers, rounded where they are used."""


def transformed(matrix: Matrix, load: Load, lanes: int) -> Iterator[Vector]:
    """Yield matrix x values x matrix transposed, row by row, each computed when it is asked for.

    Args:
        load: returns the value of a row and column.
        lanes: of a value.
    """
    extent = range(len(matrix[0]))
    halves = [_multiplied(matrix, [script.Bind(load(y, x)) for y in extent], lanes) for x in extent]
    for row in zip(*halves, strict=True):
        yield from _multiplied(matrix, row, lanes)


def _multiplied(matrix: Matrix, values: Sequence[Vector], lanes: int) -> list[Vector]:
    """Return matrix x values, bound to variables.

    What two rows have in common, and what in one is the other's with its sign changed, is computed once; so
    are the sum and the difference of two values that rows take with one weight or with opposite ones.
    """
    matrix, values = _with_sums(matrix, values)
    found: dict[int, Vector] = {}
    for index, row in enumerate(matrix):
        twin = next((each for each in range(index + 1, len(matrix)) if _are_twins(row, matrix[each])), None)
        if index in found:
            continue
        if twin is None or twin in found:
            found[index] = script.Bind(_weighted(row, values, lanes))
            continue
        pairs = list(zip(row, matrix[twin], strict=True))
        common = script.Bind(
            _weighted([left if left == right else 0 for left, right in pairs], values, lanes)
        )
        opposite = [left if left != right else 0 for left, right in pairs]
        scale = _common_scale(opposite)
        other = script.Bind(_weighted([weight / scale for weight in opposite], values, lanes))
        scaled = other if abs(scale) == 1 else other * script.Broadcast(script.float32(abs(scale)), lanes)
        up, down = (index, twin) if scale > 0 else (twin, index)
        found[up] = script.Bind(common + scaled)
        found[down] = script.Bind(common - scaled)
    return [found[index] for index in range(len(matrix))]


def _with_sums(matrix: Matrix, values: Sequence[Vector]) -> tuple[Matrix, Sequence[Vector]]:
    """Return the product with sums and differences in place of pairs of values that all rows allow."""
    columns, replaced = list(zip(*matrix, strict=True)), list(values)
    for left, right in itertools.combinations(range(len(columns)), 2):
        first, second = columns[left], columns[right]
        equal = [weight if weight == other else 0 for weight, other in zip(first, second, strict=True)]
        opposite = [weight if weight == -other else 0 for weight, other in zip(first, second, strict=True)]
        is_pair = all(abs(weight) == abs(other) for weight, other in zip(first, second, strict=True))
        if is_pair and sum(map(bool, equal)) > 1 and sum(map(bool, opposite)) > 1:
            total = script.Bind(replaced[left] + replaced[right])
            difference = script.Bind(replaced[left] - replaced[right])
            replaced[left], replaced[right] = total, difference
            columns[left], columns[right] = tuple(equal), tuple(opposite)
    return tuple(zip(*columns, strict=True)), replaced


def _are_twins(row: Sequence[float], other: Sequence[float]) -> bool:
    """Say whether two rows differ in signs alone, in some but not in all."""
    pairs = [(left, right) for left, right in zip(row, other, strict=True) if left or right]
    same = sum(left == right for left, right in pairs)
    return all(abs(left) == abs(right) for left, right in pairs) and 0 < same < len(pairs)


def _common_scale(weights: Sequence[float]) -> float:
    """Return what divides weights so that the last is positive, and all are 1 where they are alike."""
    last = [weight for weight in weights if weight][-1]
    is_one = len({abs(weight) for weight in weights if weight}) == 1
    return last if is_one else math.copysign(1, last)


def _weighted(weights: Sequence[float], values: Sequence[Vector], lanes: int) -> Vector:
    """Return the weighted sum of vectors; of the weights at least one is not 0."""
    terms = sorted(zip(weights, values, strict=True), key=lambda term: term[0] <= 0)
    total = None
    for weight, value in terms:
        if not weight:
            continue
        scaled = value if abs(weight) == 1 else value * script.Broadcast(script.float32(abs(weight)), lanes)
        if total is None:
            total = scaled if weight > 0 else script.Broadcast(script.float32(0), lanes) - scaled
        else:
            total = total + scaled if weight > 0 else total - scaled
    return total
