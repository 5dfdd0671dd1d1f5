"""The doctor finds what is simulated for it, and says the fix."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts import installation
from scripts.commands.doctor import _distribution, _quota_cores

ROOT = Path(__file__).parents[3]


def doctor(folder: Path = ROOT, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the command in a folder with these variables; return its status and its findings by name."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts", "doctor", "--json"],
        cwd=folder,  # whose packages come before those of PYTHONPATH
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def pretend(folder: Path, distribution: str, version: str) -> None:
    """Write the metadata of a distribution, as its installation would."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


@pytest.mark.tvm
def test_this_installation_is_well() -> None:
    status, findings = doctor()
    assert status == 0, [finding for finding in findings.values() if finding["status"] == "broken"]
    assert "saves objects" in findings["tvm"]["detail"]
    assert findings["apache-tvm-ffi"]["status"] == "ok"


@pytest.mark.slow  # libraries are asked for the GPU
@pytest.mark.tvm
def test_a_later_ffi_threads_and_a_gpu_out_of_reach_are_found_with_their_fixes(
    tmp_path: Path,
) -> None:
    pretend(tmp_path, "apache-tvm-ffi", "0.1.15.post2")
    pretend(tmp_path, "torch", "2.99.0")
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.159.04'\n")
    command.chmod(0o755)

    status, findings = doctor(
        PYTHONPATH=str(tmp_path),
        OMP_NUM_THREADS="4096",
        MKL_NUM_THREADS="many",
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        CUDA_VISIBLE_DEVICES="",  # should there be a real one
    )

    assert status == 1
    ffi = findings["apache-tvm-ffi"]
    assert ffi["status"] == "broken"
    assert "0.1.15.post2 is installed, ==0.1.14.post1 is needed" in ffi["detail"]
    assert ffi["fix"].endswith("'apache-tvm-ffi==0.1.14.post1'")
    assert findings["torch"]["status"] == "broken"
    assert "2.99.0 is installed" in findings["torch"]["detail"]
    assert findings["threads"]["status"] == "warning"
    assert "unset MKL_NUM_THREADS" in findings["threads"]["fix"]
    assert findings["gpu"]["detail"] == "NVIDIA H200, 580.159.04"
    for library in ("tvm", "torch"):
        found = findings[f"gpu by {library}"]
        assert found["status"] == "missing"
        assert found["fix"]


@pytest.mark.tvm
def test_a_tvm_that_does_not_import_is_told_from_one_that_does(tmp_path: Path) -> None:
    (tmp_path / "tvm.py").write_text("raise ImportError('undefined symbol: TVMFFIThing')\n")
    pretend(tmp_path, "apache-tvm-ffi", "0.1.15.post2")
    status, findings = doctor(PYTHONPATH=str(tmp_path), OMP_NUM_THREADS="4096", MKL_NUM_THREADS="many")
    assert status == 1
    assert "0.1.15.post2 is installed, ==0.1.14.post1 is needed" in findings["apache-tvm-ffi"]["detail"]
    assert "unset MKL_NUM_THREADS" in findings["threads"]["fix"]
    assert "undefined symbol: TVMFFIThing" in findings["tvm"]["detail"]
    assert "--force-reinstall" in findings["tvm"]["fix"]


@pytest.mark.tvm
def test_a_tvm_that_crashes_is_said_to(tmp_path: Path) -> None:
    (tmp_path / "tvm.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    status, findings = doctor(PYTHONPATH=str(tmp_path))
    assert status == 1
    assert "ended by SIGSEGV" in findings["tvm"]["detail"]


def test_a_container_s_share_of_cores_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    path.write_text("150000 100000\n")
    assert _quota_cores(path) == 1.5
    path.write_text("max 100000\n")
    assert _quota_cores(path) is None
    assert _quota_cores(tmp_path / "absent") is None


def test_xgboost_with_cuda_stands_for_the_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Requirement("xgboost-cpu>=3.2,<4; sys_platform != 'nowhere'")
    installed = {"xgboost": "3.2.0"}
    monkeypatch.setattr("scripts.commands.doctor._version", installed.get)
    assert installation.is_required(wanted)
    assert _distribution(wanted).status == "ok"
    installed["xgboost"] = "2.1.0"
    assert "2.1.0 is installed" in _distribution(wanted).detail
    installed.clear()
    assert _distribution(wanted).status == "broken"


def test_what_another_platform_or_an_extra_needs_is_not_required_here() -> None:
    assert not installation.is_required(Requirement("xgboost>=3.2; sys_platform == 'nowhere'"))
    assert not installation.is_required(Requirement("torch>=2.11; extra == 'torch'"))


def test_what_cannot_be_installed_here_is_not_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.commands.doctor._version", lambda name: None)
    here, elsewhere = (
        _distribution(
            Requirement(f"nvidia-cuda-nvrtc>=13; sys_platform == '{system}' and extra == 'cuda-compile'")
        )
        for system in (sys.platform, "nowhere")
    )
    assert "cuda-compile" in here.fix
    assert (elsewhere.status, elsewhere.fix) == ("missing", "")
    assert "no build for this system" in elsewhere.detail
    # No registry has this project: without a clone, its wheel is named, and extras are of what is installed.
    monkeypatch.setattr(installation, "is_clone", lambda: False)
    for fix in (installation.install_project(), installation.other_python()):
        assert fix.endswith("python -m pip install tessel_tuner-*.whl")


@pytest.mark.tvm
def test_advice_to_an_installed_wheel_needs_no_clone(tmp_path: Path) -> None:
    site, fakes = tmp_path / "site", tmp_path / "fakes"
    fakes.mkdir()
    for name in ("records", "cost_model", "tuner", "tessel", "scripts"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("apache-tvm-ffi", "numpy", "torch", "onnx"):
        pretend(fakes, name, "0.0.1")
    (fakes / "tvm.py").write_text("raise ImportError('nothing')\n")
    status, findings = doctor(tmp_path, PYTHONPATH=f"{fakes}{os.pathsep}{site}")
    assert status == 1
    fixes = [finding["fix"] for finding in findings.values() if finding["fix"]]
    assert len(fixes) >= 5
    for fix in fixes:
        assert not re.search(r"\bmake\b|constraints|-e ", fix), fix
    assert findings["numpy"]["fix"].startswith("python -m pip install 'numpy")
    assert "'apache-tvm==" in findings["tvm"]["fix"]


def test_each_advice_is_for_the_installation_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    def advice() -> list[str]:
        return [
            installation.install("numpy>=2.1", again=True),
            installation.install_extra("torch"),
            installation.install_all(),
            installation.install_project(),
            installation.other_python(),
        ]

    assert installation.is_clone()
    assert all(re.search(r"\bmake\b|constraints", text) for text in advice())
    monkeypatch.setattr(installation, "is_clone", lambda: False)
    assert not [text for text in advice() if re.search(r"\bmake\b|constraints|-e ", text)]
    assert installation.install_extra("torch") == "python -m pip install 'tessel-tuner[torch]'"
