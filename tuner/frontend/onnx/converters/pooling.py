"""The largest of each window of ONNX, with its place, which TVM's importer drops.

Windows are gathered by their places, which are known at import; what lies outside is lower than any number.
Checked in tests/tuner/frontend/onnx/converters/test_pooling.py, and against every case that onnx states by
`benchmarks.onnx_operators`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from tuner.frontend.onnx.rewrite import Constant

Places = npt.NDArray[np.int64]


def max_pool_with_places(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return the maxima and their places in the whole tensor; None where nobody wants places (MaxPool)."""
    if said["tvm_custom"]["num_outputs"] == 1:
        return None
    (x,) = inputs
    dtype, shape = str(x.ty.dtype), [int(extent) for extent in x.ty.shape]
    images, extents = math.prod(shape[:2]), shape[2:]
    total = math.prod(extents)
    along = _windows(extents, said)
    counts = [len(places) for places in along]
    read, named = _flat(along, extents, is_last_first=bool(said.get("storage_order", 0)))
    flat = relax.op.reshape(x, (images, total))
    outside = relax.const(np.full((images, 1), _lowest(dtype)), dtype)
    windows = relax.op.take(relax.op.concat([flat, outside], 1), relax.const(read, "int64"), 1)
    best = relax.op.argmax(windows, -1)
    first = relax.const(np.arange(len(read)) * read.shape[1], "int64")
    found = relax.op.take(relax.const(named.ravel(), "int64"), relax.op.add(best, first), 0)
    image = relax.const(np.arange(images)[:, None] * total, "int64")
    result = (*shape[:2], *counts)
    return relax.Tuple(
        [
            relax.op.reshape(relax.op.max(windows, [-1]), result),
            relax.op.reshape(relax.op.add(found, image), result),
        ]
    )


def _windows(extents: Sequence[int], said: Mapping[str, Any]) -> list[Places]:
    """Return along each axis the places of every window, shape (windows, size); some lie outside."""
    size = list(said["kernel_shape"])
    pads = list(said.get("pads") or [0] * (2 * len(size)))
    strides, dilations = (list(said.get(name) or [1] * len(size)) for name in ("strides", "dilations"))
    found = []
    for axis, extent in enumerate(extents):
        room = extent + pads[axis] + pads[axis + len(size)] - (size[axis] - 1) * dilations[axis] - 1
        count = (-(-room // strides[axis]) if said.get("ceil_mode", 0) else room // strides[axis]) + 1
        if (count - 1) * strides[axis] >= extent + pads[axis]:  # a window that begins behind everything
            count -= 1
        starts = np.arange(count) * strides[axis] - pads[axis]
        found.append(starts[:, None] + np.arange(size[axis]) * dilations[axis])
    return found


def _flat(along: Sequence[Places], extents: Sequence[int], *, is_last_first: bool) -> tuple[Places, Places]:
    """Return where each window reads an image, shape (windows, size), and how these places are named.

    Places outside are read behind the image's last.

    Args:
        along: each axis the places of every window.
        is_last_first: whether places are named in the order in which the first axis moves first.
    """
    rank = len(extents)
    places, outside = [], np.zeros((1,) * (2 * rank), dtype=bool)
    for axis, windows in enumerate(along):
        grid = [1] * (2 * rank)
        grid[axis], grid[rank + axis] = windows.shape
        at = windows.reshape(grid)
        outside = outside | (at < 0) | (at >= extents[axis])
        places.append(np.clip(at, 0, extents[axis] - 1))
    numbers = np.arange(math.prod(extents))
    shape = (math.prod(len(windows) for windows in along), -1)
    read = np.where(outside, numbers.size, numbers.reshape(extents)[tuple(places)])
    named = numbers.reshape(extents, order="F" if is_last_first else "C")[tuple(places)]
    return read.reshape(shape), named.reshape(shape)


def _lowest(dtype: str) -> float | int:
    return -math.inf if "float" in dtype else int(np.iinfo(dtype).min)
