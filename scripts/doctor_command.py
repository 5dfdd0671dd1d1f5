"""`tessel doctor`: what this machine and installation can do, and why not the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from scripts import console

OUR_PACKAGES = ("records", "cost_model", "tuner", "tessel", "scripts")

_REQUIRED = ("xgboost", "numba", "networkx", "sqlalchemy", "msgspec", "matplotlib")
_EXTRAS = {
    "torch": ("torch", "the torch backend, .pt2 models and running plans"),
    "onnx": ("onnx", "reading .onnx models"),
    "ortools": ("cpsat", "CP-SAT as a fallback of the schedule search"),
    "psycopg": ("postgres", "records in PostgreSQL"),
    "transformers": ("language", "the tensor language model"),
}
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "missing", "broken"]
    detail: str
    fix: str = ""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Say what this machine and installation can do, why not the rest, and how to mend it.

    Example: `tessel doctor`. The exit status is 1 where something required is broken.
    """
    findings = list(find_all())
    if json:
        console.print_json({"findings": findings})
    else:
        for finding in findings:
            console.print_line(f"{finding.status:8}{finding.name:14}{finding.detail}")
            if finding.fix:
                console.print_line(f"{'':22}-> {finding.fix}")
    if any(finding.status == "broken" for finding in findings):
        raise typer.Exit(1)


def find_all() -> Iterator[Finding]:
    """Yield every finding, the required parts first."""
    yield _python()
    yield _package_names()
    yield _tvm()
    yield _ffi()
    yield from (_distribution(name) for name in _REQUIRED)
    yield from (_extra(name, extra, purpose) for name, (extra, purpose) in _EXTRAS.items())
    yield _processor()
    yield _threads()
    yield _gpu()


def _python() -> Finding:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 12):
        return Finding(name="python", status="ok", detail=version)
    return Finding(
        name="python",
        status="broken",
        detail=f"{version} is outside the tested range",
        fix="make clean; make PYTHON=python3.12 test",
    )


def _package_names() -> Finding:
    """The top-level names are common words: another distribution may own them."""
    here = Path(__file__).resolve().parent.parent
    strangers = []
    for name in OUR_PACKAGES:
        spec = importlib.util.find_spec(name)
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin is None or here not in origin.parents:
            strangers.append(f"{name} ({origin})")
    if not strangers:
        return Finding(name="packages", status="ok", detail=", ".join(OUR_PACKAGES))
    return Finding(
        name="packages",
        status="broken",
        detail=f"not this project's: {', '.join(strangers)}",
        fix="uninstall the distribution that owns that folder, or use a fresh virtual environment",
    )


def _tvm() -> Finding:
    version = _version("apache-tvm")
    if version is None:
        return Finding(name="tvm", status="broken", detail="not installed", fix="make tune installs it")
    # A broken native library may end the process, so it is imported in one of its own.
    probe = subprocess.run([sys.executable, "-c", "import tvm"], capture_output=True, text=True, check=False)
    if probe.returncode == 0:
        return Finding(name="tvm", status="ok", detail=version)
    reason = (probe.stderr.strip().splitlines() or [f"exit status {probe.returncode}"])[-1]
    return Finding(
        name="tvm",
        status="broken",
        detail=f"{version} does not import: {reason[:120]}",
        fix="python -m pip install --force-reinstall -c constraints.txt apache-tvm apache-tvm-ffi",
    )


def _ffi() -> Finding:
    version = _version("apache-tvm-ffi")
    wanted = _pinned("apache-tvm-ffi")
    if version == wanted:
        return Finding(name="tvm-ffi", status="ok", detail=str(version))
    return Finding(
        name="tvm-ffi",
        status="broken",
        detail=f"{version or 'not installed'}; only {wanted} saves objects of this TVM without crashing",
        fix=f"python -m pip install apache-tvm-ffi=={wanted}",
    )


def _distribution(name: str) -> Finding:
    version = _version(name)
    if version is not None:
        return Finding(name=name, status="ok", detail=version)
    return Finding(name=name, status="broken", detail="not installed", fix="python -m pip install -e .")


def _extra(name: str, extra: str, purpose: str) -> Finding:
    version = _version(name)
    if version is not None:
        return Finding(name=name, status="ok", detail=f"{version} ({purpose})")
    return Finding(
        name=name,
        status="missing",
        detail=f"not installed; needed for {purpose}",
        fix=f"python -m pip install -c constraints.txt -e '.[{extra}]'",
    )


def _processor() -> Finding:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding(name="cpu", status="ok", detail=f"{model}, {usable} cores usable")


def _threads() -> Finding:
    given = [f"{name}={os.environ[name]}" for name in _THREAD_VARIABLES if name in os.environ]
    detail = ", ".join(given) if given else "no thread variable is set"
    return Finding(name="threads", status="ok", detail=f"{detail}; measurements pin their own")


def _gpu() -> Finding:
    command = shutil.which("nvidia-smi")
    if command is None:
        return Finding(name="gpu", status="missing", detail="no NVIDIA driver found; `--target cpu` works")
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    probe = subprocess.run(query, capture_output=True, text=True, check=False)
    if probe.returncode == 0 and probe.stdout.strip():
        return Finding(name="gpu", status="ok", detail="; ".join(probe.stdout.strip().splitlines()))
    return Finding(name="gpu", status="missing", detail="the NVIDIA driver lists no device")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pinned(distribution: str) -> str | None:
    """Return the version that this project's metadata pins with `==`."""
    for requirement in importlib.metadata.requires("tessel-tuner") or []:
        name, equals, version = requirement.partition("==")
        if equals and name.strip() == distribution:
            return version.strip()
    return None
