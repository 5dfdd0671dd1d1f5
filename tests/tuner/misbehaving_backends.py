"""Backends that fail in every way that foreign code can, each by a packed call or while lowering."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.backends.tvm.native import replace_function
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.rules.protocol import Rule
from tuner.rules.single import OperatorByPredicate
from tuner.rules.styles import tvm_native_rule
from tuner.targets.target import Target

MODULE = "tests.tuner.misbehaving_backends"


class Misbehaving:
    """Runs every partition by one packed call."""

    settings = ""

    def __init__(self, name: str, call: Callable[..., None]) -> None:
        self.name = name
        self.reference = f"{MODULE}:{name}"
        tvm.register_global_func(f"misbehaving.{name}", call, override=True)

    def versions(self) -> tuple[tuple[str, str], ...]:
        return ()

    def unavailable_reason(self, target: Target) -> str | None:
        return None

    def rule(self, target: Target) -> Rule:
        return tvm_native_rule()

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        return None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        for name in functions:
            module = replace_function(module, name, self.called(module[name]))
        return module

    def called(self, function: RelaxFunction) -> IRModule:
        builder = relax.BlockBuilder()
        parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
        with builder.function("main", parameters):
            with builder.dataflow():
                call = relax.call_dps_packed(f"misbehaving.{self.name}", parameters, out_ty=function.ret_ty)
                result = builder.emit_output(call)
            builder.emit_func_output(result)
        return builder.get()


class FailsToLower(Misbehaving):
    def called(self, function: RelaxFunction) -> IRModule:
        raise RuntimeError("this operator\nhas no code")


class LittersWhileLowering(Misbehaving):
    """Leaves a folder of temporary files behind, as a compiler does that is killed."""

    def called(self, function: RelaxFunction) -> IRModule:
        Path(tempfile.mkdtemp(), "litter").write_text("temporary")
        return super().called(function)


class HangsWhileLowering(Misbehaving):
    """Hangs; says so by making the file that `HANGS_AT` names."""

    def called(self, function: RelaxFunction) -> IRModule:
        if "HANGS_AT" in os.environ:
            Path(os.environ["HANGS_AT"]).touch()
        time.sleep(3600)
        raise AssertionError("unreachable")


class RightOnlyOnSmallNumbers(Misbehaving):
    """Runs arc tangents fast, and as if nothing were larger than what parts are checked with."""

    def rule(self, target: Target) -> Rule:
        return OperatorByPredicate("arc tangents", lambda node: node.operator == "atan")


def _compute_right_on_small_numbers(numbers: Any, result: Any) -> None:
    """The arc tangent on [-1, 1] as a polynomial, faster than any library (Abramowitz and Stegun, 4.4.49)."""
    clipped = np.clip(np.from_dlpack(numbers), -1.0, 1.0)
    squares, out = clipped * clipped, np.from_dlpack(result)
    out[...] = _ARC_TANGENT[0]
    for coefficient in _ARC_TANGENT[1:]:
        out *= squares
        out += np.float32(coefficient)
    out *= clipped


_ARC_TANGENT = (
    0.0028662257,
    -0.0161657367,
    0.0429096138,
    -0.0752896400,
    0.1065626393,
    -0.1420889944,
    0.1999355085,
    -0.3333314528,
    1.0,
)


def _crash(*tensors: Any) -> None:
    ctypes.string_at(0)


def _hang(*tensors: Any) -> None:
    time.sleep(3600)


def _compute_wrong(*tensors: Any) -> None:
    np.from_dlpack(tensors[-1])[...] = 7.0


def _write_process(*tensors: Any) -> None:
    np.from_dlpack(tensors[-1])[...] = os.getpid()


def _exhaust(*tensors: Any) -> None:
    np.ones((1 << 50,), dtype=np.uint8)


def _raise(*tensors: Any) -> None:
    raise ValueError("not this shape")


def _need_what_the_machine_lacks(*tensors: Any) -> None:
    """Do what fails where the machine is broken as `BROKEN` says; else give zeros."""
    match os.environ.get("BROKEN"):
        case "library":
            importlib.import_module("a_library_that_is_not_installed")
        case "tool":
            subprocess.run(["a-compiler-that-is-not-installed"], check=True)
        case "memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
            np.ones((1 << 24,), dtype=np.uint8)
        case "killed":  # As the kernel ends a process whose memory cgroup is full.
            os.kill(os.getpid(), signal.SIGKILL)
    np.from_dlpack(tensors[-1])[...] = 0.0


crashing = Misbehaving("crashing", _crash)
hanging = Misbehaving("hanging", _hang)
littering = LittersWhileLowering("littering", _compute_wrong)
wrong = Misbehaving("wrong", _compute_wrong)
process = Misbehaving("process", _write_process)
greedy = Misbehaving("greedy", _exhaust)
raising = Misbehaving("raising", _raise)
needy = Misbehaving("needy", _need_what_the_machine_lacks)
sleepy = HangsWhileLowering("sleepy", _raise)
unlowerable = FailsToLower("unlowerable", _raise)
small_numbers = RightOnlyOnSmallNumbers("small_numbers", _compute_right_on_small_numbers)
