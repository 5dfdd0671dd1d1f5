"""CUDA source becomes machine code whose needs are held against the device's limits, without a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from tvm.support import nvcc

from tuner.errors import TunerError
from tuner.targets import cuda_compiler
from tuner.targets.cuda_compiler import (
    KernelUsage,
    architecture_obstacle,
    compile_source,
    compiler_obstacle,
    excess,
    provide_compiler,
)
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

needs_compiler = pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle()))

H200 = json.loads(resolve_target("nvidia/nvidia-h200").tvm_json)
A100 = json.loads(resolve_target("nvidia/nvidia-a100").tvm_json)

SOURCE = """
extern "C" __global__ void __launch_bounds__(%d) scale_kernel(float* __restrict__ data) {
  __shared__ float part[%d];
  part[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = part[(threadIdx.x + 1) %% %d] * 2.0f;
}
"""

KERNEL = KernelUsage(name="k", threads=256, registers=64, shared_bytes=1024, spilled_bytes=0)


@needs_compiler
@pytest.mark.parametrize("attributes", [A100, H200], ids=["sm_80", "sm_90a"])
def test_machine_code_is_for_the_architecture_and_says_what_it_takes(attributes: dict[str, object]) -> None:
    found = compile_source(SOURCE % (256, 1024, 1024), attributes)
    assert found.cubin[:4] == b"\x7fELF"
    (kernel,) = found.kernels
    assert (kernel.name, kernel.threads, kernel.spilled_bytes) == ("scale_kernel", 256, 0)
    # Not the 1 KiB that devices from compute capability 9.0 on keep of each block for themselves.
    assert kernel.shared_bytes == 4096
    assert 0 < kernel.registers <= 255
    assert excess(kernel, attributes) is None


@needs_compiler
def test_a_source_that_does_not_fit_or_compile_is_refused_with_the_compilers_reason() -> None:
    with pytest.raises(TunerError, match=r"sm_80.*(shared|0x)"):
        compile_source(SOURCE % (256, 40_000, 256), A100)
    with pytest.raises(TunerError, match=r"NVRTC refuses a kernel for sm_80: .*undefined"):
        compile_source('extern "C" __global__ void k() { undefined_name = 1; }', A100)


def test_architectures_that_the_compiler_no_longer_knows_are_named() -> None:
    old = json.loads(resolve_target("nvidia/quadro-m2000").tvm_json)
    assert "compute capability 5.2 is older" in str(architecture_obstacle(old))
    assert architecture_obstacle(A100) is None
    with pytest.raises(TunerError, match="nothing can be compiled for sm_52"):
        compile_source("", old)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"threads": 2048}, "2048 threads in a block"),
        ({"registers": 256}, "256 registers in a thread"),
        ({"threads": 1024, "registers": 72}, "73728 registers in a block"),
        ({"shared_bytes": 49_153}, "49153 bytes of declared shared memory"),
        ({"dynamic_shared_bytes": 164 * 1024}, "bytes of shared memory, sm_80 allows 166912"),
    ],
)
def test_each_limit_of_the_device_is_held(change: dict[str, int], fault: str) -> None:
    assert excess(KERNEL, A100) is None
    assert fault in str(excess(msgspec.structs.replace(KERNEL, **change), A100))


def test_a_larger_device_allows_what_a_smaller_one_does_not() -> None:
    kernel = msgspec.structs.replace(KERNEL, dynamic_shared_bytes=200 * 1024)
    assert excess(kernel, H200) is None
    assert excess(kernel, A100) is not None


@needs_compiler
def test_tvm_is_shown_the_packages_only_where_there_is_no_toolkit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("TVM_CUDA_NVRTC_EXTRA_OPTS", "--fmad=false")
    toolkit = tmp_path / "toolkit"
    (toolkit / "include").mkdir(parents=True)
    (toolkit / "include" / "cuda_runtime.h").touch()
    monkeypatch.setattr(nvcc, "find_cuda_path", lambda: os.environ.get("CUDA_PATH", str(toolkit)))
    provide_compiler()
    assert "CUDA_PATH" not in os.environ
    # A link to the compiler, without the toolkit's headers beside it.
    monkeypatch.setattr(nvcc, "find_cuda_path", lambda: os.environ.get("CUDA_PATH", str(tmp_path)))
    monkeypatch.setenv("CUDA_PATH", "")  # so that it is taken back afterwards
    monkeypatch.delenv("CUDA_PATH")
    provide_compiler()
    assert nvcc.find_cuda_path() == os.environ["CUDA_PATH"]
    first, second = os.environ["TVM_CUDA_NVRTC_EXTRA_OPTS"].split()
    assert first == "--fmad=false"
    assert (Path(second.removeprefix("-I")) / "cuda" / "std" / "cstdint").exists()


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "_is_installed", lambda name: name != "cuda.bindings")
    assert "pip install 'tessel-tuner[cuda-compile]'" in str(compiler_obstacle())
    with pytest.raises(TunerError, match=r"nothing can be compiled for sm_80: cuda\.bindings"):
        compile_source("", A100)
