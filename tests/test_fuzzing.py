"""The fuzzer: it finds readers that crash, hang, fill the memory or run code, and nothing in ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TEXT = ("records", "tvm-database", "placement", "schedule", "tessel-file", "plan", "orders")
TEXT += ("megatron-layout", "profile-table", "profile-of-others", "saved-plan")

FAULTY = """
import json, os, pickle, signal, subprocess, sys, time
from pathlib import Path
from benchmarks.fuzz import campaign
from benchmarks.fuzz.campaign import Format, fuzz
from benchmarks.fuzz.mutation import MARKER

campaign.TIME_LIMIT_S = 1

def crash(folder): os.kill(os.getpid(), signal.SIGSEGV)
def leave(folder): os._exit(0)
def hang(folder):
    while True: pass
def recurse(folder): recurse(folder)
def miss(folder): {}[(folder / "file").read_bytes()]
def fill(folder): return [bytearray(2**24) for _ in range(10**5)]
def touch(folder): Path(MARKER).touch()
def unpickle(folder): pickle.loads(b"cos\\nsystem\\n(S'true'\\ntR.")
def start(folder): subprocess.run(["true"])
def refuse(folder): raise ValueError("this is no file; give another")
def refuse_at_length(folder): raise ValueError("x" * 10**6)
def decode(folder): b"\\xff".decode()
def accept(folder): (folder / "file").read_bytes()

def tried(read):
    form = Format(
        name=read.__name__,
        count=1,
        samples=lambda: [{"file": b"content"}],
        change=lambda rng, files: {"file": rng.randbytes(5)},
        read=read,
        own_errors=(ValueError,),
    )
    report = fuzz(form, seed=7, count=1 if read is hang else 2)
    return sorted(set(report.findings.values())) + [len(report.findings)]

readers = crash, leave, hang, recurse, miss, fill, touch, unpickle, start, refuse, refuse_at_length, decode
readers += (accept,)
print(json.dumps({read.__name__: tried(read) for read in readers}))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


def test_readers_with_faults_are_found() -> None:
    done = run("-c", FAULTY)
    assert done.returncode == 0, done.stderr
    found = {name: (" ".join(kinds), times) for name, (*kinds, times) in json.loads(done.stdout).items()}
    for name, kind in {
        "crash": "crashes with SIGSEGV",
        "leave": "ends the process with status 0",
        "hang": "takes more than 1 s",
        "recurse": "RecursionError",
        "miss": "KeyError",
        "fill": "MemoryError",
        "touch": "the marker appeared",
        "unpickle": "CodeRunError: pickle.find_class",
        "start": "CodeRunError: subprocess.Popen",
        "refuse_at_length": "a message of 1000000 characters",
        "decode": "UnicodeDecodeError of a library",
    }.items():
        assert kind in found[name][0], f"{name}: {found[name]}"
        assert found[name][1] == (1 if name == "hang" else 2)
    assert found["refuse"] == found["accept"] == ("", 0)


def check(formats: tuple[str, ...], count: int, *, is_sample: bool) -> None:
    """Try so many mutants of each format; a sample need not have one of each that is still read."""
    done = run("-m", "benchmarks.fuzz", *formats, "--count", str(count), "--json")
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert [report["format"] for report in reports] == list(formats)
    for report in reports:
        assert report["mutants"] == count
        assert report["findings"] == {}
        assert report["refused"] > count / 3
        assert report["read"] > 0 or is_sample
    assert sum(report["read"] for report in reports) > 0


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_changed_files_of_text_are_read_or_refused(count: int) -> None:
    check(TEXT, count, is_sample=count < 200)


@pytest.mark.tvm
@pytest.mark.torch
@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_changed_files_of_models_are_read_or_refused(count: int) -> None:
    pytest.importorskip("onnx")
    check(("pt2", "onnx"), count, is_sample=count < 40)


@pytest.mark.torch
@pytest.mark.slow
def test_changed_language_models_are_read_or_refused() -> None:
    check(("language-model",), 60, is_sample=False)


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_changed_cost_models_are_read_or_refused(count: int) -> None:
    check(("kernel-model", "stage-model"), count, is_sample=count < 60)


def test_seed_names_a_mutant_for_good() -> None:
    done = run("-m", "benchmarks.fuzz", "placement", "--count", "5", "--seed", "12", "--json")
    again = run("-m", "benchmarks.fuzz", "placement", "--count", "5", "--seed", "12", "--json")
    read = [
        [each["read"], each["refused"]]
        for each in map(json.loads, (done.stdout, again.stdout))
        for each in each
    ]
    assert read[0] == read[1]
