"""Resolve a user's target text into a `Target` and TVM's target object.

`cpu` is this machine with its exact micro-architecture, `cuda` this machine's first GPU, `llvm -mcpu=haswell`
this machine running code for another processor of its kind, and a TVM tag names a device that need not be
here. Programs can be built for each of them, but are measured only for what is
here: `measuring_obstacle` says why a target is not, so that no measurement is kept under the name of a device
that did not run it. What a target leaves out (threads used, versions of what compiles and runs) is the
environment (tuner/backends/environment.py), which every measurement carries. Checked in
tests/tuner/targets/test_resolution.py.
"""

from __future__ import annotations

import difflib
import functools
import json
import platform
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import threadpoolctl
import tvm
import tvm_ffi
from tvm.target import codegen, detect_target

from cost_model.gpu.devices import GpuDevice
from records.cores import num_usable_cores
from tuner.errors import TunerError, UnknownNameError
from tuner.targets.gpu_driver import driver_gpus
from tuner.targets.gpu_targets import architecture, gpu_attributes, other_gpu, own_tags, sheet_of
from tuner.targets.remote import is_remote
from tuner.targets.target import Target

TvmTarget: TypeAlias = Any
"""A `tvm.target.Target`; TVM ships no types."""

_CODE = "llvm"
"""First word of a target that says what code this machine runs."""

_CODE_OPTIONS = ("mcpu", "mattr", "num-cores")

_TUNING = (
    "slow-",
    "fast-",
    "false-",
    "prefer-",
    "avoid-",
    "branchfusion",
    "macrofusion",
    "no-bypass",
    "ermsb",
)
"""How features of LLVM begin that are no instructions, but say what is quick on a processor."""

_COMPUTING = ("amx", "avx", "f16c", "fma", "gfni", "sse", "ssse", "vaes", "vpclmulqdq")
"""How features begin that kernels compute with."""

_BRANDS = frozenset(("nvidia", "tesla", "quadro", "geforce"))
"""Words that a tag may have and the driver's name of the same GPU may lack, or the other way round."""

_VARIANTS = frozenset(("ti", "super", "laptop", "mobile", "max", "d", "le", "mx"))
"""Words that make another GPU of the same number; a tag without them names another device."""


def resolve_target(text: str, *, num_threads: int | None = None) -> Target:
    """Return the target that the text names.

    Args:
        text: `cpu`, `cuda`, a TVM tag, or `llvm` with options.
        num_threads: threads a measurement may use on a CPU; by default the physical cores at hand.

    Raises:
        UnknownNameError: no such target; the message lists near matches.
        TunerError: `cuda` is asked for, and this machine has no GPU.
        ValueError: the number of threads is not positive, the target is behind TVM's RPC tracker, or an
            option of `llvm` is not known.
    """
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"{num_threads} threads were asked for, but a program needs one; give 1 or more")
    refuse_remote(text)
    attributes = _attributes(text)
    kind = "cuda" if attributes["kind"] == "cuda" else "cpu"
    return Target(
        name=text,
        kind=kind,
        tvm_json=json.dumps(attributes, sort_keys=True, separators=(",", ":")),
        num_threads=(num_threads or num_physical_cores()) if kind == "cpu" else 1,
    )


def refuse_remote(text: str) -> None:
    """Refuse a device behind TVM's RPC tracker: what was measured for it would have run on this machine.

    Raises:
        ValueError: the text is the address of one.
    """
    if is_remote(text):
        raise ValueError(
            f"target {text!r} is behind an RPC tracker, and only `tessel partition`, `stages` and `tune` "
            "measure there; for anything else start `tessel fleet worker` on a machine that drives the "
            "device, and give --fleet with --target cpu or cuda"
        )


def known_targets() -> tuple[str, ...]:
    """Return the names that `resolve_target` knows: `cpu`, `cuda`, and every tag of a CPU or GPU, sorted."""
    return ("cpu", "cuda", *sorted({*_tags(), *_own_tags()}))


def tvm_target(target: Target) -> TvmTarget:
    """Return TVM's own object for a target; a GPU's comes with the host that drives it."""
    attributes = json.loads(target.tvm_json)
    device = tvm.target.Target(attributes | code_options(attributes))
    if target.kind == "cuda":
        return device.with_host(tvm.target.Target(_host_attributes()))
    return device


def code_options(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what LLVM is told besides a target's attributes: what it compiles wrongly without.

    With its tuning for Zen 4, the loop vectoriser of LLVM 22 takes a loop whose iterations branch on their
    number, such as a concatenation beside a product, for one that takes the first one's branch: of 166 random
    concatenations of concatenations 15 were wrong for `znver4`, and none for `x86-64-v4` or `haswell`
    (tests/tuner/targets/test_code_options.py). Loops with branches are therefore left as they are there.
    """
    has_wrong_branches = re.fullmatch(r"znver[4-9]", str(attributes.get("mcpu", ""))) is not None
    return {"cl-opt": ["-enable-if-conversion:bool=0"]} if has_wrong_branches else {}


def code_features(target: Target) -> tuple[str, ...]:
    """Return the instruction sets that kernels for a CPU may compute with, as LLVM calls them."""
    return tuple(
        sorted(each for each in _features(json.loads(target.tvm_json)) if each.startswith(_COMPUTING))
    )


def tvm_device(target: Target) -> Any:
    """Return TVM's handle of the device that a target names on this machine."""
    return tvm.cuda(0) if target.kind == "cuda" else tvm.cpu()


def measuring_obstacle(target: Target) -> str | None:
    """Return why programs for the target cannot be measured on this machine; None where they can.

    A tag is measured only where it names the very device that is here.
    """
    wanted = json.loads(target.tvm_json)
    if target.kind == "cuda":
        device = tvm.cuda(0)
        if not device.exist:
            return _absence()
        here = {**_local_gpu_attributes(), "device_name": str(device.device_name)}
        return gpu_difference(target.name, wanted, here)
    if is_code(target.name):
        return _code_obstacle(wanted)
    return cpu_difference(wanted, _host_attributes())


def is_code(text: str) -> bool:
    """Say whether a target's text is `llvm` with options: code for this machine, not a device."""
    return text.split()[:1] == [_CODE]


def check_measurable(target: Target) -> None:
    """Refuse a target whose measurements would be those of another device.

    Raises:
        TunerError: it is not the device that is here.
    """
    obstacle = measuring_obstacle(target)
    if obstacle is not None:
        otherwise = (
            "`tessel plan` and `tessel partition` predict for it with --price model"
            if target.kind == "cuda"
            else "use --target cpu to measure this one"
        )
        raise TunerError(
            f"target {target.name!r} cannot be measured here ({obstacle}); run tessel on such a machine, "
            f"or {otherwise}"
        )


def cpu_difference(wanted: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return how a CPU target differs from this machine's, both as TVM's attributes; None where it does not.

    The number of cores is part of a target's text, so it is part of what a measurement claims.
    """
    facts = (("mcpu", "processor"), ("num-cores", "number of cores"), ("mattr", "instruction sets"))
    for name, subject in facts:
        if wanted.get(name) != here.get(name):
            asked, found = (each.get(name, "not given") for each in (wanted, here))
            return f"its {subject} ({name}) is {asked}, this machine's is {found}"
    return None


def gpu_difference(name: str, wanted: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return how a GPU target differs from this machine's GPU; None where it does not.

    Args:
        name: `cuda`, which is the GPU that is here, or a tag.
        wanted: TVM's attributes of the target.
        here: those of the GPU, and `device_name`, its driver's name for it.
    """
    if name == "cuda":
        return None
    asked, found = (str(attributes.get("arch", "unknown")).rstrip("a") for attributes in (wanted, here))
    if asked != found:
        return f"it has architecture {asked}, this machine's {here['device_name']} has {found}"
    if name in _own_tags():
        same = sheet_of(str(here["device_name"])) == _own_tags()[name]
        return None if same else f"this machine's GPU is {here['device_name']}"
    tag_words, device_words = (
        frozenset(re.findall(r"[a-z0-9]+", text.lower())) - _BRANDS
        for text in (name.rpartition("/")[2], str(here["device_name"]))
    )
    same = tag_words <= device_words and not (device_words - tag_words) & _VARIANTS
    return None if same else f"this machine's GPU is {here['device_name']}"


def num_physical_cores() -> int:
    """Count the cores that this process may use, hyper-threads not counted twice."""
    usable = num_usable_cores()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def cpu_model() -> str:
    """Return the processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def blas_version() -> tuple[str, str]:
    """Return name and version of the BLAS inside NumPy, such as `("openblas", "0.3.31 SkylakeX")`."""
    found = [library for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
    # SciPy ships a BLAS of its own; which of the two is listed first changes from run to run.
    found.sort(
        key=lambda library: ("numpy" not in Path(library["filepath"]).parent.name, library["filepath"])
    )
    for library in found:
        return library["internal_api"], f"{library['version']} {library.get('architecture', '')}".strip()
    return "blas", "unknown"


def _attributes(text: str) -> dict[str, Any]:
    """Return TVM's target attributes; only those that decide what code is made."""
    if text == "cpu":
        return _host_attributes()
    if text == "cuda":
        return _local_gpu_attributes()
    if is_code(text):
        return _code_attributes(text)
    if text in _tags():
        return _exported(text)
    if text in _own_tags():
        return gpu_attributes(_own_tags()[text])
    if (found := other_gpu(text)) is not None:
        raise UnknownNameError(
            f"target {text!r} is {found}, and the TVM that is installed runs programs on processors and "
            "NVIDIA's GPUs alone; use --target cpu or cuda, and see 'Other GPUs' in docs/gpu.md"
        )
    near = difflib.get_close_matches(text, known_targets(), n=4, cutoff=0.5)
    hint = (
        f"did you mean {', '.join(near)}?"
        if near
        else f"use cpu, cuda, 'llvm -mcpu=…' or a tag such as {_some_tags()}"
    )
    raise UnknownNameError(f"target {text!r} is not one of the {len(known_targets())} known ones; {hint}")


def _code_attributes(text: str) -> dict[str, Any]:
    """Return the attributes of `llvm` with options; those that are not given are this machine's.

    Raises:
        ValueError: an option is not known, or names no processor of this machine's architecture.
    """
    given: dict[str, Any] = {}
    for option in shlex.split(text)[1:]:
        name, _, value = option.lstrip("-").partition("=")
        if not option.startswith("-") or name not in _CODE_OPTIONS or not value:
            raise ValueError(
                f"target {text!r} has an option {option!r}, which is not known; give "
                + ", ".join(f"-{known}=…" for known in _CODE_OPTIONS)
            )
        given[name] = value
    host = _host_attributes()
    if given.get("mcpu", host["mcpu"]) != host["mcpu"]:  # another one hides nothing
        host.pop("mattr", None)
    attributes = {**host, **given}
    if not codegen.llvm_is_valid_cpu(attributes["mcpu"], codegen.llvm_get_system_triple()):
        raise ValueError(
            f"target {text!r} is for the processor {attributes['mcpu']}, which is none of this machine's "
            "architecture; name one that LLVM knows, such as haswell or x86-64-v3"
        )
    if not str(attributes["num-cores"]).isdecimal() or not int(attributes["num-cores"]):
        raise ValueError(f"target {text!r} has -num-cores={given['num-cores']}; give a number from 1 on")
    attributes["num-cores"] = int(attributes["num-cores"])
    if "mattr" in given:
        attributes["mattr"] = given["mattr"].split(",")
    return attributes


def _code_obstacle(wanted: Mapping[str, Any]) -> str | None:
    """Return what this machine's processor lacks for the code of a target; None where it runs it."""
    lacking = _lacking(_features(wanted), _features(_host_attributes()))
    if lacking:
        return f"its code uses {', '.join(lacking[:4])}, which this machine's processor lacks"
    cores = num_physical_cores()
    if wanted["num-cores"] != cores:
        return f"its number of cores is {wanted['num-cores']}, this machine's is {cores}"
    return None


def _lacking(wanted: frozenset[str], here: frozenset[str]) -> list[str]:
    """Return the instruction sets that are wanted and not here."""
    return sorted(feature for feature in wanted - here if not feature.startswith(_TUNING))


def _features(attributes: Mapping[str, Any]) -> frozenset[str]:
    """Return the instruction sets that LLVM may use for a target, and what it knows of their speed."""
    return frozenset(map(str, codegen.llvm_get_cpu_features(tvm.target.Target(dict(attributes)))))


@functools.cache
def _tags() -> frozenset[str]:
    """Return the tags of CPUs and NVIDIA GPUs; nothing here lowers programs for other kinds of devices."""
    tags = map(str, tvm.target.list_tags())
    return frozenset(tag for tag in tags if str(tvm.target.Target(tag).kind) in ("llvm", "cuda"))


@functools.cache
def _own_tags() -> dict[str, GpuDevice]:
    """Return our tags: devices with a data sheet that TVM has no tag for."""
    return own_tags(_tags())


def _some_tags() -> str:
    return "nvidia/nvidia-a100, aws/cpu/c5.xlarge"


def _exported(tag: str) -> dict[str, Any]:
    exported = tvm.target.Target(tag).export()
    return {name: _plain(value) for name, value in exported.items() if name not in ("tag", "keys") and value}


def _plain(value: Any) -> Any:
    """Return TVM containers as what JSON knows."""
    if isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "items"):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value]


def _host_attributes() -> dict[str, Any]:
    detected = detect_target.detect_target_from_device("cpu")
    attributes = {"kind": "llvm", "mcpu": str(detected.attrs["mcpu"]), "num-cores": num_physical_cores()}
    hidden = [
        f"-{feature}"
        for feature in _lacking(_features(attributes), _host_features())
        if feature.startswith(_COMPUTING)
    ]
    return {**attributes, "mattr": hidden} if hidden else attributes


def _host_features() -> frozenset[str]:
    """Return the features that this machine has: a hypervisor may hide some of its processor's."""
    found = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return frozenset(str(name) for name, is_here in found.items() if is_here)


def _local_gpu_attributes() -> dict[str, Any]:
    device = tvm.cuda(0)
    if not device.exist:
        raise TunerError(
            f"target 'cuda' needs an NVIDIA GPU with its driver on this machine ({_absence()}); use "
            "--target cpu, or run tessel on a machine that has one"
        )
    return {
        "kind": "cuda",
        "arch": architecture(str(device.compute_version)),
        "max_shared_memory_per_block": int(device.max_shared_memory_per_block),
        "max_threads_per_block": int(device.max_threads_per_block),
        "thread_warp_size": int(device.warp_size),
    }


def _absence() -> str:
    """Return why TVM finds no GPU: there is none, or the libraries that TVM reaches it by are not loaded."""
    listed = driver_gpus()
    if not listed:
        return "this machine has no NVIDIA GPU with its driver"
    return (
        f"the driver lists {listed[0].name}, but TVM cannot use it: libtvm_runtime_cuda.so is not loaded, "
        "which needs libcuda.so.1 and libcudart.so.13 on the library path (`tessel doctor`)"
    )
