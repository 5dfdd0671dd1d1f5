"""Each fault that the software GPU is for, injected: reported by kernel and line; its sound twin is not."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest

from tests.harness.software_gpu.cuda_calls import (
    CudaError,
    DeviceArray,
    Kernel,
    call,
    forget_error,
    library,
    new_stream,
    synchronise,
)

Reports = Callable[[], str]
ROW = np.arange(64, dtype=np.float32)


def source(body: str, *, parameters: str = "float* out, float* in", bounds: int = 64) -> str:
    return f'extern "C" __global__ void __launch_bounds__({bounds}) kernel({parameters}) {{\n{body}\n}}\n'


def run(body: str, array: np.ndarray = ROW, *, grid: int = 1, block: int = 64) -> np.ndarray:
    """Return what a kernel of one input and one output writes."""
    out, given = DeviceArray(np.zeros_like(array)), DeviceArray(array)
    Kernel.compiled(source(body)).launch(out, given, grid=(grid,), block=(block,))
    synchronise()
    return out.numpy()


REVERSED = """  __shared__ float row[64];
  row[threadIdx.x] = in[threadIdx.x];
  {barrier}
  out[threadIdx.x] = row[63 - threadIdx.x];"""


def test_a_barrier_orders_shared_memory() -> None:
    assert np.array_equal(run(REVERSED.format(barrier="__syncthreads();")), ROW[::-1])


def test_a_missing_barrier_is_reported_with_both_lines(reports: Reports) -> None:
    run(REVERSED.format(barrier=""))
    found = reports()
    assert "kernel kernel: thread 0 reads 4 bytes of shared memory" in found
    assert ".cu:5: out[threadIdx.x] = row[63 - threadIdx.x];" in found
    assert "no thread of the block has written" in found  # thread 0 runs first
    run(REVERSED.format(barrier="if (threadIdx.x > 40) __syncwarp();"))
    assert "a data race" in (found := reports()) or "has written" in found
    run(REVERSED.format(barrier="__activemask();"))  # orders a warp, not its neighbour
    assert "has written" in reports()


SUM = """  __shared__ float row[64];
  row[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  {first}
  {second}
  __syncthreads();
  out[threadIdx.x] = row[threadIdx.x];"""


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        pytest.param(
            "row[threadIdx.x / 2] = 1;",
            "",
            "writes 4 bytes of shared memory which thread 0 wrote",
            marks=pytest.mark.slow,
        ),
        ("float other = row[(threadIdx.x + 33) % 64];", "row[threadIdx.x] = other;", "(or another) read"),
        pytest.param("row[0] += in[threadIdx.x];", "", "a data race", marks=pytest.mark.slow),
    ],
    ids=["two writers", "a reader, then a writer", "a sum of all"],
)
def test_races_within_a_block_are_reported(first: str, second: str, says: str, reports: Reports) -> None:
    run(SUM.format(first=first, second=second))
    found = reports()
    assert says in found
    lines = (f".cu:5: {first}", f".cu:{6 if second else 5}: {second or first}")
    assert all(line in found for line in lines), found  # of either access


def test_lanes_of_a_warp_are_ordered_by_exchanges(reports: Reports) -> None:
    body = """  __shared__ float row[32];
  row[threadIdx.x] = in[threadIdx.x];
  {exchange}
  out[threadIdx.x] = row[31 - threadIdx.x];"""
    half = np.arange(32, dtype=np.float32)
    assert np.array_equal(run(body.format(exchange="__syncwarp();"), half, block=32), half[::-1])
    run(body.format(exchange=""), half, block=32)
    assert "shared memory" in reports()


def test_blocks_that_write_one_word_are_reported_and_atomic_sums_are_not(reports: Reports) -> None:
    """What runs one after the other here, runs at once on a device: gradients of look-ups, for one."""
    run("  out[0] += in[threadIdx.x];", grid=2, block=32)
    assert "of another block wrote" in reports()
    assert run("  atomicAdd(out, in[threadIdx.x]);", grid=2, block=32)[0] == 2 * sum(range(32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("barrier", "at", "says"),
    [
        ("__syncthreads();", "63 - threadIdx.x", ""),
        ("", "63 - threadIdx.x", "has written"),
        ("__syncthreads();", "64 + threadIdx.x", "shared memory beyond what the launch asks for"),
    ],
    ids=["sound", "no barrier", "beyond the end"],
)
def test_shared_memory_of_a_launchs_own_size(barrier: str, at: str, says: str, reports: Reports) -> None:
    body = f"""  extern __shared__ float row[];
  row[threadIdx.x] = in[threadIdx.x];
  {barrier}
  out[threadIdx.x] = row[{at}];"""
    out, given = DeviceArray(np.zeros_like(ROW)), DeviceArray(ROW)
    Kernel.compiled(source(body)).launch(out, given, block=(64,), shared_bytes=256)
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress") if "beyond" in says else nullcontext():
        synchronise()
    found = reports()
    if says:
        assert says in found
        assert f".cu:5: out[threadIdx.x] = row[{at}];" in found
    else:
        assert not found
        assert np.array_equal(out.numpy(), ROW[::-1])


COPIES = """__forceinline__ __device__ void copy_async(void* to, void* from) {
  unsigned int address = __cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
    :: "r"(address), "l"(from), "n"(4));
}
"""


@pytest.mark.slow
def test_asynchronous_copies_are_there_when_they_are_waited_for(reports: Reports) -> None:
    body = """  __shared__ float row[64];
  __shared__ float other[64];
  copy_async(&row[threadIdx.x], &in[threadIdx.x]);
  asm volatile("cp.async.commit_group;");
  copy_async(&other[threadIdx.x], &in[63 - threadIdx.x]);
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group LEFT;");
  __syncthreads();
  float first = row[63 - threadIdx.x];
  out[threadIdx.x] = first + other[threadIdx.x];"""
    for left in (0, 1):
        out, given = DeviceArray(np.zeros_like(ROW)), DeviceArray(ROW)
        text = COPIES + source(body.replace("LEFT", str(left)))
        Kernel.compiled(text).launch(out, given, block=(64,))
        synchronise()
        found = reports()
        if left == 0:
            assert not found
            assert np.array_equal(out.numpy(), 2 * ROW[::-1])
        else:  # the second group may still be on its way
            assert found.count("has written") == 1
            assert ".cu:16: out[threadIdx.x] = first + other[threadIdx.x];" in found


FAULTS = (
    (
        "out[threadIdx.x] = unwritten[threadIdx.x] + unwritten[threadIdx.x];",
        "device memory that was never written",
    ),
    (
        "__shared__ KIND row[64]; out[threadIdx.x] = row[threadIdx.x] + row[threadIdx.x];",
        "shared memory that no thread of the block has written",
    ),
    (
        "__shared__ KIND row[4]; if (threadIdx.x < 4) row[threadIdx.x] = in[0]; out[threadIdx.x] = row[0];",
        "shared memory which thread 0 wrote",
    ),
    (
        "if (threadIdx.x < 4) in[threadIdx.x] = in[60]; out[threadIdx.x] = in[0];",
        "device memory which thread 0 wrote",
    ),
    (
        "if (blockIdx.x) in[threadIdx.x] = in[threadIdx.x + 32]; else if (threadIdx.x < 32) out[0] = in[0];",
        "of another block read",
    ),
)
"""Of neighbours in one word, too, each of which writes its own number."""


@pytest.mark.parametrize(
    "kind",
    ["half", *(pytest.param(each, marks=pytest.mark.slow) for each in ("float", "__nv_bfloat16", "int8_t"))],
)
def test_every_type_s_faults_are_reported(kind: str, reports: Reports) -> None:
    """Of types that are structures, too, which operators take by value."""
    row = np.zeros(64, {"float": np.float32, "int8_t": np.int8}.get(kind, np.float16))
    parameters = ", ".join(f"{kind}* {name}" for name in ("out", "in", "unwritten"))
    for body, says in FAULTS:
        arrays = DeviceArray(row), DeviceArray(row), DeviceArray(row, is_written=False)
        text = source(f"  {body}".replace("KIND", kind), parameters=parameters)
        Kernel.compiled(text).launch(*arrays, grid=(2,), block=(32,))
        synchronise()
        assert says in (found := reports())
        assert body.replace("KIND", kind) in found


@pytest.mark.parametrize(
    ("body", "name", "says"),
    [
        ("  out[threadIdx.x + 1] = 0;", "cudaErrorIllegalAddress", "not allocated"),
        pytest.param(
            "  *(float2*)(out + 1) = make_float2(0, 0);",
            "cudaErrorMisalignedAddress",
            "no multiple",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "  *(float*)0x7000 = 0;", "cudaErrorIllegalAddress", "the host's memory", marks=pytest.mark.slow
        ),
        (
            "  if (threadIdx.x == 3) __shfl_sync(~0u, 1, 0);\n  __syncthreads();",
            "cudaErrorLaunchTimeout",
            "hangs",
        ),
        pytest.param("  __trap();", "cudaErrorLaunchFailure", "trap", marks=pytest.mark.slow),
    ],
    ids=["beyond the end", "misaligned", "no device memory", "lanes that never come", "trap"],
)
def test_a_failed_kernel_is_an_error_of_every_later_call(
    body: str, name: str, says: str, reports: Reports
) -> None:
    out, given = DeviceArray(ROW), DeviceArray(ROW)
    kernel = Kernel.compiled(source(body))
    kernel.launch(out, given, block=(64,))  # which says nothing yet
    with pytest.raises(CudaError, match=name):
        synchronise()
    with pytest.raises(CudaError, match=name):
        out.numpy()
    forget_error()
    assert says in reports()


def test_launches_beyond_the_limits_are_refused(reports: Reports) -> None:
    out, given = DeviceArray(ROW), DeviceArray(ROW)
    plain = Kernel.compiled(source("", bounds=1024))
    bounded = Kernel.compiled(source("", bounds=64))
    for kernel, name, launch in (
        (plain, "cudaErrorInvalidValue", {"block": (1025,)}),
        (plain, "cudaErrorInvalidValue", {"block": (1, 1, 65)}),
        (plain, "cudaErrorInvalidValue", {"grid": (1, 65536)}),
        (plain, "cudaErrorInvalidValue", {"grid": (0,)}),
        (plain, "cudaErrorInvalidValue", {"shared_bytes": 50_000}),
        (bounded, "cudaErrorLaunchOutOfResources", {"block": (65,)}),
    ):
        with pytest.raises(CudaError, match=name):
            kernel.launch(out, given, **launch)
    plain.allow_shared(50_000)
    plain.launch(out, given, shared_bytes=50_000)
    synchronise()
    with pytest.raises(CudaError, match="cudaErrorInvalidValue"):
        plain.allow_shared(228 * 1024)
    assert reports().count("is refused") == 6
    with pytest.raises(ValueError, match="too much shared memory"):
        Kernel.compiled(source("  __shared__ float row[12289]; row[0] = 0;"))
    with pytest.raises(ValueError, match=r"the instruction 'cp\.async\.bulk"):
        Kernel.compiled(source('  asm volatile("cp.async.bulk.wait_group 0;");'))


def test_memory_runs_out() -> None:
    too_much = ctypes.c_void_p()
    with pytest.raises(CudaError, match="cudaErrorMemoryAllocation"):
        call("cudaMalloc", ctypes.byref(too_much), ctypes.c_size_t(1 << 40))
    DeviceArray(ROW)


def test_a_host_that_touches_device_memory_ends(reports: Reports) -> None:
    """The loop over a look-up's gradient that crashed on the first GPU and on no CPU."""
    script = (
        "import ctypes, numpy as np\n"
        "from tests.harness.software_gpu.cuda_calls import DeviceArray\n"
        "array = DeviceArray(np.zeros(4, np.float32))\n"
        "print(ctypes.cast(array.address, ctypes.POINTER(ctypes.c_float))[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -11
    assert "the host touches device memory" in reports()


def test_what_nobody_waits_for_comes_late() -> None:
    """Work waits in its stream as long as CUDA allows, so that a forgotten wait is seen."""
    add = Kernel.compiled(source("  out[threadIdx.x] += in[threadIdx.x];"))
    first, second = new_stream(), new_stream()
    out, given = DeviceArray(ROW), DeviceArray(ROW)
    synchronise()
    event = ctypes.c_void_p()
    call("cudaEventCreate", ctypes.byref(event))
    add.launch(out, given, block=(64,), stream=first)
    assert np.array_equal(out.numpy(second), ROW)  # another stream waits for nothing
    call("cudaEventRecord", event, first)
    call("cudaStreamWaitEvent", second, event, 0)
    assert np.array_equal(out.numpy(second), 2 * ROW)
    add.launch(out, given, block=(64,), stream=second)
    assert np.array_equal(out.numpy(), 2 * ROW)  # neither does the null stream, but for
    synchronise(second)
    add.launch(out, given, block=(64,), stream=new_stream(is_blocking=True))
    assert np.array_equal(out.numpy(), 4 * ROW)  # a stream that was made to be waited for


def test_graphs_are_captured_and_replayed() -> None:
    add = Kernel.compiled(source("  out[threadIdx.x] += in[threadIdx.x];"))
    stream = new_stream()
    out, given = DeviceArray(ROW), DeviceArray(ROW)
    synchronise()
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cudaStreamBeginCapture", stream, 0)
    add.launch(out, given, block=(64,), stream=stream)
    add.launch(out, given, block=(64,), stream=stream)
    call("cudaStreamEndCapture", stream, ctypes.byref(graph))
    assert np.array_equal(out.numpy(stream), ROW)  # captured, and not run
    call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    for _ in range(2):
        call("cudaGraphLaunch", executable, stream)
    assert np.array_equal(out.numpy(stream), 5 * ROW)
    call("cudaStreamBeginCapture", stream, 0)
    with pytest.raises(CudaError, match="StreamCaptureUnsupported"):
        synchronise(stream)
    with pytest.raises(CudaError, match="StreamCaptureInvalidated"):
        call("cudaStreamEndCapture", stream, ctypes.byref(graph))
    library().cudaGetLastError()
