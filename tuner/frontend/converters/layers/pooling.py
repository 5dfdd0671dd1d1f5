"""Pooling: over windows, and to a given extent.

Checked against torch in tests/tuner/frontend/converters/test_layers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, rank_of, shape_of
from tuner.frontend.converters.extrema import first_extremum

_MAX = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
_AVERAGE = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
_ADAPTIVE = {
    1: relax.op.nn.adaptive_avg_pool1d,
    2: relax.op.nn.adaptive_avg_pool2d,
    3: relax.op.nn.adaptive_avg_pool3d,
}
_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def _max_pool(num_axes: int) -> Converter:
    def convert(call: Call) -> Expr:
        dilation = _each(call["dilation"], num_axes)
        return _pooled(call, num_axes, _MAX[num_axes], dilation=dilation)

    return convert


def _max_pool_with_indices(num_axes: int) -> Converter:
    """Convert a pooling that also tells the places of its results.

    Raises:
        ValueError: something reads the places.
    """

    def convert(call: Call) -> list[Expr | None]:
        _require_no_places(call)
        return [_max_pool(num_axes)(call), None]

    return convert


def _average_pool(num_axes: int) -> Converter:
    def convert(call: Call) -> Expr:
        counts = bool(call["count_include_pad"])
        if "divisor_override" not in call.names or not call.has("divisor_override"):
            return _pooled(call, num_axes, _AVERAGE[num_axes], count_include_pad=counts)
        if "float" not in call.dtype:
            raise ValueError("it divides whole numbers by a number of its own")
        if call["ceil_mode"]:
            raise ValueError("it divides by a number of its own, and its last windows are cut")
        window = 1
        for extent in _each(call["kernel_size"], num_axes):
            window *= extent
        found = _pooled(call, num_axes, _AVERAGE[num_axes], count_include_pad=True)
        return call.emit(relax.op.multiply(found, relax.const(window / call["divisor_override"], call.dtype)))

    return convert


def _pooled(call: Call, num_axes: int, operator: Callable[..., Expr], **options: Any) -> Expr:
    x = call["self"]
    kernel = _each(call["kernel_size"], num_axes)
    stride = _each(call["stride"], num_axes) if call["stride"] else kernel
    padding = _each(call["padding"], num_axes)
    return _batched(
        call,
        x,
        num_axes,
        lambda batch: operator(
            batch,
            pool_size=kernel,
            strides=stride,
            padding=padding * 2,
            ceil_mode=bool(call["ceil_mode"]),
            layout=_LAYOUTS[num_axes],
            **options,
        ),
    )


def _adaptive_average(num_axes: int) -> Converter:
    """Convert a mean over as many parts of each axis as are wanted."""

    def convert(call: Call) -> Expr:
        extents = list(call.shape[-num_axes:])
        return _batched(
            call,
            call["self"],
            num_axes,
            lambda batch: _ADAPTIVE[num_axes](batch, extents, layout=_LAYOUTS[num_axes]),
        )

    return convert


def _adaptive_max(num_axes: int) -> Converter:
    """Convert a maximum over as many parts of each axis as are wanted, one axis after the other.

    The last axis is first: of equal maxima, the one that stands first in its part then takes the gradient.
    """

    def convert(call: Call) -> list[Expr | None]:
        _require_no_places(call)
        x = call["self"]
        for axis in reversed(range(rank_of(x) - num_axes, rank_of(x))):
            x = _part_maxima(call, x, axis, call.shape[axis])
        return [x, None]

    return convert


def _part_maxima(call: Call, x: Expr, axis: int, count: int) -> Expr:
    """Emit the maximum of each part of an axis; parts overlap where the extent is no multiple of them."""
    extent = shape_of(x)[axis]
    if extent % count == 0:
        shape = shape_of(x)
        parts = call.reshaped(x, [*shape[:axis], count, extent // count, *shape[axis + 1 :]])
        found = first_extremum(call, relax.op.argmax, parts, axis + 1)
        return call.reshaped(found, [*shape[:axis], count, *shape[axis + 1 :]])
    maxima = []
    for part in range(count):
        start, end = part * extent // count, -((part + 1) * extent // -count)
        piece = call.emit(relax.op.strided_slice(x, [axis], [start], [end]))
        maxima.append(first_extremum(call, relax.op.argmax, piece, axis))
    return call.emit(relax.op.concat(maxima, axis=axis)) if count > 1 else maxima[0]


def _batched(call: Call, x: Expr, num_axes: int, pool: Callable[[Expr], Expr]) -> Expr:
    """Emit a pooling of a batch; one example is a batch of one."""
    if rank_of(x) == num_axes + 2:
        return call.emit(pool(x))
    batch = call.emit(relax.op.expand_dims(x, 0))
    return call.emit(relax.op.squeeze(call.emit(pool(batch)), [0]))


def _require_no_places(call: Call) -> None:
    if 1 in call.used_results:
        raise ValueError("something reads the places of its largest values")


def _each(given: int | Sequence[int], count: int) -> list[int]:
    """Return one number for each axis, where torch takes one for all as well."""
    numbers = [given] if isinstance(given, int) else [int(number) for number in given]
    return numbers * count if len(numbers) == 1 else numbers


POOLING: Mapping[str, Converter] = {
    **{f"max_pool{n}d.default": _max_pool(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices.default": _max_pool_with_indices(n) for n in (2, 3)},
    **{f"avg_pool{n}d.default": _average_pool(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d.default": _adaptive_average(n) for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d.default": _adaptive_average(n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d.default": _adaptive_max(n) for n in (1, 2, 3)},
}
"""Converter by name of operator and overload."""
