"""Schedule a module's kernels without tuning: on the CPU by our rules, on the GPU by TVM's DLight.

Where no rule applies, or one fails, a kernel keeps the schedule it had: slower, never wrong. A finished
kernel is marked, so that no later pass schedules or fuses it again. Checked in
tests/tuner/backends/tvm/test_schedule.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import dlight

from tuner.backends.tvm.cpu_schedule import schedule_for_cpu, warn_of_rule
from tuner.backends.tvm.gpu_loops import has_threads, share_out
from tuner.backends.tvm.nan_semantics import pass_nan_on, pass_nan_on_gpu
from tuner.backends.tvm.vector_math import vectorise_math
from tuner.graph.relax_types import IRModule, PrimFunc
from tuner.targets.target import Target
from tuner.targets.vector_registers import vector_registers

logger = logging.getLogger(__name__)

SCHEDULES_VERSION = 12
"""Rises by one whenever kernels get other schedules than before: see `tuner.backends.kernel_version`."""

OPAQUE = 8
"""TVM's op-pattern kind of kernels that fusion must leave alone."""

_GPU_RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.GEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.Fallback,
)
"""DLight's, in the order in which they are tried; the last gives plain loops, shared out among threads."""

_SCHEDULED = "tirx.is_scheduled"
"""Attribute by which TVM's own passes mark a kernel as finished."""


def schedule_kernels(module: IRModule, target: Target) -> IRModule:
    """Return the module with its unfinished kernels scheduled for the target and marked as finished."""
    if target.kind == "cuda":
        module = _schedule_for_gpu(module, target)
    scheduled = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            kernel = function
            if target.kind == "cpu" and _SCHEDULED not in function.attrs.keys():  # noqa: SIM118 - TVM's maps do not iterate
                kernel = schedule_for_cpu(vectorise_math(function), vector_registers(target))
            if target.kind == "cpu":
                kernel = pass_nan_on(kernel)
            else:
                kernel = pass_nan_on_gpu(kernel if has_threads(kernel) else share_out(kernel))
            scheduled.update_func(variable, as_finished(kernel))
    return scheduled


def as_finished(kernel: PrimFunc) -> PrimFunc:
    """Return the kernel marked so that no later pass schedules or fuses it."""
    return kernel.with_attr("op_pattern", OPAQUE).with_attr(_SCHEDULED, True)


def _schedule_for_gpu(module: IRModule, target: Target) -> IRModule:
    """Return the module scheduled by DLight; a kernel that a rule fails on has the loops of the last rule.

    A rule also fails where TVM cannot lower what it made: reductions across threads of what TVM has no
    reducer for, such as the place of a maximum.
    """
    rules = [rule() for rule in _GPU_RULES]
    with _scheduling_target(target):
        try:
            return _lowerable(dlight.ApplyDefaultSchedule(*rules)(module.clone()))  # which rules change
        except Exception as error:  # a fault of any rule fails the whole module
            warn_of_rule("DLight", f"{type(error).__name__}: {_first_line(error)}")
        scheduled = module.clone()
        for variable, function in module.functions_items():
            if isinstance(function, tvm.tirx.PrimFunc):
                scheduled.update_func(variable, _scheduled_alone(function, rules))
        return scheduled


def _lowerable(scheduled: IRModule) -> IRModule:
    """Return what was scheduled.

    Raises:
        Exception: whatever TVM raises where it cannot lower a reduction across threads.
    """
    tvm.s_tir.transform.LowerCrossThreadReduction()(scheduled)
    return scheduled


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _scheduling_target(target: Target) -> Any:
    """Return the target with a plain architecture: DLight takes `sm_90a` for too old to have tensor cores."""
    attributes = json.loads(target.tvm_json)
    return tvm.target.Target({**attributes, "arch": attributes["arch"].rstrip("af")})


def _scheduled_alone(kernel: PrimFunc, rules: Sequence[Any]) -> PrimFunc:
    """Return a kernel scheduled by the rules, or where one of them fails by the last, which fits all loops.

    One of raw buffers alone has no loops that a rule could take; it is left as it is.
    """
    for tried in (rules, rules[-1:]):
        alone = tvm.IRModule({"main": kernel})  # which a rule changes
        try:
            return _lowerable(dlight.ApplyDefaultSchedule(*tried)(alone))["main"]
        except Exception:  # it was told of the module
            logger.debug("DLight fails on a kernel", exc_info=True)
    return kernel
