"""Products by `ldmatrix` and `mma` as TVM's own schedule writes them, whose fragments are laid out by TVM.

No rule that is used here takes them yet: DLight's and MetaSchedule's reach tensor cores by `nvcuda::wmma`.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te
from tvm.testing.tir import mma_schedule

from tuner.backends.metaschedule.backend import build_trial, tuning_target
from tuner.backends.metaschedule.intrinsics import import_intrinsics
from tuner.targets.resolution import resolve_target

EXTENT = 64
TYPES = {
    "float16": np.float16,
    "float32": np.float32,
    "int8": np.int8,
    "int32": np.int32,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "result"),
    [
        ("float16", "float32"),
        ("float16", "float16"),
        ("int8", "int32"),
        ("float8_e4m3fn", "float32"),
        ("float8_e5m2", "float32"),
    ],
)
def test_products_are_numpys(given: str, result: str) -> None:
    """Of whole numbers that every type has: no sum is rounded. Bytes have their right factor transposed."""
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-3, 4, (EXTENT, EXTENT)) for _ in range(2))
    is_transposed = given != "float16"
    stored = [left.astype(TYPES[given]), (right.T if is_transposed else right).astype(TYPES[given])]
    found = _run(_scheduled(given, result, is_transposed), [*stored, np.zeros(left.shape, TYPES[result])])
    assert np.array_equal(found, left @ right)


def _run(module: tvm.IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    built = build_trial(module, tuning_target(resolve_target("cuda")), None)
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(each), tvm.cuda(0)) for each in arrays]
    built[built.entry_name](*tensors)
    return np.asarray(tensors[-1].numpy())


def _scheduled(given: str, result: str, is_transposed: bool) -> tvm.IRModule:
    import_intrinsics(tuning_target(resolve_target("cuda")))
    from tvm.s_tir.tensor_intrin import cuda  # noqa: PLC0415 - `import_intrinsics` imports it in seconds

    left, right = (te.placeholder((EXTENT, EXTENT), given, name) for name in ("A", "B"))
    inner = te.reduce_axis((0, EXTENT), "k")

    def element(row: te.Var, column: te.Var) -> te.Tensor:
        other = right[column, inner] if is_transposed else right[inner, column]
        return te.sum(left[row, inner].astype(result) * other.astype(result), axis=inner)

    product = te.create_prim_func([left, right, te.compute((EXTENT, EXTENT), element, "C")])
    depth = 32 // np.dtype(TYPES[given]).itemsize
    square = cuda.shared_16x16_to_ldmatrix_32x8_layout
    layout = square if depth == 16 else cuda.shared_16x32_to_ldmatrix_32x16_layout
    names = cuda.get_mma_intrin_group("shared", "global", given, result, False, is_transposed, False)
    return mma_schedule(
        product,
        depth,
        given,
        is_transposed,
        i_factors=[1, 1, 1, 2, 2],
        j_factors=[1, 1, 1, 2, 2],
        k_factors=[1, EXTENT // depth, 1],
        index_map_A=lambda i, k: (i // 16, k // depth, *layout(i % 16, k % depth)),
        index_map_B=lambda i, k: (i // 16, k // depth, *layout(i % 16, k % depth)),
        index_map_C=lambda i, j: (i // 16, j // 16, *square(i % 16, j % 16)),
        ldmatrix_a_intrin=names["load_a"],
        ldmatrix_b_intrin=names["load_b"],
        mma_intrin=names["compute"],
        mma_fill_intrin=names["init"],
        mma_store_intrin=names["store"],
    ).mod
