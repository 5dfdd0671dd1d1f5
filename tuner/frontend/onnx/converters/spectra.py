"""Fourier transforms of ONNX as products with constant matrices: what an audio model's front end consists of.

A signal's real and imaginary numbers are the rows of one matrix, those of its spectrum the columns, so that a
transform of N numbers is one product of 2N by 2N at most, which every backend has and which has a gradient.
For the lengths of audio frames that is as fast as it need be. Checked in
tests/tuner/frontend/onnx/converters/test_spectra.py, and against every case that onnx states by
`benchmarks.onnx_operators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tuner.frontend.onnx.rewrite import Constant

_OLD_AXIS = 1
"""Along which a transform goes that names no axis, before version 20."""

_PARTS = 2
"""The real and the imaginary number."""


def fourier_transform(inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant) -> Any | None:
    """Return the spectrum of a signal along an axis (DFT), or the signal of a spectrum.

    Half of a spectrum, of a real signal, is transformed back to real numbers.

    Raises:
        ValueError: its length or axis is no constant.
    """
    x, length, axis = [*inputs, None, None][:3]
    shape = _extents(x)
    if "axis" in said or axis is None:  # an attribute before version 20, where another axis is left out
        place = said.get("axis", _OLD_AXIS if said["tvm_custom"]["opset"] < 20 else -2)
    else:
        place = _number(axis, constant, "axis")
    place = int(place) % len(shape)
    is_inverse, is_half = bool(said.get("inverse", 0)), bool(said.get("onesided", 0))
    from_half = is_inverse and is_half
    count = 2 * (shape[place] - 1) if from_half else shape[place]
    if length is not None:
        count = _number(length, constant, "length")
    # A longer signal is cut, a shorter one has zeros behind it.
    kept = min(count // 2 + 1 if from_half else count, shape[place])
    if kept < shape[place]:
        x = relax.op.strided_slice(x, [place], [0], [kept])
    if from_half:
        matrix = _matrix_from_half(kept, count)
    else:
        matrix = _matrix(kept, count, shape[-1], is_inverse=is_inverse, is_half=is_half)
    order = [*(each for each in range(len(shape) - 1) if each != place), place, len(shape) - 1]
    moved = relax.op.permute_dims(x, order)
    outer = [shape[each] for each in order[:-2]]
    back = np.argsort(order).tolist()
    result = _transformed(moved, outer, matrix, _dtype(inputs[0]), 1 if from_half else _PARTS)
    return relax.op.permute_dims(result, back)


def short_time_fourier_transform(
    inputs: Sequence[Any], said: Mapping[str, Any], constant: Constant
) -> Any | None:
    """Return the spectra of a signal's frames (STFT), shape (batch, frames, frequencies, 2).

    Raises:
        ValueError: the step or length of frames is no constant.
    """
    signal, step, window, length = [*inputs, None, None][:4]
    shape = _extents(signal)
    batch, total = shape[:2]
    parts = shape[2] if len(shape) > 2 else 1
    if length is not None:
        count = _number(length, constant, "length of frames")
    elif window is not None:
        (count,) = _extents(window)
    else:
        raise ValueError("neither a window nor the length of frames is given")
    every = _number(step, constant, "step of frames")
    starts = np.arange((total - count) // every + 1) * every
    places = relax.const(starts[:, None] + np.arange(count), "int64")
    frames = relax.op.take(relax.op.reshape(signal, (batch, total, parts)), places, 1)
    if window is not None:
        frames = relax.op.multiply(frames, relax.op.reshape(window, (count, 1)))
    is_half = bool(said.get("onesided", 1)) and parts == 1
    matrix = _matrix(count, count, parts, is_inverse=False, is_half=is_half)
    return _transformed(frames, [batch, len(starts)], matrix, _dtype(signal), _PARTS)


def _transformed(x: Any, outer: Sequence[int], matrix: np.ndarray, dtype: str, parts: int) -> Any:
    """Return the product of a signal with a matrix; the parts of numbers are the last axis of both."""
    rows, columns = matrix.shape
    product = relax.op.matmul(relax.op.reshape(x, (*outer, rows)), relax.const(matrix, dtype))
    return relax.op.reshape(product, (*outer, columns // parts, parts))


def _matrix(kept: int, count: int, parts: int, *, is_inverse: bool, is_half: bool) -> np.ndarray:
    """Return the matrix of a transform, shape (kept x parts, frequencies x 2).

    Args:
        kept: numbers of the signal; the others are zeros.
        count: numbers with these.
        parts: 1 of a real signal, 2 of a complex one.
        is_inverse: whether it is the spectrum that is given.
        is_half: whether frequencies above half of the sampling rate are left out.
    """
    frequencies = count // 2 + 1 if is_half else count
    turns = np.outer(np.arange(kept), np.arange(frequencies)) % count
    root = np.exp((2j if is_inverse else -2j) * np.pi * turns / count) / (count if is_inverse else 1)
    terms = root[:, None, :] * np.array([1, 1j])[None, :parts, None]
    return np.stack([terms.real, terms.imag], axis=-1).reshape(kept * parts, frequencies * _PARTS)


def _matrix_from_half(kept: int, count: int) -> np.ndarray:
    """Return the matrix from a real signal's frequencies up to half of the sampling rate to the signal.

    Shape (kept x 2, count). Each frequency stands for its conjugate too, but for the first, and the last of
    an even count.
    """
    turns = np.outer(np.arange(kept), np.arange(count)) % count
    root = np.exp(2j * np.pi * turns / count) / count
    stands_for = np.where((2 * np.arange(kept)) % count == 0, 1, 2)[:, None, None]
    return (stands_for * np.stack([root.real, -root.imag], axis=1)).reshape(kept * _PARTS, count)


def _number(value: Any, constant: Constant, what: str) -> int:
    known = constant(value)
    if known is None:
        raise ValueError(f"its {what} is known only when the model runs")
    return int(known.item())


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _extents(value: Any) -> list[int]:
    return [int(extent) for extent in value.ty.shape]
