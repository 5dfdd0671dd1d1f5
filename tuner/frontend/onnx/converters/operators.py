"""Operators of ONNX in Relax's own, where TVM's importer lacks them, or has them otherwise than ONNX.

Some it writes as a kernel, which has no gradient, which no rule matches and no part can hold; a clip is in
every MobileNet. Of others it drops results or attributes. What is not taken here (widths or repeats that are
no constants) is left to the importer, and refused where it becomes a kernel. Checked in
tests/tuner/frontend/onnx/converters/test_operators.py, and against every case that onnx states by
`benchmarks.onnx_operators`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.frontend.onnx.converters.einsum import einsum
from tuner.frontend.onnx.converters.pooling import max_pool_with_places
from tuner.frontend.onnx.converters.resizing import Sampling, resize_by_matrices, resized_axes
from tuner.frontend.onnx.converters.spectra import fourier_transform, short_time_fourier_transform
from tuner.frontend.onnx.rewrite import Constant, text_of

Converter = Callable[[Sequence[Any], Mapping[str, Any], Constant], Any | None]
"""Gives the expression of a node, of its inputs and its attributes; None where it is left to the importer."""


def _clip(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any:
    x, *given = [*inputs, None, None][:3]
    dtype = _dtype(x)
    least, most = (
        said.get(name) if bound is None else bound if constant(bound) is None else constant(bound)
        for name, bound in zip(("min", "max"), given, strict=True)
    )
    numbers = [float(bound) for bound in (least, most) if isinstance(bound, float | np.ndarray)]
    if len(numbers) == 2 and "float" in dtype and numbers[0] <= numbers[1]:
        return relax.op.clip(x, *numbers)
    for bound, narrowed in ((least, relax.op.maximum), (most, relax.op.minimum)):
        if isinstance(bound, float | np.ndarray):
            x = x if np.isnan(bound) else narrowed(x, relax.const(np.asarray(bound, dtype), dtype))
        elif bound is not None:
            x = narrowed(x, _or_unbounded(bound, narrowed is relax.op.maximum))
    return x


def _or_unbounded(bound: Any, is_least: bool) -> Any:
    """Return a bound that bounds nothing where it is not a number."""
    dtype = _dtype(bound)
    if "float" not in dtype:
        return bound
    none = relax.const(-np.inf if is_least else np.inf, dtype)
    return relax.op.where(relax.op.isnan(bound), none, bound)


def _cumulative_sum(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    x, given = inputs
    axis, dtype, reverses = constant(given), _dtype(x), bool(said.get("reverse", 0))
    if axis is None:
        return None
    x = relax.op.flip(x, int(axis)) if reverses else x
    total = relax.op.cumsum(x, int(axis), dtype, bool(said.get("exclusive", 0)))
    return relax.op.flip(total, int(axis)) if reverses else total


def _gather(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return a look-up at constant places, of which the negative ones are counted here, not in each run."""
    x, given = inputs
    places = constant(given)
    if places is None or not _is_tensor(x):
        return None
    axis = int(said.get("axis", 0))
    extent = _extents(x)[axis]
    return relax.op.take(x, relax.const(np.where(places < 0, places + extent, places), "int64"), axis, "clip")


def _einsum(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any:
    del constant
    return einsum(said["equation"].decode(), inputs)


def _pad(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    x, widths, value, axes = [*inputs, None, None, None][:4]
    pads = said.get("pads") if widths is None else constant(widths)
    number = said.get("value", 0.0) if value is None else constant(value)
    listed = range(len(_extents(x))) if axes is None else constant(axes)
    if pads is None or number is None or listed is None:
        return None
    pairs = [(0, 0)] * len(_extents(x))
    for axis, *pair in zip(listed, *np.split(np.asarray(pads), 2), strict=True):
        pairs[int(axis)] = (int(pair[0]), int(pair[1]))
    mode = said.get("mode", b"constant").decode()
    added = [(max(0, low), max(0, high)) for low, high in pairs]
    if mode != "constant":
        padded = _repeated(x, added, mode)
    elif _dtype(x) == "bool":
        padded = relax.op.astype(_surrounded(relax.op.astype(x, "int8"), added, float(number)), "bool")
    else:
        padded = _surrounded(x, added, float(number))
    return _without_edges(
        padded, [extent + sum(pair) for extent, pair in zip(_extents(x), added, strict=True)], pairs
    )


def _surrounded(x: Any, pairs: Sequence[tuple[int, int]], number: float) -> Any:
    flat = list(itertools.chain(*pairs))
    return relax.op.nn.pad(x, flat, "constant", number) if any(flat) else x


def _without_edges(x: Any, extents: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Any:
    """Return a tensor without what negative widths take from its edges."""
    cut = [axis for axis, pair in enumerate(pairs) if min(pair) < 0]
    if not cut:
        return x
    begin = [max(0, -pairs[axis][0]) for axis in cut]
    return relax.op.strided_slice(x, cut, begin, [extents[axis] - max(0, -pairs[axis][1]) for axis in cut])


def _repeated(x: Any, pairs: Sequence[tuple[int, int]], mode: str) -> Any:
    """Return a tensor padded with its own elements: they are looked up, axis by axis."""
    for axis, (extent, pair) in enumerate(zip(_extents(x), pairs, strict=True)):
        if any(pair):
            places = np.pad(np.arange(extent), pair, mode)  # type: ignore[call-overload]  # ONNX's names are NumPy's
            x = relax.op.take(x, relax.const(places, "int64"), axis)
    return x


def _tile(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    x, repeats = inputs
    counts = constant(repeats)
    return None if counts is None else relax.op.tile(x, counts.tolist())


def _resize(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    x, crop, scales, sizes = [*inputs, None, None, None][:4]
    if "float" not in _dtype(x):
        return None
    given = {"crop": crop, "scales": scales, "sizes": sizes}
    values = {name: None if each is None else constant(each) for name, each in given.items()}
    # An empty tensor stands for one that is left out, before version 13.
    values = {name: None if each is None or not each.size else each for name, each in values.items()}
    if (values["scales"] is None) == (values["sizes"] is None):
        return None
    axes = resized_axes(_extents(x), said=said, **values)
    sampling = Sampling.of(said)
    is_plain = sampling.coordinates != "half_pixel_symmetric" and not (
        sampling.antialias
        or sampling.exclude_outside
        or values["crop"] is not None
        or said.get("axes")
        or text_of(said.get("keep_aspect_ratio_policy", b"stretch")) != "stretch"
    )
    is_image = len(_extents(x)) == 4 and all(axis.number >= 2 for axis in axes)
    is_even = all(axis.scale * axis.extent == axis.resized for axis in axes)
    if is_plain and is_image and is_even and len(inputs) - inputs.count(None) == 2:
        return None
    return resize_by_matrices(x, axes, sampling)


def _layer_normalization(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return the normalised tensor, the mean and the inverse of the deviation."""
    x, scale, bias = [*inputs, None][:3]
    rank = len(_extents(x))
    axes = list(range(said.get("axis", -1) % rank, rank))
    if said["tvm_custom"]["num_outputs"] == 1:
        return None
    shape = _extents(x)[axes[0] :]
    scale, bias = (
        relax.op.broadcast_to(relax.const(0.0, _dtype(x)) if each is None else each, shape)
        for each in (scale, bias)
    )
    epsilon = said.get("epsilon", 1e-5)
    wide = relax.op.astype(x, "float32") if said.get("stash_type", 1) == 1 else x
    spread = relax.op.add(relax.op.variance(wide, axes, True), relax.const(epsilon, "float32"))
    return relax.Tuple(
        [
            relax.op.nn.layer_norm(x, scale, bias, axes, epsilon),
            relax.op.mean(wide, axes, True),
            relax.op.rsqrt(spread),
        ]
    )


def _rms_normalization(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return `x / sqrt(mean(x²) + ε) · scale`, with a scale that broadcasts, where it is not of one axis."""
    x, scale = inputs
    rank = len(_extents(x))
    axes = list(range(said.get("axis", -1) % rank, rank))
    if len(axes) == 1 and len(_extents(scale)) == 1:
        return None
    dtype = _dtype(x)
    wide = relax.op.astype(x, "float32") if said.get("stash_type", 1) == 1 else x
    squares = relax.op.mean(relax.op.multiply(wide, wide), axes, True)
    spread = relax.op.add(squares, relax.const(said.get("epsilon", 1e-5), "float32"))
    return relax.op.multiply(
        relax.op.astype(relax.op.multiply(wide, relax.op.rsqrt(spread)), dtype),
        relax.op.astype(scale, dtype),
    )


def _is_inf(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    (x,) = inputs
    limit = np.inf if said.get("detect_positive", 1) else -np.inf
    both = said.get("detect_positive", 1) == said.get("detect_negative", 1)
    if both:
        is_any = said.get("detect_positive", 1)
        return None if is_any else relax.op.full(x.ty.shape, relax.const(False), "bool")
    return relax.op.equal(x, relax.const(limit, _dtype(x)))


def _mod(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return the remainder that has the sign of the divisor, infinite ones included."""
    x, y = inputs
    if said.get("fmod", 0) or not all(_is_tensor(each) and "float" in _dtype(each) for each in inputs):
        return None
    rest = relax.op.mod(x, y)
    is_opposite = relax.op.less(relax.op.multiply(rest, y), relax.const(0.0, _dtype(x)))
    return relax.op.where(is_opposite, relax.op.add(rest, y), rest)


def _bit_shift(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return a shift that is of all bits where it is of as many as there are, or of less than none."""
    x, y = inputs
    if not all(_is_tensor(each) for each in inputs):
        return None
    dtype = _dtype(x)
    bits = np.iinfo(dtype).bits
    count = constant(y)
    if count is not None and ((count >= 0) & (count < bits)).all():
        return None
    zero, last = relax.const(0, dtype), relax.const(bits - 1, dtype)
    fits = relax.op.logical_and(relax.op.greater_equal(y, zero), relax.op.less_equal(y, last))
    most = relax.op.where(fits, y, last)
    if text_of(said.get("direction", b"LEFT")) == "RIGHT":
        shifted = relax.op.right_shift(x, most)
        # The last bit of a signed number is its sign.
        return shifted if dtype.startswith("int") else relax.op.where(fits, shifted, zero)
    return relax.op.where(fits, relax.op.left_shift(x, most), zero)


def _space_to_depth(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    if text_of(said.get("mode", b"DCR")) != "CRD":
        return None
    (x,) = inputs
    block = int(said["blocksize"])
    batch, channels, height, width = _extents(x)
    blocks = relax.op.reshape(x, (batch, channels, height // block, block, width // block, block))
    by_channel = relax.op.permute_dims(blocks, [0, 1, 3, 5, 2, 4])
    return relax.op.reshape(by_channel, (batch, channels * block**2, height // block, width // block))


def _pow(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return the power of whole numbers, or of numbers of two types, in the first's type."""
    x, y = inputs
    if not all(_is_tensor(each) for each in inputs):
        return None
    kinds = [each for each in map(_dtype, inputs) if "float" in each]
    if len(kinds) == 2 and kinds[0] == kinds[1]:
        return None
    wide = max(kinds or ["float64"], key=lambda each: int(each.removeprefix("b").removeprefix("float")))
    power = relax.op.power(relax.op.astype(x, wide), relax.op.astype(y, wide))
    return relax.op.astype(power if kinds else relax.op.round(power), _dtype(x))


def _lp_normalization(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return a tensor over its norm along an axis; zeros stay zeros."""
    (x,) = inputs
    axis, p = said.get("axis", -1), said.get("p", 2)
    if p == 1:
        norm = relax.op.sum(relax.op.abs(x), [axis], True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), [axis], True))
    is_zero = relax.op.equal(norm, relax.const(0.0, _dtype(x)))
    return relax.op.divide(x, relax.op.where(is_zero, relax.const(1.0, _dtype(x)), norm))


def _cumulative_product(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    x, place = inputs
    axis = constant(place)
    if axis is None:
        raise ValueError("its axis is no constant")
    number, is_exclusive = int(axis.item()), bool(said.get("exclusive", 0))
    if not said.get("reverse", 0):
        return relax.op.cumprod(x, number, _dtype(x), is_exclusive)
    from_the_end = relax.op.cumprod(relax.op.flip(x, number), number, _dtype(x), is_exclusive)
    return relax.op.flip(from_the_end, number)


def _eye_like(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    (x,) = inputs
    if "dtype" not in said:
        return None
    rows, columns = _extents(x)
    return relax.op.eye(rows, columns, int(said.get("k", 0)), onnx_frontend.get_type(said["dtype"]))


def _extremum(
    inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant, *, is_maximum: bool
) -> Any | None:
    """Return the extremum of truth values over axes."""
    x, given = [*inputs, None][:2]
    named = said.get("axes") if given is None else constant(given)
    if (given is not None and named is None) or _dtype(x) != "bool":
        return None
    if named is None or not len(named):
        if said.get("noop_with_empty_axes", 0):
            return x
        named = range(len(_extents(x)))
    axes, keeps = list(map(int, named)), bool(said.get("keepdims", 1))
    reduce = relax.op.max if is_maximum else relax.op.min
    return relax.op.astype(reduce(relax.op.astype(x, "int8"), axes, keeps), "bool")


def _one_hot(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    indices, depth, values = inputs
    count, levels = constant(depth), constant(values)
    if count is None or levels is None:
        return None
    extent = int(count.item())
    places = relax.op.astype(indices, "int64")
    # Indices count from the end where they are negative; others beyond an end are of no class.
    places = relax.op.where(
        relax.op.less(places, relax.const(0, "int64")),
        relax.op.add(places, relax.const(extent, "int64")),
        places,
    )
    axis = int(said.get("axis", -1))
    rank = len(_extents(indices)) + 1
    shape = [extent if number == axis % rank else 1 for number in range(rank)]
    classes = relax.const(np.arange(extent).reshape(shape), "int64")
    is_one = relax.op.equal(relax.op.expand_dims(places, axis), classes)
    off, on = (relax.const(level, str(levels.dtype)) for level in levels)
    return relax.op.where(is_one, on, off)


def _elu(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return x where it is above 0, and α · (exp(x) - 1) below, of other types than float32."""
    (x,) = inputs
    dtype = _dtype(x)
    if dtype == "float32":
        return None
    zero, one = relax.const(0.0, dtype), relax.const(1.0, dtype)
    below = relax.op.subtract(relax.op.exp(relax.op.minimum(x, zero)), one)
    scaled = relax.op.multiply(relax.const(said.get("alpha", 1.0), dtype), below)
    return relax.op.where(relax.op.greater(x, zero), x, scaled)


def _column_to_image(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return the sum of overlapping blocks: a transposed convolution by kernels of a single one."""
    x, image, block = inputs
    extents, kernel = constant(image), constant(block)
    if extents is None or kernel is None or len(kernel) != _IMAGE_AXES:
        raise ValueError("extents of the image and of blocks are to be two constants each")
    axes = range(_IMAGE_AXES)
    strides, dilations = (list(said.get(name) or [1, 1]) for name in ("strides", "dilations"))
    pads = list(said.get("pads") or [0] * 4)
    batch, rows, _ = _extents(x)
    size = int(np.prod(kernel))
    channels = rows // size
    spans = [int((kernel[axis] - 1) * dilations[axis] + 1) for axis in axes]
    room = [int(extents[axis]) + pads[axis] + pads[axis + 2] - spans[axis] for axis in axes]
    blocks = [room[axis] // strides[axis] + 1 for axis in axes]
    places = np.tile(np.eye(size), (channels, 1)).reshape(rows, 1, *map(int, kernel))
    return relax.op.nn.conv2d_transpose(
        relax.op.reshape(x, (batch, rows, *blocks)),
        relax.const(places, _dtype(x)),
        strides=strides,
        padding=pads,
        output_padding=[room[axis] % strides[axis] for axis in axes],
        dilation=dilations,
        groups=channels,
    )


def _compress(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    x, chosen = inputs
    flags = constant(chosen)
    if flags is None:
        raise ValueError("what it keeps is known only when the model runs")
    places = relax.const(np.flatnonzero(flags), "int64")
    if "axis" not in said:
        return relax.op.take(relax.op.flatten(x), places, 0)
    return relax.op.take(x, places, said["axis"])


def _reverse_sequence(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return each example with its first elements along time, as many as are said, in reverse."""
    x, lengths = inputs
    time, batch = said.get("time_axis", 0), said.get("batch_axis", 1)
    shape = _extents(x)
    steps = _along(np.arange(shape[time]), time, len(shape))
    one_axis = _one_axis(shape[batch], batch, len(shape))
    known = constant(lengths)
    if known is not None:
        counts = known.astype("int64").reshape(one_axis)
        places = np.where(steps < counts, counts - 1 - steps, steps)
        return relax.op.gather_elements(x, relax.const(np.broadcast_to(places, shape).copy(), "int64"), time)
    counts = relax.op.reshape(relax.op.astype(lengths, "int64"), one_axis)
    forwards = relax.const(steps, "int64")
    backwards = relax.op.subtract(relax.op.subtract(counts, relax.const(1, "int64")), forwards)
    places = relax.op.where(relax.op.less(forwards, counts), backwards, forwards)
    return relax.op.gather_elements(x, relax.op.broadcast_to(places, shape), time)


def _tensor_scatter(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return a cache in which each example's new rows stand from its own place on, or around the end."""
    cache, update, first = [*inputs, None][:3]
    shape, new = _extents(cache), _extents(update)
    axis = said.get("axis", -2) % len(shape)
    places = relax.const(_along(np.arange(new[axis]), axis, len(shape)), "int64")
    if first is not None:
        start = relax.op.reshape(relax.op.astype(first, "int64"), _one_axis(shape[0], 0, len(shape)))
        places = relax.op.add(start, places)
    if text_of(said.get("mode", "linear")) == "circular":
        places = relax.op.mod(places, relax.const(shape[axis], "int64"))
    return relax.op.scatter_elements(cache, relax.op.broadcast_to(places, new), update, axis)


def _split_to_sequence(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return parts along an axis, of one place each and then without the axis where widths are left out."""
    x, given = [*inputs, None][:2]
    axis = said.get("axis", 0) % len(_extents(x))
    extent = _extents(x)[axis]
    if given is None and not said.get("keepdims", 1):
        return relax.Tuple([relax.op.take(x, relax.const(place, "int64"), axis) for place in range(extent)])
    widths = np.array(1) if given is None else constant(given)
    if widths is None:
        raise ValueError("where it splits is known only when the model runs")
    starts = np.cumsum([0, *widths[:-1]]) if widths.ndim else np.arange(0, extent, int(widths))
    ends = [*starts[1:], extent]
    return relax.Tuple(
        [
            relax.op.strided_slice(x, [axis], [int(start)], [int(end)])
            for start, end in zip(starts, ends, strict=True)
        ]
    )


def _sequence_at(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    sequence, place = inputs
    number = constant(place)
    if number is None:
        raise ValueError("its place is known only when the model runs")
    return sequence[int(number)]


_IMAGE_AXES = 2


def _one_axis(extent: int, axis: int, rank: int) -> tuple[int, ...]:
    """Return a shape of which one axis alone is longer than 1."""
    return tuple(extent if place == axis else 1 for place in range(rank))


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return values.reshape(_one_axis(len(values), axis, rank))


CONVERTERS: Mapping[str, Converter] = {
    "BitShift": _bit_shift,
    "Clip": _clip,
    "Col2Im": _column_to_image,
    "Compress": _compress,
    "CumProd": _cumulative_product,
    "CumSum": _cumulative_sum,
    "DFT": fourier_transform,
    "Einsum": _einsum,
    "Elu": _elu,
    "EyeLike": _eye_like,
    "Gather": _gather,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MaxPool": max_pool_with_places,
    "Mod": _mod,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Pow": _pow,
    "RMSNormalization": _rms_normalization,
    "ReduceMax": functools.partial(_extremum, is_maximum=True),
    "ReduceMin": functools.partial(_extremum, is_maximum=False),
    "Resize": _resize,
    "ReverseSequence": _reverse_sequence,
    "STFT": short_time_fourier_transform,
    "SequenceAt": _sequence_at,
    "SpaceToDepth": _space_to_depth,
    "SplitToSequence": _split_to_sequence,
    "TensorScatter": _tensor_scatter,
    "Tile": _tile,
}
"""Converters by operator."""

ADDED = frozenset({"Col2Im", "CumProd", "DFT", "LpNormalization", "ReverseSequence", "STFT", "TensorScatter"})
"""Operators that TVM's importer has no converter for."""


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _is_tensor(value: Any) -> bool:
    """Whether a value is computed; the importer holds some shapes as numbers."""
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def _extents(value: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in value.ty.shape)
