"""Operators of ONNX in Relax's own, where TVM's importer lacks them, or has them otherwise than ONNX.

Some it writes as a kernel, which has no gradient, which no rule matches and only `tvm` runs; a clip is in
every MobileNet. Of others it drops results or attributes. What is not taken here (bounds, widths or repeats
that are no constants, other modes of padding) is left to the importer. Checked in
tests/tuner/frontend/onnx/test_operators.py, and against every case that onnx states by
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

from tuner.frontend.onnx.resizing import Sampling, resize_by_matrices, resized_axes
from tuner.frontend.onnx.rewrite import text_of

Constant = Callable[[Any], np.ndarray | None]
"""Gives the value of an input that is a constant; None for others, and for an input that is left out."""

Converter = Callable[[Sequence[Any], Mapping[str, Any], Constant], Any | None]
"""Gives the expression of a node, of its inputs and its attributes; None where it is left to the importer."""


def _clip(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    (x, *given) = inputs
    if "float" not in _dtype(x):
        return None
    bounds = []
    for place, name in enumerate(("min", "max")):
        is_given = place < len(given) and given[place] is not None
        value = constant(given[place]) if is_given else said.get(name)
        if is_given and value is None:
            return None
        bounds.append(None if value is None or np.isnan(value) else float(value))
    least, most = bounds
    if least is not None and most is not None:
        return relax.op.clip(x, least, most) if least <= most else None
    if least is not None:
        return relax.op.maximum(x, relax.const(least, _dtype(x)))
    return x if most is None else relax.op.minimum(x, relax.const(most, _dtype(x)))


def _pad(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    x, widths, value, axes = [*inputs, None, None, None][:4]
    if said.get("mode", b"constant") != b"constant" or axes is not None or "float" not in _dtype(x):
        return None
    pads = said.get("pads") if widths is None else constant(widths)
    number = said.get("value", 0.0) if value is None else constant(value)
    if pads is None or number is None or min(pads) < 0:
        return None
    before, after = np.split(np.asarray(pads), 2)
    pairs = zip(before.tolist(), after.tolist(), strict=True)
    return relax.op.nn.pad(x, list(itertools.chain(*pairs)), "constant", float(number))


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


CONVERTERS: Mapping[str, Converter] = {
    "BitShift": _bit_shift,
    "Clip": _clip,
    "CumProd": _cumulative_product,
    "Elu": _elu,
    "EyeLike": _eye_like,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "Mod": _mod,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Pow": _pow,
    "RMSNormalization": _rms_normalization,
    "ReduceMax": functools.partial(_extremum, is_maximum=True),
    "ReduceMin": functools.partial(_extremum, is_maximum=False),
    "Resize": _resize,
    "SpaceToDepth": _space_to_depth,
    "Tile": _tile,
}
"""Converters by operator."""

ADDED = frozenset({"CumProd", "LpNormalization"})
"""Operators that TVM's importer has no converter for."""


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _is_tensor(value: Any) -> bool:
    """Whether a value is computed; the importer holds some shapes as numbers."""
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def _extents(value: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in value.ty.shape)
