"""Programs are loaded as they were built, without a compiler of C."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tuner.lowering.lower import build_module, build_reference
from tuner.lowering.machine import load_machine
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def product_module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 5), "float32"))
    w = relax.Var("w", relax.TensorType((5, 3), "float32"))
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(op.matmul(x, w)))
    return builder.finalize()


@pytest.mark.parametrize("build", [build_reference, build_module])
def test_a_program_is_loaded_on_a_machine_without_a_compiler(monkeypatch, build):
    target = resolve_target("cpu", num_threads=1)
    executable = build(product_module(), target)
    kinds = [each.kind for each in executable.mod.imports]
    assert kinds == ["c" if build is build_reference else "llvm"]  # NumPy's product, or a loop nest
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    if build is build_reference:
        with pytest.raises(TypeError, match="NoneType"):  # TVM looks for a compiler, and finds none
            relax.VirtualMachine(executable, tvm.cpu())
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 5), np.float32), rng.standard_normal((5, 3), np.float32)
    for _ in range(2):
        machine = load_machine(executable, tvm.cpu())
        found = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w))
        np.testing.assert_allclose(found.numpy(), x @ w, rtol=1e-5)
        assert [each.kind for each in executable.mod.imports] == kinds  # it can still be exported


def test_a_program_that_was_loaded_can_be_exported(tmp_path):
    executable = build_reference(product_module(), resolve_target("cpu", num_threads=1))
    load_machine(executable, tvm.cpu())
    path = tmp_path / "program.so"
    executable.export_library(str(path))
    machine = load_machine_from(path)
    x = np.eye(5, dtype=np.float32)[:4]
    w = np.arange(15, dtype=np.float32).reshape(5, 3)
    found = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w))
    np.testing.assert_array_equal(found.numpy(), w[:4])


def load_machine_from(path) -> relax.VirtualMachine:
    return relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
