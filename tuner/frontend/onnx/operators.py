"""Operators of ONNX in Relax's own, where TVM's importer writes a kernel that nothing else can read.

A kernel has no gradient, no rule matches it, and only `tvm` runs it; a clip is in every MobileNet.
What is not taken here (bounds, widths or repeats that are no constants, other modes of padding, numbers that
are not of floating point) is left to the importer. Checked in tests/tuner/frontend/onnx/test_operators.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

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


CONVERTERS: Mapping[str, Converter] = {"Clip": _clip, "Pad": _pad, "Tile": _tile}
"""Converters by operator."""


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)
