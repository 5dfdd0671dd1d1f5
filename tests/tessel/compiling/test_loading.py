"""Saved programs: loaded in a process without the tuner, refused where they do not fit or were changed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

import tessel  # noqa: E402 - after the skips
from tessel.compiling.partitioning import compile_within  # noqa: E402
from tessel.compiling.program_file import _MAGIC, write_program  # noqa: E402
from tests.samples.programs.compiled_modules import nested, perceptron  # noqa: E402
from tuner.errors import TunerError  # noqa: E402
from tuner.runtime.manifest import UnfitProgramError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.tvm]

BACKENDS = {"tvm": "tvm", "torch": "torch,tvm", "onnxruntime": "onnxruntime,tvm", "blas": "blas,tvm"}

IN_A_FRESH_PROCESS = """
import sys
import numpy as np
import tessel
program = tessel.load(sys.argv[1])
with np.load(sys.argv[2]) as given:
    np.save(sys.argv[3], program(given["x"]))
allowed = ("tuner.runtime", "tuner.cuda_libraries")
heavy = ("tuner.", "cost_model", "scripts", "tvm.", "tessel.search", "sqlalchemy", "xgboost", "networkx")
loaded = [name for name in sys.modules if name.startswith(heavy) and not name.startswith(allowed)]
print(*loaded, "torch" in sys.modules, "onnxruntime" in sys.modules)
"""


def saved(folder: Path, library: str) -> tuple[tessel.Program, Path]:
    module, example = perceptron()
    program = compile_within(
        module,
        example,
        seconds=0,
        threads=1,
        backends=BACKENDS[library].split(","),
        assign=[f"matmul={library}"],
    )
    path = folder / f"{library}.tessel"
    assert program.save(path) == path.stat().st_size
    return program, path


@pytest.fixture(scope="module")
def program_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("program"), "tvm")[1]


@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=() if name == "tvm" else pytest.mark.slow) for name in BACKENDS]
)
def test_a_fresh_process_gives_equal_outputs_and_loads_nothing_of_the_tuner(
    tmp_path: Path, library: str
) -> None:
    if library == "onnxruntime":
        pytest.importorskip("onnxruntime")
    program, path = saved(tmp_path, library)
    x = np.random.default_rng(0).standard_normal((4, 16), np.float32)
    np.savez(tmp_path / "given.npz", x=x)
    arguments = [path, tmp_path / "given.npz", tmp_path / "found.npy"]
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(library == "torch"), str(library == "onnxruntime")]
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), program(x))
    module, _ = perceptron()
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, rtol=1e-4, atol=1e-5)


def test_trees_threads_and_a_second_save_survive(tmp_path: Path) -> None:
    module, inputs = nested()
    program = compile_within(module, inputs, seconds=0, threads=1, backends=["tvm"])
    program.save(tmp_path / "one.tessel")
    loaded = tessel.load(tmp_path / "one.tessel")
    loaded.save(tmp_path / "two.tessel")
    assert (tmp_path / "one.tessel").read_bytes() == (tmp_path / "two.tessel").read_bytes()
    found, expected = loaded(**inputs), program(**inputs)
    torch.testing.assert_close(found["logits"], expected["logits"], rtol=0, atol=0)
    assert found["rest"][1][1:] == [3, None]
    assert loaded.explain() == program.explain()


def test_weights_are_mapped_and_stay_the_files(program_file: Path) -> None:
    before = program_file.read_bytes()
    program = tessel.load(program_file)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(program_file) in line]
    assert mapped
    program.compiled.weights[0][:] = 0
    assert program_file.read_bytes() == before


def sections_of(path: Path) -> dict[str, tuple[int, int]]:
    """Return where each part of a file lies: its magic, length, header, sections, padding and digest."""
    content = path.read_bytes()
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(content[len(_MAGIC) : start], "little")
    found = {"magic": (0, len(_MAGIC)), "length": (len(_MAGIC), start), "header": (start, end)}
    for section in json.loads(content[start:end])["sections"]:
        begin = end + -end % 64
        if begin > end:
            found[f"before {section['name']}"] = (end, begin)
        end = begin + section["size"]
        found[section["name"]] = (begin, end)
    return {**found, "digest": (end, len(content))}


def test_a_changed_byte_anywhere_is_refused_in_one_line(program_file: Path, tmp_path: Path) -> None:
    content = program_file.read_bytes()
    sections = sections_of(program_file)
    assert {"program", "weight 0", "digest", "before program"} <= sections.keys()
    for name, (begin, end) in sections.items():
        for at in {begin, (begin + end) // 2, end - 1}:
            changed = bytearray(content)
            changed[at] ^= 4
            path = tmp_path / "changed.tessel"
            path.write_bytes(changed)
            with pytest.raises(UnfitProgramError) as refused:
                tessel.load(path)
            message = str(refused.value)
            assert message.startswith(str(path))
            assert "\n" not in message
            if name.startswith(("program", "weight")):
                assert f"was changed after it was saved, in {name}" in message


@pytest.mark.parametrize("kept", [0, 5, 40, 2000, -1])
def test_a_file_that_is_cut_short_is_refused(program_file: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "short.tessel"
    path.write_bytes(program_file.read_bytes()[:kept])
    with pytest.raises(UnfitProgramError, match=r"is no program that|was changed after"):
        tessel.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine": "vax"}, "is compiled for vax, this machine is"),
        ({"features": ("avx1024", "sse2")}, "uses avx1024, which this machine's processor lacks"),
        ({"versions": {"apache-tvm": "0.1"}}, "is compiled with apache-tvm 0.1, here is 0.27"),
        ({"versions": {"no-such-package": "1.0"}}, "needs no-such-package 1.0, which is not installed"),
        ({"calls": ("os.system",)}, "calls 'os.system', which no run time provides"),
    ],
)
def test_another_processor_or_version_is_refused_in_one_line(
    program_file: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "other.tessel"
    rewritten(program_file, path, lambda document: document["programs"][0]["manifest"].update(change))
    with pytest.raises(UnfitProgramError, match=message) as refused:
        tessel.load(path)
    assert "\n" not in str(refused.value)


def test_another_format_and_unknown_keys_are_refused(program_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.tessel"
    rewritten(program_file, path, lambda document: document.update(schema_version=99))
    with pytest.raises(UnfitProgramError, match="is of format 99, and this version reads 2"):
        tessel.load(path)
    rewritten(
        program_file, path, lambda document: document["programs"][0]["manifest"].update(code="import os")
    )
    with pytest.raises(UnfitProgramError, match="unknown field `code`"):
        tessel.load(path)
    maker = {"type": "object", "maker": "os.system", "constants": ["true"], "tensors": []}
    rewritten(program_file, path, lambda document: document["programs"][0]["manifest"].update(bound=[maker]))
    with pytest.raises(UnfitProgramError, match=r"packed by 'os.system', which no run time"):
        tessel.load(path)


def rewritten(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a file with another header and a digest that fits, as whoever forges one would."""
    content, sections = source.read_bytes(), sections_of(source)
    begin, end = sections["header"]
    document = json.loads(content[begin:end])
    change(document)
    header = json.dumps(document).encode()
    written = bytearray(_MAGIC + len(header).to_bytes(8, "little") + header)
    for section in document["sections"]:
        written += bytes(-len(written) % 64)
        written += content[slice(*sections[section["name"]])]
    target.write_bytes(written + hashlib.sha256(written).digest())


def test_a_program_of_a_backend_of_ones_own_cannot_be_saved(tmp_path: Path) -> None:
    program = saved(tmp_path, "tvm")[0]
    foreign = replace(program.manifest, calls=("own.softmax",))
    with pytest.raises(ValueError, match=r"calls 'own.softmax', which no run time provides"):
        write_program([type(program.compiled)(foreign, program.compiled.machines, ())], [b""], tmp_path / "x")


def test_without_a_compiler_a_program_runs_and_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, example = perceptron()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    program = compile_within(module, example, seconds=0, threads=1, backends=["tvm"])
    torch.testing.assert_close(program(example), module(example).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(TunerError, match="install a C\\+\\+ compiler, which saving a program needs"):
        program.save(tmp_path / "program.tessel")
    assert list(tmp_path.iterdir()) == []
