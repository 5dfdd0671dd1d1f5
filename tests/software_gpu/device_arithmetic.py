"""Small types, exchanges, atomics and matrix products of the software GPU, against NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.harness.software_gpu.cuda_calls import DeviceArray, Kernel, synchronise

SMALL = {
    "half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "__nv_fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "__nv_fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


def some(names: Iterable[str], *kept: str) -> list[Any]:
    """Return names as parameters, of which those that are not kept are slow: the compiler runs for each."""
    return [pytest.param(name, marks=() if name in kept else pytest.mark.slow) for name in names]


def launch(source: str, out: np.ndarray, *given: np.ndarray, block: int = 256) -> np.ndarray:
    result = DeviceArray(out)
    arrays = [DeviceArray(each) for each in given]
    grid = -(-out.size // block)
    Kernel.compiled(source).launch(result, *arrays, grid=(grid,), block=(min(block, out.size),))
    synchronise()
    return result.numpy()


@pytest.mark.parametrize("name", some(SMALL, "half"))
def test_every_number_of_a_small_type_is_read_and_written_as_others_do(name: str) -> None:
    dtype = SMALL[name]
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    source = f"""extern "C" __global__ void kernel(float* out, {name}* in) {{
  int at = blockIdx.x * 256 + threadIdx.x;
  out[at] = float(in[at]);
}}"""
    numbers = bits.view(dtype).astype(np.float32)
    found = launch(source, np.zeros_like(numbers), bits.view(dtype))
    assert np.array_equal(found, numbers, equal_nan=True)


@pytest.mark.parametrize("name", some(SMALL, "__nv_fp8_e5m2"))
def test_numbers_are_rounded_to_the_nearest_even(name: str) -> None:
    """Every number of a small type, what lies amid each two neighbours, and what is next to that."""
    dtype = SMALL[name]
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    every = bits.view(dtype).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    amid = every[:-1] / 2 + every[1:] / 2
    beyond = np.float32([3e38, -3e38])  # NVIDIA's fp8 saturates where others overflow
    numbers = np.concatenate([every, amid, *(np.nextafter(amid, end) for end in beyond), beyond])
    given = np.resize(numbers, -(-numbers.size // 256) * 256)
    source = f"""extern "C" __global__ void kernel({name}* out, float* in) {{
  int at = blockIdx.x * 256 + threadIdx.x;
  out[at] = {name}(in[at]);
}}"""
    found = launch(source, np.zeros(given.size, dtype), given).astype(np.float32)[: numbers.size]
    with np.errstate(over="ignore"):
        expected = numbers.astype(dtype).astype(np.float32)
    if "fp8" in name:
        expected[-2:] = every[-1], every[0]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", some(["half", "__nv_bfloat16"], "__nv_bfloat16"))
@pytest.mark.parametrize("operator", some("+-*/", "/"))
def test_arithmetic_of_small_types_rounds_once(name: str, operator: str) -> None:
    dtype = SMALL[name]
    rng = np.random.default_rng(1)
    left, right = (rng.standard_normal(4096).astype(dtype) for _ in range(2))
    source = f"""extern "C" __global__ void kernel({name}* out, {name}* left, {name}* right) {{
  int at = blockIdx.x * 256 + threadIdx.x;
  out[at] = left[at] {operator} right[at];
}}"""
    found = launch(source, np.zeros(4096, dtype), left, right)
    wide = [each.astype(np.float64) for each in (left, right)]
    expected = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[operator](*wide)
    assert np.array_equal(found, expected.astype(dtype))


def test_exchanges_and_votes_of_a_warp() -> None:
    source = """extern "C" __global__ void kernel(int* out, int* in) {
  int value = in[threadIdx.x], at = threadIdx.x * 8;
  out[at] = __shfl_down_sync(~0u, value, 3, 32);
  out[at + 1] = __shfl_up_sync(~0u, value, 5, 16);
  out[at + 2] = __shfl_xor_sync(~0u, value, 6, 32);
  out[at + 3] = __shfl_sync(~0u, value, 9, 8);
  out[at + 4] = __ballot_sync(~0u, value & 1);
  out[at + 5] = __any_sync(~0u, value == 7) + 2 * __all_sync(~0u, value < 64);
  if (threadIdx.x < 20) out[at + 6] = __activemask(); else out[at + 6] = 0;
  out[at + 7] = (threadIdx.x & 2) ? __shfl_sync(0xcccccccc, value, 3, 32) : 0;
}"""
    given = np.arange(64, dtype=np.int32)
    out, array = DeviceArray(np.zeros((64, 8), np.int32)), DeviceArray(given)
    Kernel.compiled(source).launch(out, array, block=(64,))
    synchronise()
    found = out.numpy()
    lane, warp = given % 32, given // 32 * 32
    odd = np.uint32(0xAAAAAAAA).astype(np.int32)
    assert np.array_equal(found[:, 0], np.where(lane < 29, given + 3, given))
    assert np.array_equal(found[:, 1], np.where(lane % 16 >= 5, given - 5, given))
    assert np.array_equal(found[:, 2], given ^ 6)
    assert np.array_equal(found[:, 3], given // 8 * 8 + 1)
    assert (found[:, 4] == odd).all()
    assert np.array_equal(found[:, 5], 2 + (warp == 0))
    assert np.array_equal(found[:, 6], np.where(given < 20, (1 << 20) - 1, 0))
    assert np.array_equal(found[:, 7], np.where(given & 2, warp + 3, 0))


@pytest.mark.slow
def test_atomic_updates_lose_nothing() -> None:
    source = """extern "C" __global__ void kernel(int* out, double* sum, half* small, int* in) {
  int value = in[blockIdx.x * 64 + threadIdx.x];
  atomicAdd(out, value);
  atomicMax(out + 1, value);
  atomicMin(out + 2, value);
  if (atomicExch(out + 3, value) == 0) atomicAdd(out + 4, 1);
  for (int seen = 0, next;; seen = next) if ((next = atomicCAS(out + 5, seen, seen + 1)) == seen) break;
  atomicAdd(sum, double(value));
  atomicAdd(small, half(1));
}"""
    given = np.random.default_rng(3).permutation(np.arange(-50, 206)).astype(np.int32)
    given[given == 0] = 206
    arrays = [np.zeros(6, np.int32), np.zeros(1), np.zeros(1, np.float16), given]
    on_device = [DeviceArray(each) for each in arrays]
    Kernel.compiled(source).launch(*on_device, grid=(4,), block=(64,))
    synchronise()
    numbers, total, small = (each.numpy() for each in on_device[:3])
    assert numbers.tolist() == [given.sum(), given.max(), given.min(), given[-1], 1, given.size]
    assert (total[0], small[0]) == (given.sum(), given.size)


def test_a_reduction_that_relies_on_lanes_in_step() -> None:
    """TVM's in bfloat16: no barrier within the last warp, and `volatile` in place of one."""
    source = """extern "C" __global__ void kernel(float* out, float* in) {
  __shared__ float row[64];
  row[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  volatile float* all = row;
  if (threadIdx.x < 32) all[threadIdx.x] = all[threadIdx.x] + all[threadIdx.x + 32];
  __syncthreads();
  if (threadIdx.x < 16) {
    all[threadIdx.x] = all[threadIdx.x] + all[threadIdx.x + 16];
    all[threadIdx.x] = all[threadIdx.x] + all[threadIdx.x + 8];
    all[threadIdx.x] = all[threadIdx.x] + all[threadIdx.x + 4];
    all[threadIdx.x] = all[threadIdx.x] + all[threadIdx.x + 2];
    all[threadIdx.x] = all[threadIdx.x] + all[threadIdx.x + 1];
  }
  __syncthreads();
  out[threadIdx.x] = row[0];
}"""
    given = np.arange(64, dtype=np.float32)
    assert (launch(source, np.zeros(64, np.float32), given, block=64) == given.sum()).all()


def test_lanes_meet_again_after_a_branch() -> None:
    """TVM's sums of several rows: one lane keeps a row's, and then takes part in the next."""
    source = """extern "C" __global__ void kernel(float* out, float* in) {
  __shared__ float found[1];
  for (int row = 0; row < 2; row++) {
    unsigned mask = __activemask();
    float sum = in[row * 32 + threadIdx.x];
    for (int far = 16; far; far /= 2) sum += __shfl_down_sync(mask, sum, far, 32);
    if (threadIdx.x == 0) ((volatile float*)found)[0] = sum;
    __syncthreads();
    if (threadIdx.x == 0) out[row] = ((volatile float*)found)[0];
  }
}"""
    out, given = DeviceArray(np.zeros(2, np.float32)), np.arange(64, dtype=np.float32)
    array = DeviceArray(given)
    Kernel.compiled(source).launch(out, array, block=(32,))
    synchronise()
    assert np.array_equal(out.numpy(), given.reshape(2, 32).sum(1))


@pytest.mark.parametrize("layout", some(["row_major", "col_major"], "col_major"))
@pytest.mark.parametrize("types", some(["half half", "half float", "int8_t int"], "half float"))
def test_products_of_fragments(layout: str, types: str) -> None:
    given, result = types.split()
    source = f"""#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void kernel({result}* out, {given}* left, {given}* right) {{
  wmma::fragment<wmma::matrix_a, 16, 16, 16, {given}, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, {given}, wmma::{layout}> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, {result}> c;
  wmma::fill_fragment(c, 0.0f);
  for (int k = 0; k < 2; k++) {{
    wmma::load_matrix_sync(a, left + 16 * k, 32);
    wmma::load_matrix_sync(b, right + {"256 * k, 16" if layout == "row_major" else "16 * k, 32"});
    wmma::mma_sync(c, a, b, c);
  }}
  wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
}}"""
    rng = np.random.default_rng(2)
    most = 4 if given == "half" else 99  # sums of halves are exact
    left, right = (rng.integers(-most, most + 1, shape) for shape in ((16, 32), (32, 16)))
    numpy_types = {"half": np.float16, "float": np.float32, "int8_t": np.int8, "int": np.int32}
    out = DeviceArray(np.zeros((16, 16), numpy_types[result]))
    stored = [left, right if layout == "row_major" else right.T.copy()]
    arrays = [DeviceArray(each.astype(numpy_types[given])) for each in stored]
    Kernel.compiled(source).launch(out, *arrays, block=(32,))
    synchronise()
    assert np.array_equal(out.numpy(), left @ right)
