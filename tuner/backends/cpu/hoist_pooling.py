"""Hoist average pools above the 1 x 1 convolutions that they follow, where that saves products.

A 1 x 1 convolution sums over channels and a pool over places, each with the same weights everywhere, so that
their order does not matter; a pool of 2 x 2 with stride 2 first leaves the convolution a quarter of its work
(the transitions of DenseNet). A bias stays what it is where every window averages as many elements as it
divides by: without padding and windows beyond the edge. Checked in
tests/tuner/backends/cpu/test_hoist_pooling.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tuner.backends.cpu.rewriting import Renamed, Write, rewritten, values_of
from tuner.backends.library_call import shape_of
from tuner.graph.relax_types import Expression, RelaxFunction


@dataclass(frozen=True, slots=True)
class _Swap:
    """A pool, the convolution before it, and the sum with a bias between them where there is one."""

    convolved: Expression
    convolution: Expression
    biased: Expression | None
    sum: Expression | None


def with_pooling_hoisted(function: RelaxFunction) -> RelaxFunction:
    """Return the function with average pools before 1 x 1 convolutions; itself where there are none."""
    values = values_of(function)
    swaps = _find_swaps(function, values)
    if not swaps:
        return function
    writers: dict[Expression, Write | None] = {}
    for pooled, swap in swaps.items():
        writers |= dict.fromkeys((swap.convolved, swap.biased)) | {pooled: _swapped(swap, values[pooled])}
    return rewritten(function, writers)


def _swapped(swap: _Swap, pool: Expression) -> Write:
    def write(builder: Any, renamed: Renamed) -> Expression:
        data, weights = swap.convolution.args
        pooled = builder.emit(relax.Call(pool.op, [renamed(data)], pool.attrs))
        convolution = relax.Call(swap.convolution.op, [pooled, renamed(weights)], swap.convolution.attrs)
        found = builder.emit(convolution)
        if swap.sum is None:
            return found
        (bias,) = (argument for argument in swap.sum.args if argument != swap.convolved)
        return builder.emit(relax.op.add(found, renamed(bias)))

    return write


def _find_swaps(function: RelaxFunction, values: Mapping[Expression, Expression]) -> dict[Expression, _Swap]:
    """Return what can be swapped by the variable of the pool."""
    readers = Counter(read for value in values.values() for read in relax.analysis.free_vars(value))
    readers.update(relax.analysis.free_vars(function.body.body))
    swaps = {}
    for variable, pool in values.items():
        if not _is(pool, "relax.nn.avg_pool2d") or pool.attrs.layout != "NCHW":
            continue
        if math.prod(shape_of(pool)[2:]) >= math.prod(shape_of(pool.args[0])[2:]):
            continue
        before, biased, total = pool.args[0], None, None
        if readers[before] == 1 and _is_whole(pool) and _is(values.get(before), "relax.add"):
            biased, total = before, values[before]
            before = next((each for each in total.args if _is_product(values.get(each))), None)
            others = [each for each in total.args if each != before]
            if before is None or len(others) != 1 or not _is_bias(others[0], shape_of(total)):
                continue
        if readers[before] == 1 and _is_product(values.get(before)):
            swaps[variable] = _Swap(before, values[before], biased, total)
    return swaps


def _is(value: Expression, name: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == name


def _is_product(value: Expression) -> bool:
    """Say whether a value is a convolution that makes one pixel of each pixel of its data."""
    if not _is(value, "relax.nn.conv2d"):
        return False
    attributes = value.attrs
    return (
        (attributes.data_layout, attributes.kernel_layout) == ("NCHW", "OIHW")
        and shape_of(value.args[1])[2:] == (1, 1)
        and {int(step) for step in attributes.strides} == {1}
        and {int(extent) for extent in attributes.padding} == {0}
    )


def _is_whole(pool: Expression) -> bool:
    """Say whether each of the pool's windows lies within the data."""
    return {int(extent) for extent in pool.attrs.padding} == {0} and not bool(pool.attrs.ceil_mode)


def _is_bias(tensor: Expression, shape: tuple[int, ...]) -> bool:
    """Say whether a tensor has one element per channel, at most."""
    if not isinstance(tensor, relax.Var) or len(shape_of(tensor)) > len(shape):
        return False
    extents = (1,) * (len(shape) - len(shape_of(tensor))) + tuple(shape_of(tensor))
    return all(extent == 1 for axis, extent in enumerate(extents) if axis != 1)
