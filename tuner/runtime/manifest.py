"""What a compiled program is, as plain data: the part of a saved file that is read before any code is loaded.

Checked in tests/tessel/compiling/test_loading.py.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import re
from pathlib import Path

import msgspec

from tuner.runtime.bound_arguments import MAKERS, BoundArgument, MadeObject
from tuner.runtime.call_structure import CallStructure
from tuner.runtime.native import compute_capability

SCHEMA_VERSION = 3
"""Of a saved program: its file, its manifest, what its packed functions are given, how its inputs lie."""

_FEATURE_NAMES = {"sse3": "pni"}
"""Instruction sets that the system calls otherwise than LLVM."""

_PACKAGES = {
    "torch": ("torch",),
    "onnxruntime": ("onnxruntime",),
    "blas": ("numpy",),
}
"""Packages whose versions a program depends on, by the library that it calls."""

_ALWAYS = ("apache-tvm", "apache-tvm-ffi")


class UnfitProgramError(Exception):
    """Say why a saved program does not run here."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor of a program, weights included."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        bits = int(re.sub(r"\D", "", self.dtype) or 8)  # of truth values a byte each
        return math.prod(self.shape) * bits // 8


class PartRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One distinct sub-graph and who runs it.

    Attributes:
        operators: names in order.
        latency_us: of one occurrence.
        source: where that comes from.
        occurrences: how many times the program runs it.
        layers: of each occurrence.
    """

    operators: tuple[str, ...]
    backend: str
    latency_us: float
    source: str
    occurrences: int
    layers: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A compiled program without its code and weights.

    Attributes:
        model: what the user called it.
        fingerprint: of the model's structure and shapes.
        call: its arguments and results.
        inputs: tensors that it takes.
        outputs: tensors that it gives.
        weights: tensors that it keeps.
        bound: what `main` takes after its inputs.
        calls: packed functions that it calls.
        num_threads: of each call.
        machine: the processor's architecture, as the system calls it.
        features: instruction sets that the code uses, as LLVM calls them.
        versions: of the packages that must be the same where it runs.
        parts: who runs what, most time first.
        latency_us: measured, by `mix` and single backend.
        max_relative_error: against the model's own program; None where nothing ran.
        gpu: architecture of the GPU that it runs on, as `sm_90a`; None on a CPU.
    """

    model: str
    fingerprint: str
    call: CallStructure
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]
    bound: tuple[BoundArgument, ...]
    calls: tuple[str, ...]
    num_threads: int
    machine: str
    features: tuple[str, ...]
    versions: dict[str, str]
    parts: tuple[PartRow, ...]
    latency_us: dict[str, float]
    max_relative_error: float | None
    gpu: str | None = None

    @property
    def libraries(self) -> tuple[str, ...]:
        """Libraries beside TVM's that it calls: `torch`, `onnxruntime`, `blas`."""
        return libraries_of(self.calls, self.bound)


def libraries_of(calls: tuple[str, ...], bound: tuple[BoundArgument, ...]) -> tuple[str, ...]:
    """Return the libraries that a program needs."""
    made = {MAKERS[each.maker][0] for each in bound if isinstance(each, MadeObject) and each.maker in MAKERS}
    called = {name for name in _PACKAGES if any(call.startswith(f"tessel.{name}.") for call in calls)}
    return tuple(sorted(made | called))


def versions_here(libraries: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the packages that a program of these libraries depends on."""
    names = (*_ALWAYS, *(package for library in libraries for package in _PACKAGES[library]))
    return {name: importlib.metadata.version(name) for name in names}


def check_fits(manifest: Manifest, where: str) -> None:
    """Require that a program runs in this process.

    Raises:
        UnfitProgramError: another schema, processor or version, or a package is missing; says which.
    """
    if manifest.machine != platform.machine():
        raise UnfitProgramError(
            f"{where} is compiled for {manifest.machine}, this machine is {platform.machine()}; "
            "compile it here"
        )
    lacking = _lacking_features(manifest.features)
    if lacking:
        raise UnfitProgramError(
            f"{where} uses {', '.join(lacking[:4])}, which this machine's processor lacks; compile it here"
        )
    if manifest.gpu is not None and (here := compute_capability()) != _capability_of(manifest.gpu):
        raise UnfitProgramError(
            f"{where} is compiled for a GPU of {manifest.gpu}, here is "
            f"{f'one of compute capability {here}' if here else 'none that TVM reaches'}; compile it here"
        )
    for package, version in manifest.versions.items():
        try:
            here = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise UnfitProgramError(
                f"{where} needs {package} {version}, which is not installed; install it"
            ) from error
        if here != version:
            raise UnfitProgramError(
                f"{where} is compiled with {package} {version}, here is {here}; install that version, or "
                "compile it again"
            )


def _capability_of(architecture: str) -> str:
    """Return `9.0` of `sm_90a`."""
    digits = architecture.removeprefix("sm_").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}"


def _lacking_features(wanted: tuple[str, ...]) -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []  # the system does not say it: the architecture alone is compared
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    here = {_plain(flag) for flag in line[1].split()} if line else set()
    return [name for name in wanted if _plain(_FEATURE_NAMES.get(name, name)) not in here]


def _plain(feature: str) -> str:
    return re.sub(r"[^a-z0-9]", "", feature.lower())
