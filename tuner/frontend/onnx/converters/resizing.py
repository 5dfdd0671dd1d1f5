"""`Resize` of ONNX as products with matrices, where TVM's operator samples elsewhere or not at all.

Whatever the mode, each element of a resized axis is a weighted sum of the axis's own, so that an axis of n
elements becomes one of m by a matrix of m × n; axes follow one another. TVM's operator, which is faster,
takes an extent for its scale: where a scale does not divide evenly, or where elements are averaged
(`antialias`), left out or cropped, it is not what ONNX means (Resize-19 in onnx's Operators.md). Checked
against onnx's own reference in tests/tuner/frontend/onnx/converters/test_resizing.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tuner.frontend.onnx.rewrite import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """How one axis is resized.

    Attributes:
        extent: elements before.
        resized: elements after.
        scale: as it is stated, or the one extent over the other.
        crop: where a region begins and ends, in parts of the extent.
    """

    number: int
    extent: int
    resized: int
    scale: float
    crop: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Where and with what weights elements are sampled: attributes of `Resize`, as ONNX has them."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Sampling:
        """Read a node's attributes."""
        return cls(
            mode=text_of(said.get("mode", b"nearest")),
            coordinates=text_of(said.get("coordinate_transformation_mode", b"half_pixel")),
            nearest=text_of(said.get("nearest_mode", b"round_prefer_floor")),
            cubic=float(said.get("cubic_coeff_a", -0.75)),
            antialias=bool(said.get("antialias", 0)),
            exclude_outside=bool(said.get("exclude_outside", 0)),
            extrapolation=float(said.get("extrapolation_value", 0.0)),
        )


def resize_by_matrices(x: Any, axes: Sequence[Axis], sampling: Sampling) -> Any:
    """Return the expression of a tensor with axes resized.

    Args:
        x: of floating point.
        axes: those that are resized.
    """
    dtype, rank = str(x.ty.dtype), len(x.ty.shape)
    inside = np.ones((1,) * rank, bool)
    for axis in axes:
        weights, is_inside = axis_weights(axis, sampling)
        order = [*(number for number in range(rank) if number != axis.number), axis.number]
        back = [order.index(number) for number in range(rank)]
        product = relax.op.matmul(
            relax.op.permute_dims(x, order), relax.const(weights.T.astype("float32"), dtype)
        )
        x = relax.op.permute_dims(product, back)
        inside = inside & is_inside.reshape([-1 if number == axis.number else 1 for number in range(rank)])
    if inside.all():
        return x
    return relax.op.where(relax.const(inside), x, relax.const(sampling.extrapolation, dtype))


def resized_axes(
    shape: Sequence[int],
    *,
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    crop: np.ndarray | None,
    said: Mapping[str, Any],
) -> list[Axis]:
    """Return the axes that a node resizes, of a tensor of this shape.

    Args:
        scales: of the axes that are named, or of all; None where sizes are given.
        sizes: the same, as extents.
        crop: where regions of these axes begin, and then where they end; None for all of each.
        said: attributes of the node.
    """
    named = [axis % len(shape) for axis in said.get("axes") or range(len(shape))]
    policy = text_of(said.get("keep_aspect_ratio_policy", b"stretch"))
    crops = (
        [(0.0, 1.0)] * len(named)
        if crop is None or len(crop) != 2 * len(named)
        else list(zip(map(float, crop[: len(named)]), map(float, crop[len(named) :]), strict=True))
    )
    if sizes is not None:
        ratios = [int(size) / shape[axis] for size, axis in zip(sizes, named, strict=True)]
        if policy == "stretch":
            resized = [int(size) for size in sizes]
        else:
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [ratio] * len(named)
            resized = [math.floor(ratio * shape[axis] + 0.5) for axis in named]
    else:
        assert scales is not None
        ratios = [float(scale) for scale in scales]
        resized = [math.floor(ratio * shape[axis]) for ratio, axis in zip(ratios, named, strict=True)]
    return [
        Axis(number=axis, extent=shape[axis], resized=extent, scale=ratio, crop=region)
        for axis, extent, ratio, region in zip(named, resized, ratios, crops, strict=True)
        if (extent, ratio, region) != (shape[axis], 1.0, (0.0, 1.0))
    ]


def axis_weights(axis: Axis, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of an axis's elements, (resized, extent), and which lie inside, (resized,)."""
    places = _places(axis, sampling.coordinates)
    inside = np.ones(axis.resized, bool)
    if sampling.coordinates == "tf_crop_and_resize":
        inside = (places >= 0) & (places <= axis.extent - 1)
    below = np.floor(places)
    ratios = places - below
    offsets, taps = _taps(ratios, axis.scale, sampling)
    columns = below[:, None].astype(int) + offsets[None, :]
    if sampling.exclude_outside:
        taps = np.where((columns >= 0) & (columns < axis.extent), taps, 0.0)
        taps = taps / taps.sum(axis=1, keepdims=True)
    weights = np.zeros((axis.resized, axis.extent))
    rows = np.broadcast_to(np.arange(axis.resized)[:, None], columns.shape)
    # Beyond an end there is more of what stands at the end.
    np.add.at(weights, (rows, np.clip(columns, 0, axis.extent - 1)), taps)
    weights[~inside] = 0.0
    return weights, inside


def _places(axis: Axis, coordinates: str) -> np.ndarray:
    """Return where each resized element is sampled, in elements of the axis before."""
    at = np.arange(axis.resized, dtype="float64")
    exact = axis.scale * axis.extent
    if coordinates == "align_corners":
        return at * 0 if exact == 1 else at * (axis.extent - 1) / (exact - 1)
    if coordinates == "asymmetric":
        return at / axis.scale
    if coordinates == "tf_crop_and_resize":
        start, end = axis.crop
        length = (end - start) * (axis.extent - 1)
        within = at * 0 + length / 2 if exact == 1 else at * length / (exact - 1)
        return within + start * (axis.extent - 1)
    if coordinates == "pytorch_half_pixel" and exact == 1:
        return at * 0 - 0.5
    places = (at + 0.5) / axis.scale - 0.5
    if coordinates == "half_pixel_symmetric":
        # The centre stays where it is, though extents are rounded.
        places += axis.extent / 2 * (1 - axis.resized / exact)
    return places


def _taps(ratios: np.ndarray, scale: float, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return which elements count, from the one below on, and the weight of each, (places, elements)."""
    if sampling.mode == "nearest":
        is_upper = {
            "round_prefer_floor": ratios > 0.5,
            "round_prefer_ceil": ratios >= 0.5,
            "floor": ratios < 0,
            "ceil": ratios > 0,
        }[sampling.nearest].astype(float)
        return np.arange(2), np.stack([1 - is_upper, is_upper], axis=1)
    narrowed = min(scale, 1.0) if sampling.antialias else 1.0
    reach = 1 if sampling.mode == "linear" else 2
    first = math.floor(-reach / narrowed) + 1
    offsets = np.arange(first, 2 - first)
    distances = np.abs((offsets[None, :] - ratios[:, None]) * narrowed)
    if sampling.mode == "linear":
        taps = np.clip(1 - distances, 0, None)
    else:
        a = sampling.cubic
        near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
        far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
        taps = np.where(distances <= 1, near, np.where(distances < 2, far, 0.0))
    # Narrowed taps do not add up to one by themselves.
    return offsets, taps / taps.sum(axis=1, keepdims=True) if narrowed < 1 else taps
