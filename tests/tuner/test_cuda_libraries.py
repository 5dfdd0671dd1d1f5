"""The runtime library of NVIDIA's packages is loaded beside a driver, and nothing without one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tuner import cuda_libraries
from tuner.cuda_libraries import RUNTIME, load_cuda_runtime

PACKAGES = [
    Path(folder)
    for spec in [importlib.util.find_spec("nvidia")]
    for folder in (spec.submodule_search_locations or [] if spec is not None else [])
    if list(Path(folder).glob(f"cu1*/lib/{RUNTIME}"))
]

_LOADED = "print(any('libcudart.so.13' in line for line in open('/proc/self/maps')))"


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose loader finds a driver's library, which does nothing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a library that stands for the driver")
    source = tmp_path / "driver.c"
    source.write_text("int cuInit(unsigned flags) { return 100; }\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def is_loaded(environment: dict[str, str]) -> bool:
    command = [sys.executable, "-c", f"import tuner; {_LOADED}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


@pytest.mark.skipif(not PACKAGES, reason="NVIDIA's packages are not installed (extra cuda-compile)")
def test_the_packages_library_is_loaded_beside_a_driver(driver: dict[str, str]) -> None:
    assert is_loaded(driver)
    assert not is_loaded({**driver, "LD_LIBRARY_PATH": ""})


@pytest.mark.skipif(not PACKAGES, reason="NVIDIA's packages are not installed (extra cuda-compile)")
def test_a_package_is_taken_only_where_the_loader_finds_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"libcuda.so.1"}
    monkeypatch.setattr(
        cuda_libraries, "_is_loadable", lambda name: name in found or Path(name).is_absolute()
    )
    taken = load_cuda_runtime([str(PACKAGES[0].parent)])
    assert taken is not None
    assert PACKAGES[0] in taken.parents
    found.add(RUNTIME)
    assert load_cuda_runtime([str(PACKAGES[0].parent)]) is None
    found.clear()
    assert load_cuda_runtime([str(PACKAGES[0].parent)]) is None


def test_without_a_driver_nothing_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / RUNTIME).write_bytes(b"no library")
    assert load_cuda_runtime([str(tmp_path)]) is None
