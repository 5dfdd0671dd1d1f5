"""A compiled program on a GPU: one graph a call, nothing allocated, nobody waited for but by whoever reads.

A speed needs a device; these counts do not, and a regression of one is one on every device.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import tvm  # noqa: E402 - after the skip

import tessel  # noqa: E402
from tessel.compiling.partitioning import compile_within  # noqa: E402
from tests.harness.software_gpu.cuda_calls import counts  # noqa: E402
from tuner.runtime.cuda_graph import GraphRunner, copied_to_gpu  # noqa: E402
from tuner.runtime.manifest import TensorSpec  # noqa: E402

MOST_LAUNCHES = {
    "mlp:tiny": 4,
    "gpt2:tiny": 70,
    "bert:tiny": 70,
    "mt5:tiny": 110,
    "flava:tiny": 110,
    "resnet:tiny": 25,
    "mobilenet:tiny": 28,
}
"""Kernels of a forward pass; fewer is better."""

IN_A_FRESH_PROCESS = """
import sys
import numpy as np
import tessel
program = tessel.load(sys.argv[1])
np.save(sys.argv[3], program(np.load(sys.argv[2])))
print("tvm" in sys.modules, "torch" in sys.modules)
"""


def compiled(source: Any, inputs: Any, folder: Path, target: str = "cuda") -> tessel.Program:
    records = f"sqlite:///{folder / 'records.db'}"
    return compile_within(source, inputs, seconds=0, target=target, backends=["tvm"], records=records)


class Counted:
    """What a program's call does, counted."""

    def __init__(self, program: tessel.Program) -> None:
        self._program = program

    def __call__(self, *inputs: Any) -> tuple[Any, dict[str, int]]:
        before = counts()
        found = self._program(*inputs)
        return found, {what: n - before[what] for what, n in counts().items() if n != before[what]}


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(0)
    # Its weights are called `0.weight` and so on, and a name in CUDA C++ begins with a letter.
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()


@pytest.fixture(scope="module")
def program(module: Any, tmp_path_factory: pytest.TempPathFactory) -> tessel.Program:
    return compiled(module, torch.randn(2, 8), tmp_path_factory.mktemp("records"))


def on_gpu(array: np.ndarray) -> Any:
    spec = TensorSpec(name="x", shape=array.shape, dtype=str(array.dtype))
    return copied_to_gpu(spec, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def test_a_call_is_one_graph_and_what_it_moves(module: Any, program: tessel.Program) -> None:
    call = Counted(program)
    given = [torch.randn(2, 8) for _ in range(3)]
    _, first = call(given[0])
    # The kernels run once by themselves, and are captured from a second run.
    assert (first["launches"], first["graph_launches"]) == (4, 1)
    for x in given[1:]:
        found, done = call(x)
        assert done.pop("synchronisations") == 1  # for the result, which the host reads
        assert done == {
            "graph_launches": 1,
            "copies_to_device": 1,
            "bytes_to_device": x.nbytes,
            "copies_to_host": 1,
            "bytes_to_host": found.nbytes,
        }
        torch.testing.assert_close(found, module(x).detach(), rtol=1e-5, atol=1e-6)


def test_what_stays_on_the_device_is_waited_for_by_nobody(module: Any, program: tessel.Program) -> None:
    given = [np.random.default_rng(seed).standard_normal((2, 8)).astype(np.float32) for seed in range(3)]
    inputs = [on_gpu(each) for each in given]
    call = Counted(program)
    call(inputs[0])
    found = [call(each) for each in inputs]
    for _, done in found[1:]:
        done.pop("allocations", None)  # of the result's memory, where TVM has none left
        assert done == {"graph_launches": 1, "copies_on_device": 2, "bytes_on_device": 64 + 32}
    for x, (result, _) in zip(given, found, strict=True):  # each its own memory, and read after all were made
        array = tvm.runtime.from_dlpack(result).numpy()
        np.testing.assert_allclose(array, module(torch.from_numpy(x)).detach(), rtol=1e-5, atol=1e-6)


def test_a_saved_program_runs_in_a_process_without_tvms_package(
    module: Any, program: tessel.Program, tmp_path: Path
) -> None:
    x = torch.randn(2, 8)
    program.save(tmp_path / "net.tessel")
    np.save(tmp_path / "x.npy", x.numpy())
    files = [str(tmp_path / name) for name in ("net.tessel", "x.npy", "y.npy")]
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS, *files], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["False", "False"]), done.stderr
    np.testing.assert_allclose(np.load(files[2]), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    before = counts()["bytes_to_device"]
    tessel.load(tmp_path / "net.tessel")(x)
    weights = sum(each.nbytes for each in module.parameters())
    assert counts()["bytes_to_device"] - before == weights + x.nbytes  # each weight once


def test_what_cannot_be_captured_is_launched_kernel_by_kernel(
    module: Any, program: tessel.Program, caplog: pytest.LogCaptureFixture
) -> None:
    """A part that asks for more memory breaks a capture; calls go on, and a warning says why."""
    runner = program.compiled.machines
    assert isinstance(runner, GraphRunner)
    main = runner._main
    x = torch.randn(2, 8)

    held: list[Any] = []

    def allocates(*arguments: Any) -> Any:
        held.append(on_gpu(np.zeros(1 << 20, np.uint8)))
        return main(*arguments)

    runner._main, runner._launch = allocates, None
    try:
        found, _ = Counted(program)(x)
        again, done = Counted(program)(x + 1)
    finally:
        runner._main, runner._launch = main, None
    assert "cannot be captured" in caplog.text
    assert (done["launches"], done.get("graph_launches", 0)) == (2, 0)
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(again, module(x + 1).detach(), rtol=1e-5, atol=1e-6)


class Block(nn.Module):
    """A norm, a linear layer of four times the width, its activation, one back, and the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(16),
            torch.nn.Linear(16, 64),
            torch.nn.Linear(64, 16),
        )

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


@pytest.mark.slow
def test_bfloat16_stays_narrow_between_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel reads or writes float32, and weights are held as they are."""
    from cuda.bindings import nvrtc  # noqa: PLC0415 - the software device's

    sources: list[str] = []
    compile_source = nvrtc._compiled
    monkeypatch.setattr(nvrtc, "_compiled", lambda source: sources.append(source) or compile_source(source))
    held = {}
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        block, x = Block().eval().to(dtype), torch.randn(2, 8, 16).to(dtype)
        sources.clear()
        program = compiled(block, x, tmp_path)
        parameters = [each["parameters"] for text in sources for each in nvrtc._KERNEL.finditer(text)]
        assert any("float*" in each for each in parameters) == (dtype is torch.float32)
        runner = program.compiled.machines
        assert isinstance(runner, GraphRunner)
        tensors = [each for each in runner._arguments if hasattr(each, "shape")]
        held[dtype] = sum(np.prod(each.shape) * each.dtype.itemsize for each in tensors)
        found, _ = Counted(program)(x)
        expected = block(x).detach().float()
        error = float((torch.as_tensor(found).float() - expected).abs().max() / expected.abs().max())
        assert error <= (3e-2 if dtype is torch.bfloat16 else 1e-5)
    assert held[torch.bfloat16] <= 0.6 * held[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST_LAUNCHES)
def test_networks_of_the_zoo_are_one_graph(name: str, tmp_path: Path) -> None:
    program = compiled(name, None, tmp_path)
    rng = np.random.default_rng(0)
    inputs = [
        (rng.integers(0, 2, spec.shape) if "int" in spec.dtype else rng.standard_normal(spec.shape)).astype(
            spec.dtype
        )
        for spec in program.manifest.inputs
    ]
    call = Counted(program)
    _, first = call(*inputs)
    found, done = call(*inputs)
    results = [found] if isinstance(found, np.ndarray) else found
    assert 0 < first["launches"] <= 2 * MOST_LAUNCHES[name]
    assert done == {
        "graph_launches": 1,
        "copies_to_device": len(inputs),
        "bytes_to_device": sum(each.nbytes for each in inputs),
        "copies_to_host": len(results),
        "bytes_to_host": sum(each.nbytes for each in results),
        "synchronisations": len(results),
    }
    expected = compiled(name, None, tmp_path, target="cpu")(*inputs)
    for one, other in zip(results, [expected] if len(results) == 1 else expected, strict=True):
        assert np.abs(one - other).max() <= 1e-4 * np.abs(other).max()
