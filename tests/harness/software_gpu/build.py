"""The software GPU, built by the host's C++ compiler: a CUDA device for tests on a machine that has none.

TVM's CUDA runtime asks some forty functions of libcudart and libcuda; `device/` answers them. Its kernels are
CUDA C++, which `site/cuda/bindings/nvrtc.py` gives to g++ in NVRTC's place. Of small networks' stages it runs
some 1 000 kernels in a second of processor time; g++ takes 0.1 to 0.3 s for a source, and with it 370 kernels
are run a second (`work_done`), or 8 of those that each run twice at most. What it does not have: torch's
CUDA, speed, registers, caches, more than one device, and the schedulers' freedom to interleave blocks.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

_EXPORTED = "cu*; softwareGpu*; gpu_*; __tsan_*; threadIdx; blockIdx; blockDim; gridDim;"
_RUNTIME, _DRIVER = "libcudart.so.13", "libcuda.so.1"
_FLAGS = ("-std=c++17", "-w", "-fPIC")
_KERNEL_FLAGS = (
    *_FLAGS,
    "-O1",
    "-fvisibility=hidden",  # so that the functions that a source declares for the device are inlined
    "-g1",
    "-fno-var-tracking",  # an eighth of the compiler's time
    "-gdwarf-4",  # addr2line of binutils 2.40 mistakes the files of version 5
    "-fno-tree-sra",  # accesses stay as wide as they are written, so that their alignment is checked
    "-fno-strict-aliasing",
    "-fno-stack-protector",
    "-ffp-contract=off",
    "-fsanitize=thread",
    "--param=tsan-distinguish-volatile=1",
    "--param=tsan-instrument-func-entry-exit=0",
)

_SMALL_TYPE = re.compile(r"^ *(__half|__nv_bfloat16|__nv_fp8(?:x[24])?_e\w+)\(\) = default;$", re.MULTILINE)
_COPIED_BY_MEMBER = r"""\g<0>
  __attribute__((always_inline)) constexpr \1(const \1& other) : __x(other.__x) {}
  __attribute__((always_inline)) \1& operator=(const \1& other) { __x = other.__x; return *this; }"""
"""What NVIDIA's small types get beside their default constructors (`device/checks.cpp`)."""


def obstacle() -> str | None:
    """Return why the device cannot be built here; None where it can."""
    if os.uname().machine != "x86_64":
        return "its threads switch stacks by x86-64 code"
    if shutil.which("g++") is None:
        return "there is no g++"
    if _headers() is None:
        return "CUDA's headers are not installed (extra cuda-compile)"
    if _has_torch_for_cuda():
        return "this torch is built for CUDA and loads NVIDIA's runtime first; one for CPUs does not"
    version = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return None if int(version.split(".")[0]) >= 11 else f"g++ {version.strip()} is older than 11"


def _has_torch_for_cuda() -> bool:
    try:
        needed = importlib.metadata.requires("torch") or ()
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(each.startswith(("nvidia-", "cuda-toolkit")) for each in needed)


def build(folder: Path) -> dict[str, str]:
    """Build the device into a folder, where that was not done; return the environment that it takes.

    Raises:
        subprocess.CalledProcessError: the compiler refuses it.
    """
    headers = _headers()
    assert headers is not None, "`obstacle` was asked first"
    version = _digest("device", "kernel", "site", "build.py")
    if not (folder / "version").exists() or (folder / "version").read_text() != version:
        (folder / "kernels").mkdir(parents=True, exist_ok=True)
        (folder / "lib").mkdir(exist_ok=True)
        (folder / "launches").write_bytes(bytes(16))
        (folder / "compilations").write_text("")
        _build_device(folder, headers)
        _build_header(folder, headers)
        (folder / "version").write_text(version)
    return environment(folder)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process that uses the device in a folder."""
    return {
        "SOFTWARE_GPU": str(folder),
        "SOFTWARE_GPU_REPORTS": str(folder / "reports"),
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder / "lib"), *_given("LD_LIBRARY_PATH")]),
        "PATH": os.pathsep.join([str(HERE / "site" / "bin"), *_given("PATH")]),
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), str(ROOT), *_given("PYTHONPATH")]),
    }


def work_done(folder: Path) -> str:
    """Return how many kernels were launched and compiled since the device was built, and how fast."""
    launches, microseconds = struct.unpack("QQ", (folder / "launches").read_bytes())
    compilations_s = [float(line) for line in (folder / "compilations").read_text().split()]
    run_s, compile_s = microseconds / 1e6, sum(compilations_s)
    return (
        f"{launches} kernels in {run_s:.1f} s of processor time: {launches / max(run_s, 1e-6):.0f} a second; "
        f"{len(compilations_s)} sources compiled in {compile_s:.1f} s: "
        f"{launches / max(run_s + compile_s, 1e-6):.0f} kernels a second with that"
    )


def _given(variable: str) -> list[str]:
    return [os.environ[variable]] if os.environ.get(variable) else []


def _build_device(folder: Path, headers: Path) -> None:
    sources = sorted((HERE / "device").glob("*.cpp"))
    script = folder / "symbols"
    script.write_text(f"{_RUNTIME} {{ global: {_EXPORTED} local: *; }};\n")
    include = [f"-I{headers}"]
    # The driver's calls are the runtime's, too: its library is empty but for needing that one.
    empty, named = ["-shared", "-x", "c++", os.devnull], [f"-Wl,-soname,{_DRIVER}", "-Wl,--no-as-needed"]
    link = ["-shared", f"-Wl,-soname,{_RUNTIME}", f"-Wl,--version-script={script}", "-ldl"]
    subprocess.run(
        ["g++", *_FLAGS, "-O2", *include, *sources, *link, "-o", folder / "lib" / _RUNTIME], check=True
    )
    subprocess.run(
        ["g++", *empty, *named, "-x", "none", folder / "lib" / _RUNTIME, "-o", folder / "lib" / _DRIVER],
        check=True,
    )


def _build_header(folder: Path, headers: Path) -> None:
    """Compile the header that every kernel includes once; parsing it takes ten times as long as a kernel."""
    (folder / "include").mkdir(exist_ok=True)
    for header in (HERE / "kernel").glob("*.h"):
        shutil.copy(header, folder / "include")
    for header in headers.glob("cuda_[bf]*[68].h*"):
        text = _SMALL_TYPE.sub(_COPIED_BY_MEMBER, header.read_text())
        (folder / "include" / header.name).write_text(text)
    command = ["g++", *_KERNEL_FLAGS, f"-I{folder / 'include'}", f"-I{headers}"]
    header, partial = folder / "include" / "kernel.h", folder / "partial.gch"
    subprocess.run([*command, "-x", "c++-header", header, "-o", partial], check=True)
    partial.replace(header.with_suffix(".h.gch"))  # whole: a session beside this one may compile
    (folder / "compile").write_text("\n".join(command))
    own = ["g++", "-print-libgcc-file-name"]
    libgcc = subprocess.run(own, capture_output=True, text=True, check=True).stdout.strip()
    (folder / "libraries").write_text("\n".join([str(folder / "lib" / _RUNTIME), libgcc]))
    # Kernels that were compiled before a change of the device alone are as good as new ones.
    (folder / "kernels-version").write_text(
        _digest("kernel", "site") + _COPIED_BY_MEMBER + " ".join(_KERNEL_FLAGS)
    )


def _headers() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        for folder in sorted(Path(place).glob("cu[0-9]*/include")):
            if (folder / "cuda_fp8.h").exists():
                return folder
    return None


def _digest(*parts: str) -> str:
    """Return what changes with the sources under the names that are given."""
    digest = hashlib.sha256()
    for part in parts:
        paths = [HERE / part, *sorted((HERE / part).rglob("*"))]
        for path in paths:
            if path.suffix in (".cpp", ".h", ".py"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(work_done(Path(sys.argv[1])))
