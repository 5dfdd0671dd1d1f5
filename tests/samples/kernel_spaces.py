"""Kernels that tests of the language model share, each with its sketches."""

from __future__ import annotations

from functools import cache

from tuner.backends.metaschedule.backend import tuning_target
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.language.sketches import KernelSpace
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target


@cache
def cpu() -> Target:
    return resolve_target("cpu", num_threads=1)


@cache
def space_of(name: str) -> KernelSpace:
    return KernelSpace(name, kernel_module(parse_kernel(name)), tuning_target(cpu()))
