"""TVM's MetaSchedule: kernels tuned by measured trials, kept in a database of TVM's own format.

A partition is fused as the `tvm` backend fuses it; each kernel is then looked up in the database, and tuned
for the given number of trials where the database has none of it. Kernels for which tuning finds nothing keep
the `tvm` backend's schedule. Databases are kept apart by target and number of threads, because TVM's look-up
heeds neither. Checked in tests/tuner/backends/test_metaschedule.py.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule

from tuner.backends.kernel_schedule import schedule_kernels
from tuner.backends.protocol import IRModule, RelaxFunction
from tuner.backends.tvm_native import fuse_function, replace_function
from tuner.backends.vector_math import vectorise_math
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.kinds import PatternKind
from tuner.rules.protocol import Rule
from tuner.rules.styles import tvm_native_rule
from tuner.target import Target
from tuner.target_resolution import tvm_target

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = "out/metaschedule"

_WORKLOAD_FILE = "database_workload.json"
_RECORD_FILE = "database_tuning_record.json"

_TRIAL_TIMEOUT_S = 10.0
"""Longest run of one trial; kernels of a model take milliseconds."""

_BUILD_TIMEOUT_S = 60.0
"""Longest build of one trial; a build takes 0.3 s, but the first in a process imports TVM."""

_SECONDS_A_TRIAL = 4.0
"""Allowance for one trial with all that belongs to it: 0.7 s were measured on an idle machine."""

_SECONDS_TO_START = 120.0
"""Allowance for starting the processes that build and run trials."""

_BATCH = 16
"""Trials between two updates of the tuner's own cost model."""

_FEW_TRIALS = 2 * _BATCH
"""Trials below which schedules are only sampled: a learnt cost model has nothing to learn from, and evolution
takes 20 s before its first trial."""

_INTRINSICS = "tvm.s_tir.tensor_intrin"


class MetaSchedule:
    """Runs partitions as TVM kernels that are tuned on the target."""

    name = "metaschedule"

    def __init__(self, trials: int = 0, database: str = DEFAULT_FOLDER) -> None:
        """Tune with so many trials a kernel; 0 only reads the database.

        Args:
            trials: measured schedules for each kernel that the database has none of.
            database: a folder that TVM's tuner wrote, or one that is to hold a database for each target.
        """
        self.trials = trials
        self.database = database

    @property
    def settings(self) -> str:
        """The number of trials, of which the database is a cache; without any, what the database holds."""
        if self.trials:
            return f"trials={self.trials}"
        records = Path(self.database) / _RECORD_FILE
        content = records.read_bytes() if records.exists() else b""
        return f"database={hashlib.blake2b(content, digest_size=8).hexdigest()}"

    @property
    def reference(self) -> str:
        """Name and settings."""
        return f"{self.name}?{urlencode({'trials': self.trials, 'database': self.database})}"

    @property
    def tuning_timeout_s(self) -> float:
        """Seconds that lowering one partition may take beyond compiling it."""
        return _SECONDS_TO_START + _SECONDS_A_TRIAL * self.trials

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return nothing: TVM's own version is in every environment."""
        return ()

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that tuning is off, or that the target is not here to be measured on."""
        given = Path(self.database)
        if self.trials < 1 and self.database == DEFAULT_FOLDER:
            return "tuning is off; give --trials with the number of trials for each kernel"
        if self.trials < 1 and not (given / _WORKLOAD_FILE).exists():
            return f"there is no database {given / _WORKLOAD_FILE}; give --trials to make one"
        if target.rpc:
            return "tuning over RPC is not supported; tune on the machine that has the device"
        if target.kind == "cuda" and not tvm.cuda(0).exist:
            return "tuning needs the GPU on this machine"
        return None

    def rule(self, target: Target) -> Rule:
        """Return TVM's fusion rules, complete instead of greedy."""
        return tvm_native_rule()

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function has nothing to tune: what only moves or maps elements is bound by memory."""
        graph = DataflowGraph.from_relax(function)
        if max(node.kind for node in graph.nodes) < PatternKind.REDUCTION:
            return "it holds no product, convolution or reduction, so that tuning would not pay"
        return None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function turned into calls of tuned kernels."""
        folder = self._folder(target)
        folder.mkdir(parents=True, exist_ok=True)
        database = meta_schedule.database.JSONDatabase(
            str(folder / _WORKLOAD_FILE), str(folder / _RECORD_FILE), module_equality="structural"
        )
        for name in functions:
            kernels = fuse_function(module[name])
            for kernel in _kernels(kernels):
                self._tune_once(kernel, database, folder, target)
            module = replace_function(module, name, _scheduled(kernels, database, target))
        return module

    def _folder(self, target: Target) -> Path:
        """Return the database's folder: the given one where TVM wrote it, else one for the target."""
        given = Path(self.database)
        if (given / _WORKLOAD_FILE).exists():
            return given
        key = f"{target.text} threads={target.num_threads}"
        return given / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()

    def _tune_once(self, kernel: Any, database: Any, folder: Path, target: Target) -> None:
        """Tune a kernel unless the database has it."""
        task = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
        tuned_for = _tuning_target(target)
        if not self.trials or database.query_tuning_record(task, tuned_for, "main") is not None:
            return
        if target.kind == "cpu":
            _import_x86_intrinsics()
        logger.debug("tuning a kernel for %d trials", self.trials)
        is_short = self.trials < _FEW_TRIALS
        meta_schedule.tune_tir(
            mod=task,
            target=tuned_for,
            work_dir=str(folder / "logs"),
            max_trials_global=self.trials,
            num_trials_per_iter=min(self.trials, _BATCH),
            builder=meta_schedule.builder.LocalBuilder(
                max_workers=1, f_build=_build_trial, timeout_sec=_BUILD_TIMEOUT_S
            ),
            runner=meta_schedule.runner.LocalRunner(timeout_sec=_TRIAL_TIMEOUT_S),
            database=database,
            cost_model="random" if is_short else "xgb",
            strategy="replay-trace" if is_short else "evolutionary",
            num_tuning_cores=1,
            seed=1,  # TVM takes 0 for a random one
        )


def _scheduled(kernels: IRModule, database: Any, target: Target) -> IRModule:
    """Return the kernels with the database's best schedules, and the `tvm` backend's for the others."""
    with _tuning_target(target), database:
        tuned = relax.transform.MetaScheduleApplyDatabase()(kernels)
    return schedule_kernels(_with_vector_math(tuned), target)


def _kernels(module: IRModule) -> list[Any]:
    return [function for _, function in module.functions_items() if isinstance(function, tvm.tirx.PrimFunc)]


def _with_vector_math(module: IRModule) -> IRModule:
    """Return the module with exp, erf and tanh as arithmetic; MetaSchedule itself cannot count that."""
    rewritten = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            rewritten.update_func(variable, vectorise_math(function))
    return rewritten


def _tuning_target(target: Target) -> Any:
    """Return TVM's target with the threads that will be used: MetaSchedule splits loops for so many."""
    device = tvm_target(target)
    if target.kind == "cuda":
        return device
    return tvm.target.Target({**dict(device.export()), "num-cores": target.num_threads})


def _build_trial(module: IRModule, target: Any, _parameters: Any) -> Any:
    """Build one trial in a builder's process.

    TVM's own function for this imports every tensor intrinsic first, which takes 18 s of its 30.
    """
    plain = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return tvm.build(_with_vector_math(plain), target=target)


def _import_x86_intrinsics() -> None:
    """Import the tensor intrinsics of x86 alone, in place of those of every device (18 s, most for CUDA)."""
    if _INTRINSICS in sys.modules:
        return
    spec = importlib.util.find_spec(_INTRINSICS)
    assert spec is not None, "TVM has its tensor intrinsics"
    package = types.ModuleType(_INTRINSICS)
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_INTRINSICS] = package
    importlib.import_module(f"{_INTRINSICS}.x86")
