"""Without the C++ library's headers NVRTC makes the same machine code, and what needs them still has them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.support import nvcc

from tuner.frontend import load_model
from tuner.lowering.gpu_code import cuda_sources
from tuner.lowering.lower import build_module
from tuner.targets import nvrtc
from tuner.targets.cuda_compiler import compiler_obstacle, provide_compiler
from tuner.targets.resolution import resolve_target, tvm_target

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle())),
]

TARGET = "nvidia/nvidia-h100"
ARCHITECTURE = "sm_90a"


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_PATH", "")  # so that what the call sets is taken back
    monkeypatch.delenv("CUDA_PATH")
    monkeypatch.delenv(nvrtc.EXTRA_OPTIONS, raising=False)
    provide_compiler()


def product(dtype: str) -> Any:
    builder = relax.BlockBuilder()
    left = relax.Var("left", relax.TensorType((64, 64), dtype))
    with builder.function("main", [left]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.gelu(relax.op.matmul(left, left)))
        builder.emit_func_output(out)
    return builder.get()


def source_of(module: Any) -> str:
    (source,) = cuda_sources(build_module(module, resolve_target(TARGET)).mod)
    return source


def sections(code: bytes) -> dict[str, bytes | int]:
    """Return each kernel's instructions, constants and bytes of shared memory, from an ELF file."""
    (offset,) = struct.unpack_from("<Q", code, 40)
    size, count, names = struct.unpack_from("<HHH", code, 58)
    headers = [struct.unpack_from("<IIQQQQ", code, offset + number * size) for number in range(count)]
    start = headers[names][4]
    found: dict[str, bytes | int] = {}
    for header in headers:
        name = code[start + header[0] : code.index(b"\0", start + header[0])].decode()
        if name.startswith((".text.", ".nv.constant0")):
            found[name] = code[header[4] : header[4] + header[5]]
        elif name.startswith(".nv.shared"):  # which has no bytes in the file
            found[name] = header[5]
    return found


def by_tvm(source: str) -> bytes:
    return bytes(
        nvcc.compile_cuda(source, target_format="cubin", arch=ARCHITECTURE, compiler="nvrtc", options=extra())
    )


def extra() -> list[str]:
    return [f"-I{folder}" for folder in nvrtc._include_folders(nvcc.find_cuda_path())]


@pytest.mark.parametrize("name", ["mlp:tiny", pytest.param("mobilenet:tiny", marks=pytest.mark.slow)])
def test_the_machine_code_of_a_model_is_tvms(name: str) -> None:
    source = source_of(load_model(name).module)
    lean = nvrtc.lean_source(source)
    assert lean is not None
    assert "cuda/std" not in lean
    found, expected = sections(nvrtc.cubin_of(source, ARCHITECTURE)), sections(by_tvm(source))
    assert any(section.startswith(".text.") for section in found)
    assert found == expected


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"])
def test_half_types_keep_their_own_headers(dtype: str) -> None:
    source = source_of(product(dtype))
    found = nvrtc.cubin_of(source, ARCHITECTURE, options=extra())
    assert sections(found) == sections(by_tvm(source))


def test_a_source_that_needs_more_is_compiled_as_tvm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(load_model("mlp:tiny").module)
    more = source.replace('extern "C"', 'static_assert(std::is_same<int, int>::value);\nextern "C"', 1)
    assert nvrtc._compile(str(nvrtc.lean_source(more)), ARCHITECTURE, ()) is None
    assert sections(nvrtc.cubin_of(more, ARCHITECTURE, options=extra())) == sections(by_tvm(source))
    assert nvrtc.lean_source("#include <cuda/std/array>\n" + source) is None
    assert nvrtc.lean_source('extern "C" __global__ void k() {}') is None


def test_a_refused_source_has_the_compilers_own_message() -> None:
    with pytest.raises(RuntimeError, match="undefined"):
        nvrtc.cubin_of('extern "C" __global__ void k() { undefined_name = 1; }', ARCHITECTURE)


def test_tvm_compiles_by_it_while_it_builds() -> None:
    callback = tvm.get_global_func("tvm_callback_cuda_compile")
    source = source_of(load_model("mlp:tiny").module)
    with tvm_target(resolve_target(TARGET)):
        code = bytes(callback(source))
    assert code == nvrtc.cubin_of(source, ARCHITECTURE)
    assert len(code) < len(by_tvm(source)) / 2  # which holds the library's own symbols
