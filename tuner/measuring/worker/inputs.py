"""Inputs that programs are checked and timed on: random, the same for the same seed, within useful intervals.

Floats are uniform in [-1, 1] and integers 0 or 1, which is valid as an index of anything; where results would
not be finite, or would be so by rounding alone, a parameter has an interval of its own. Checked in
tests/tuner/measuring/test_worker.py.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tvm
from tvm import relax

from tuner.graph.relax_types import VARIANCES_ATTRIBUTE, IRModule, num_inputs_of, weights_of

Interval: TypeAlias = tuple[float, float]
"""Least and largest of random floats."""

SIGNED: Interval = (-1.0, 1.0)

POSITIVE: Interval = (0.1, 1.0)

INTERVALS: tuple[Interval, ...] = (SIGNED, POSITIVE, (0.001, 0.05))
"""Tried in turn until results are finite: roots and logarithms want positive numbers, products in a deep
network without normalised weights small ones."""

_MAX_KEPT_BYTES = 1 << 30
"""A gigabyte of arrays is kept for the programs that come next."""


def input_specs(module: IRModule) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return shape and data type of each parameter of `main`."""
    return tuple(
        (tuple(int(extent) for extent in parameter.ty.shape), str(parameter.ty.dtype))
        for parameter in module["main"].params
    )


def value_types(module: IRModule) -> frozenset[str]:
    """Return the data types of all tensors in a module: results are no finer than what they are made of."""
    found: set[str] = set()
    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            bound = [binding.var for block in function.body.blocks for binding in block.bindings]
            found.update(
                str(each.ty.dtype) for each in (*function.params, *bound) if hasattr(each.ty, "dtype")
            )
    return frozenset(found)


def own_intervals(module: IRModule) -> dict[int, Interval]:
    """Return intervals for parameters of `main`, by position, that must not be drawn from the general one.

    What batch normalisation takes for a variance is positive: below 0 its results are no numbers, which a
    later clip hides. Weights of a model are as small as their number of inputs asks: larger ones make a deep
    network chaotic, so that rounding alone decides its results.
    """
    main = module["main"]
    position = {parameter: index for index, parameter in enumerate(main.params)}
    found = {position[weight]: interval for weight, interval in _weight_intervals(main).items()}
    for block in main.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call):
                own = _weights_read(call, module) | dict.fromkeys(_variances_read(call, module), POSITIVE)
                found.update({position[variable]: own[variable] for variable in own if variable in position})
    return found


def _weight_intervals(function: Any) -> dict[Any, Interval]:
    """Return intervals of a model's or partition's weights, by parameter."""
    weights = [function.params[position] for position in weights_of(function)]
    num_inputs = num_inputs_of(function)
    if num_inputs is not None:
        weights = list(function.params[num_inputs:])
    intervals = {}
    for weight in weights:
        shape = [int(extent) for extent in weight.ty.shape]
        if len(shape) > 1:
            # Convolutions have their outputs first; matrices may lie either way, so the larger side counts.
            num_inputs = max(shape) if len(shape) == 2 else math.prod(shape[1:])
            bound = math.sqrt(3 / num_inputs)
            intervals[weight] = (-bound, bound)
    return intervals


def _weights_read(call: Any, module: IRModule) -> dict[Any, Interval]:
    """Return intervals of the arguments that a call of a partition takes for weights."""
    callee = module[call.op] if isinstance(call.op, tvm.ir.GlobalVar) else None
    if not isinstance(callee, relax.Function):
        return {}
    argument = dict(zip(callee.params, call.args, strict=True))
    return {argument[weight]: interval for weight, interval in _weight_intervals(callee).items()}


def _variances_read(call: Any, module: IRModule) -> list[Any]:
    """Return the arguments that a call, of an operator or of a partition, takes for variances."""
    if not isinstance(call.op, tvm.ir.GlobalVar):
        return [_variance_of(call)]
    callee = module[call.op]
    if not isinstance(callee, relax.Function):
        return []
    inner = _variances_of(callee)
    return [call.args[index] for index, each in enumerate(callee.params) if each in inner]


def _variances_of(function: Any) -> set[Any]:
    if function.attrs is not None and VARIANCES_ATTRIBUTE in function.attrs.keys():  # noqa: SIM118 - TVM's maps
        return {function.params[int(position)] for position in function.attrs[VARIANCES_ATTRIBUTE]}
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    return {_variance_of(each.value) for each in bindings if isinstance(each.value, relax.Call)} - {None}


def _variance_of(call: Any) -> Any:
    return call.args[4] if getattr(call.op, "name", "") == "relax.nn.batch_norm" else None


def random_inputs(
    specs: Sequence[tuple[tuple[int, ...], str]],
    seed: int,
    interval: Interval = SIGNED,
    *,
    own: Mapping[int, Interval] = MappingProxyType({}),
) -> tuple[np.ndarray, ...]:
    """Return random arrays: floats in the interval, integers and booleans 0 or 1; same seed, same arrays.

    Args:
        specs: shapes and data types.
        interval: least and largest float.
        own: intervals by position, where an array has one of its own.
    """
    return tuple(map(_random_array, _draws(specs, seed, interval, own)))


class DrawnInputs:
    """Random inputs as `random_inputs` makes them, kept for the programs that come next.

    Most of what a model's programs read are weights of the same few shapes: a table of 154 MB takes longer to
    draw than the programs that read it take to run.

    Args:
        place: puts an array where programs read it; nobody writes to what it returns.
        max_bytes: of arrays that are kept for others beside those that were asked for last.
    """

    def __init__(self, place: Callable[[np.ndarray], Any], *, max_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._place = place
        self._max_bytes = max_bytes
        self._kept: dict[_Draw, Any] = {}

    def get(
        self,
        specs: Sequence[tuple[tuple[int, ...], str]],
        seed: int,
        interval: Interval = SIGNED,
        *,
        own: Mapping[int, Interval] = MappingProxyType({}),
    ) -> list[Any]:
        """Return the arrays, placed; see `random_inputs`."""
        draws = _draws(specs, seed, interval, own)
        # The newest stand last. What does not fit goes before anything is drawn.
        wanted = {draw: self._kept.pop(draw, None) for draw in draws}
        num_bytes = sum(draw.num_bytes for draw in self._kept)
        for draw in list(self._kept):
            if num_bytes <= self._max_bytes:
                break
            del self._kept[draw]
            num_bytes -= draw.num_bytes
        for draw, placed in wanted.items():
            self._kept[draw] = self._place(_random_array(draw)) if placed is None else placed
        return [self._kept[draw] for draw in draws]


class _Draw(NamedTuple):
    """What decides an array's elements; `occurrence` counts a program's arrays of one shape and data type."""

    shape: tuple[int, ...]
    dtype: str
    interval: Interval
    seed: int
    occurrence: int

    @property
    def num_bytes(self) -> int:
        """Return its size in memory."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _draws(
    specs: Sequence[tuple[tuple[int, ...], str]], seed: int, interval: Interval, own: Mapping[int, Interval]
) -> list[_Draw]:
    counts: Counter[tuple[tuple[int, ...], str]] = Counter()
    draws = []
    for index, (shape, dtype) in enumerate(specs):
        draws.append(_Draw(shape, dtype, own.get(index, interval), seed, counts[shape, dtype]))
        counts[shape, dtype] += 1
    return draws


def _random_array(draw: _Draw) -> np.ndarray:
    """Return an array that no other of the same program equals: each has random numbers of its own."""
    rng = np.random.default_rng((draw.seed, draw.occurrence, zlib.crc32(draw.dtype.encode()), *draw.shape))
    if draw.dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=draw.shape).astype(draw.dtype)
    low, high = (np.float32(bound) for bound in draw.interval)
    array = np.asarray(rng.random(draw.shape, dtype=np.float32))  # without axes it is a number
    array *= high - low
    array += low
    return array.astype(draw.dtype, copy=False)
