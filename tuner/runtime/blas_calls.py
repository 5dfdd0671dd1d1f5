"""Packed functions for matrix products by the BLAS inside NumPy, on views of the virtual machine's tensors.

Checked in tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tvm_ffi

PACKED_NAME = "tessel.blas.matmul"

_ORDERS: tuple[Literal["C", "F"], ...] = ("C", "F")
"""Ways to lay out a bound matrix: row by row, or column by column."""

_NUM_TRIALS = 3
"""Runs of each way when a matrix is bound; the least counts."""


@tvm_ffi.register_global_func(f"{PACKED_NAME}.nn", override=True)
def _multiply(left: Any, right: Any, result: Any) -> None:
    _matmul(np.from_dlpack(left), np.from_dlpack(right), np.from_dlpack(result))


@tvm_ffi.register_global_func(f"{PACKED_NAME}.nt", override=True)
def _multiply_right_transposed(left: Any, right: Any, result: Any) -> None:
    _matmul(np.from_dlpack(left), np.from_dlpack(right).mT, np.from_dlpack(result))


@tvm_ffi.register_global_func(f"{PACKED_NAME}.tn", override=True)
def _multiply_left_transposed(left: Any, right: Any, result: Any) -> None:
    _matmul(np.from_dlpack(left).mT, np.from_dlpack(right), np.from_dlpack(result))


@tvm_ffi.register_global_func(f"{PACKED_NAME}.tt", override=True)
def _multiply_both_transposed(left: Any, right: Any, result: Any) -> None:
    _matmul(np.from_dlpack(left).mT, np.from_dlpack(right).mT, np.from_dlpack(result))


class _BoundMatrix:
    """A constant matrix in the memory layout that is fastest for products with this many rows.

    It is a copy: what it is made from may lie in memory that the program that binds it uses again.
    """

    def __init__(self, matrix: np.ndarray, num_rows: int, way: int | None = None) -> None:
        if way is None:
            rows = np.ones((num_rows, matrix.shape[0]), matrix.dtype)
            result = np.empty((num_rows, matrix.shape[1]), matrix.dtype)
            both = [np.array(matrix, order=order) for order in _ORDERS]
            way = min((0, 1), key=lambda each: _least_s(lambda: np.matmul(rows, both[each], out=result)))
            self.matrix = both[way]
        else:
            self.matrix = np.array(matrix, order=_ORDERS[way])
        self.way = way


def bind(transposed: Any, num_rows: Any, matrix: Any, way: int | None = None) -> _BoundMatrix:
    """Return a matrix for products with so many rows, in the given order or in the faster one."""
    array = np.from_dlpack(matrix)
    return _BoundMatrix(array.T if int(transposed) else array, int(num_rows), way)


tvm_ffi.register_global_func(f"{PACKED_NAME}.bind", bind, override=True)


@tvm_ffi.register_global_func(f"{PACKED_NAME}.bound", override=True)
def _multiply_by_bound(left: Any, right: _BoundMatrix, result: Any) -> None:
    _matmul(np.from_dlpack(left), right.matrix, np.from_dlpack(result))


def _least_s(run: Callable[[], object]) -> float:
    """Return the minimum time of a few runs, after a warm-up run."""
    run()
    found = []
    for _ in range(_NUM_TRIALS):
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return min(found)


def _matmul(left: np.ndarray, right: np.ndarray, result: np.ndarray) -> None:
    """Multiply into the result; a batch of rows times one matrix is one call of BLAS, not one a batch."""
    if left.ndim > 2 and right.ndim == 2 and left.flags.c_contiguous:
        rows = left.reshape(-1, left.shape[-1])
        np.matmul(rows, right, out=result.reshape(-1, result.shape[-1]))
    else:
        np.matmul(left, right, out=result)
