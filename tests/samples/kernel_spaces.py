"""Kernels that tests of proposers and of the language model share, for one thread of this processor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tuner.backends.metaschedule.backend import tuning_target
from tuner.graph.relax_types import IRModule
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target


@dataclass(frozen=True)
class NamedKernel:
    """A kernel, and what it is tuned for."""

    name: str
    module: IRModule
    tuned_for: Any


@cache
def cpu() -> Target:
    return resolve_target("cpu", num_threads=1)


@cache
def space_of(name: str) -> NamedKernel:
    return NamedKernel(name, kernel_module(parse_kernel(name)), tuning_target(cpu()))
