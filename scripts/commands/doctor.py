"""`tessel doctor`: what works on this machine and installation, and how to fix what does not."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from scripts import installation
from scripts.documents.finding import Examined, Finding
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console

if TYPE_CHECKING:
    from packaging.requirements import Requirement

OUR_PACKAGES = ("records", "cost_model", "tuner", "tessel", "scripts")

_PURPOSES = {
    "torch": ("torch", "the torch backend, .pt2 models and running plans"),
    "onnx": ("onnx", "reading .onnx models"),
    "onnxruntime": ("onnxruntime", "the onnxruntime backend"),
    "ortools": ("cpsat", "CP-SAT as a fallback of the schedule search"),
    "psycopg": ("postgres", "records in PostgreSQL"),
    "distributed": ("fleet", "measuring on several machines"),
    "pyarrow": ("parquet", "importing tables of measured kernels"),
    "nvidia-cuda-nvrtc": ("cuda-compile", "compiling kernels for GPUs that are not here"),
}
"""Of each optional distribution, the extra that brings it and what it is for."""

_SAME_PACKAGE = {"xgboost-cpu": "xgboost"}
"""Of each distribution, another one that brings the same package: XGBoost with CUDA."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")
_GPU_PROBES = {
    "tvm": (
        "import tuner, tvm; d = tvm.cuda(0); assert d.exist; "
        "print(d.device_name, 'compute', d.compute_version)",
        "put the driver's libcuda.so.1 on LD_LIBRARY_PATH; the extra cuda-compile, or a CUDA build of torch, "
        "brings libcudart.so.13",
    ),
    "torch": (
        "import torch; assert torch.cuda.is_available(); print(torch.cuda.get_device_name(0))",
        "install a build of torch for this driver's CUDA",
    ),
}
"""What tries, in a process of its own, whether a library reaches the GPU, and what to do otherwise."""

_TVM_PROBE = "import tvm; tvm.ir.save_json(tvm.ir.Range(0, 1))"
"""What crashes where TVM and its ffi do not fit together: turning an object into JSON, as tuning does."""


def doctor(
    json: JsonOption = False,
) -> None:
    """Report what works on this machine and installation, what does not, and how to fix it.

    The exit status is 1 if something required is broken. Optional parts may be missing, and a warning
    concerns speed, not correctness.

    Examples:

    `tessel doctor`

    `tessel doctor --json`
    """
    findings = list(find_all())
    if json:
        console.print_json(Examined(findings=tuple(findings)))
    else:
        for finding in findings:
            console.print_line(f"{finding.status:8} {finding.name:14} {finding.detail}")
            if finding.fix:
                console.print_line(f"{'':23} -> {finding.fix}")
    if any(finding.status == "broken" for finding in findings):
        raise typer.Exit(1)


def find_all() -> Iterator[Finding]:
    """Yield every finding, the required parts first."""
    yield _python()
    yield _package_names()
    yield _tvm()
    requirements = _requirements()
    if requirements is None:
        yield Finding(
            name=installation.PROJECT,
            status="broken",
            detail="is not installed, so the required versions are unknown",
            fix=installation.install_project(),
        )
    for requirement in requirements or ():
        yield _distribution(requirement)
    yield _processor()
    yield from _threads()
    gpu = _gpu()
    yield gpu
    if gpu.status == "ok":
        yield from _gpu_libraries()


def _python() -> Finding:
    import importlib.metadata

    from packaging.specifiers import SpecifierSet

    version = platform.python_version()
    try:
        wanted = SpecifierSet(importlib.metadata.metadata(installation.PROJECT)["Requires-Python"])
    except importlib.metadata.PackageNotFoundError:
        wanted = SpecifierSet()  # which is a finding of its own
    if wanted.contains(version, prereleases=True):
        return Finding(name="python", status="ok", detail=version)
    return Finding(
        name="python",
        status="broken",
        detail=f"{version} is outside the tested range, {wanted}",
        fix=installation.other_python(),
    )


def _package_names() -> Finding:
    """The top-level names are common words: another distribution may own them."""
    here = Path(__file__).resolve().parents[2]
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
        return Finding(name="tvm", status="broken", detail="not installed", fix=installation.install_all())
    # A broken native library may end the process, so it is tried in one of its own.
    probe = subprocess.run([sys.executable, "-c", _TVM_PROBE], capture_output=True, text=True, check=False)
    if probe.returncode == 0:
        return Finding(name="tvm", status="ok", detail=f"{version}, imports and saves objects")
    if probe.returncode < 0:
        reason = f"the process is ended by {signal.Signals(-probe.returncode).name}"
    else:
        reason = (probe.stderr.strip().splitlines() or [f"exit status {probe.returncode}"])[-1]
    return Finding(
        name="tvm",
        status="broken",
        detail=f"{version} does not import and save an object: {reason[:120]}",
        fix=installation.install(*_pins("apache-tvm", "apache-tvm-ffi"), again=True),
    )


def _requirements() -> list[Requirement] | None:
    """Return what this project's metadata requires, extras included; None where it is not installed."""
    import importlib.metadata

    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(installation.PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found: dict[str, Requirement] = {}
    for requirement in map(Requirement, lines):
        if installation.is_required(requirement) or requirement.name in _PURPOSES:
            found.setdefault(requirement.name, requirement)
    return sorted(found.values(), key=lambda requirement: not installation.is_required(requirement))


def _pins(*distributions: str) -> list[str]:
    """Return distributions with the versions that this project needs, where its metadata says which."""
    required = {requirement.name: requirement for requirement in _requirements() or ()}
    return [f"{name}{required[name].specifier}" if name in required else name for name in distributions]


def _distribution(requirement: Requirement) -> Finding:
    from packaging.version import Version

    name = requirement.name
    extra, purpose = _PURPOSES.get(name, ("", ""))
    version = _version(name) or _version(_SAME_PACKAGE.get(name, name))
    if version is None:
        wanted = f"{name}{requirement.specifier}"
        fix = installation.install_extra(extra) if extra else installation.install(wanted)
        detail = f"not installed; needed for {purpose}" if extra else "not installed"
        if extra and not installation.is_for_this_platform(requirement, extra):
            detail, fix = f"has no build for this system; needed for {purpose}", ""
        return Finding(name=name, status="missing" if extra else "broken", detail=detail, fix=fix)
    if not requirement.specifier.contains(Version(version), prereleases=True):
        detail = f"{version} is installed, {requirement.specifier} is needed"
        if name == "apache-tvm-ffi":
            detail += "; any other crashes this TVM when it saves an object, as tuning does"
        return Finding(
            name=name,
            status="broken",
            detail=detail,
            fix=installation.install(f"{name}{requirement.specifier}"),
        )
    return Finding(name=name, status="ok", detail=f"{version} ({purpose})" if purpose else version)


def _processor() -> Finding:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = _usable_cores()
    quota = _quota_cores(Path("/sys/fs/cgroup/cpu.max"))
    if quota is not None and quota < cores:
        return Finding(
            name="cpu",
            status="warning",
            detail=f"{model}, {cores} cores usable, but this container may use {quota:g} cores' time; "
            "measurements with more threads are paused now and then",
            fix=f"give --threads {max(int(quota), 1)} when tuning, or raise the container's CPU limit",
        )
    return Finding(name="cpu", status="ok", detail=f"{model}, {cores} cores usable")


def _usable_cores() -> int:
    """Count as `records.cores` does; this module runs where that package is broken or another's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota_cores(path: Path) -> float | None:
    """Return how many cores' time the control group may use; None where it is not limited."""
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _threads() -> Iterator[Finding]:
    """Look for thread variables that hold back, or overload, what does not pin its own threads."""
    cores = _usable_cores()
    given = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    if not given:
        yield Finding(
            name="threads", status="ok", detail="no thread variable is set; measurements pin their own"
        )
    for name, text in given.items():
        if not text.isdigit() or int(text) < 1:
            detail, fix = f"{name}={text} is not a number of threads", f"unset {name}"
        elif int(text) > cores:
            detail = f"{name}={text} is more than the {cores} usable cores; threads will share cores"
            fix = f"unset {name}, or export {name}={cores}"
        else:
            yield Finding(name="threads", status="ok", detail=f"{name}={text}; measurements pin their own")
            continue
        yield Finding(name="threads", status="warning", detail=detail, fix=fix)


def _gpu() -> Finding:
    command = shutil.which("nvidia-smi")
    if command is None:
        return Finding(name="gpu", status="missing", detail="no NVIDIA driver found; `--target cpu` works")
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    probe = subprocess.run(query, capture_output=True, text=True, check=False)
    if probe.returncode == 0 and probe.stdout.strip():
        return Finding(name="gpu", status="ok", detail="; ".join(probe.stdout.strip().splitlines()))
    return Finding(name="gpu", status="missing", detail="the NVIDIA driver lists no device")


def _gpu_libraries() -> Iterator[Finding]:
    """Try what reaches the GPU that the driver lists: TVM, whose own libraries may be missing, and torch."""
    for name, (probe, fix) in _GPU_PROBES.items():
        command = [sys.executable, "-c", probe]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        works = done.returncode == 0
        detail = done.stdout.strip() if works else f"{name} does not reach the GPU"
        yield Finding(
            name=f"gpu by {name}",
            status="ok" if works else "missing",
            detail=detail,
            fix="" if works else fix,
        )


def _version(distribution: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
