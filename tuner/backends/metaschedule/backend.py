"""TVM's MetaSchedule: kernels tuned by measured trials, kept in a database of TVM's own format.

A partition is fused as the `tvm` backend fuses it; each kernel is then looked up in the database, and tuned
for the given number of trials where the database has none of it. Kernels for which tuning finds nothing keep
the `tvm` backend's schedule, and so do those for which it finds nothing faster. Databases are kept apart by
target and number of threads, because TVM's look-up ignores both. Trials are kept in the records too where
those are named; there, schedules may be proposed by another than TVM's evolution, who learnt from the trials
of all kernels. Checked in tests/tuner/backends/metaschedule/test_backend.py, test_search_strategy.py and
test_untuned.py.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule

from cost_model.errors import CostModelFileError
from cost_model.language.model_files import load_network
from cost_model.language.network import Network
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.intrinsics import import_intrinsics
from tuner.backends.metaschedule.kernel_exchange import RECORD_FILE, WORKLOAD_FILE
from tuner.backends.metaschedule.lasting_knowledge import LastingKnowledge
from tuner.backends.metaschedule.proposers import BATCH as PROPOSED_BATCH
from tuner.backends.metaschedule.proposers import (
    DEFAULT_PROPOSER,
    DRAFT,
    EVOLUTIONARY,
    LANGUAGE,
    PROPOSERS,
    RANDOM,
    Knowledge,
    new_proposer,
)
from tuner.backends.metaschedule.search_strategy import ProposedTrials
from tuner.backends.metaschedule.trials import KeepTrials, task_name
from tuner.backends.metaschedule.untuned import keep_untuned
from tuner.backends.tvm.native import fuse_function, replace_function
from tuner.backends.tvm.schedule import schedule_kernels
from tuner.backends.tvm.vector_math import vectorise_math
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.kinds import PatternKind
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.rules.protocol import Rule
from tuner.rules.styles import tvm_native_rule
from tuner.targets.cuda_compiler import provide_compiler
from tuner.targets.resolution import tvm_target
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

_TVM_LOGGER = "tvm.s_tir.meta_schedule"

DEFAULT_FOLDER = "out/metaschedule"

DEFAULT_LANGUAGE_MODEL = "out/language"

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

FEW_TRIALS = 2 * _BATCH
"""Trials below which schedules are only sampled: a learnt cost model has nothing to learn from, and evolution
takes 20 s before its first trial."""

_SEED = 1
"""Of who proposes: equal records give equal trials."""


class MetaSchedule:
    """Runs partitions as TVM kernels that are tuned on the target."""

    name = "metaschedule"

    def __init__(
        self,
        trials: int = 0,
        database: str = DEFAULT_FOLDER,
        records: str = "",
        proposer: str = "",
        language_model: str = "",
    ) -> None:
        """Tune with so many trials per kernel; 0 only reads the database.

        Args:
            trials: measured schedules for each kernel that the database has none of.
            database: a folder that TVM's tuner wrote, or one that is to hold a database for each target.
            records: URL of the records that keep trials; none are kept if empty.
            proposer: who proposes schedules; if empty, `DEFAULT_PROPOSER` on a processor with records, else
                evolution.
            language_model: folder of the one that proposes; the usual one if empty.

        Raises:
            ValueError: there is no such proposer.
        """
        if proposer and proposer not in PROPOSERS:
            raise ValueError(f"proposer {proposer!r} is not known; give one of {', '.join(PROPOSERS)}")
        self.trials = trials
        self.database = database
        self.records = records
        self.is_default = not proposer and bool(records)
        self.proposer = DEFAULT_PROPOSER if self.is_default else proposer
        self.language_model = language_model
        self._lasting: dict[tuple[str, int], LastingKnowledge] = {}

    @property
    def settings(self) -> str:
        """The number of trials, of which the database is a cache; without any, what the database holds."""
        if self.trials:
            return f"trials={self.trials}" + self._suffix(",")
        records = Path(self.database) / RECORD_FILE
        content = records.read_bytes() if records.exists() else b""
        return f"database={hashlib.blake2b(content, digest_size=8).hexdigest()}"

    @property
    def reference(self) -> str:
        """Name and settings."""
        named: dict[str, object] = {"trials": self.trials, "database": self.database}
        given = {
            "records": self.records,
            "proposer": "" if self.is_default else self.proposer,
            "language_model": self.language_model,
        }
        return f"{self.name}?{urlencode(named | {name: text for name, text in given.items() if text})}"

    @property
    def tuning_timeout_s(self) -> float:
        """Seconds that lowering one partition may take beyond compiling it."""
        return _SECONDS_TO_START + _SECONDS_A_TRIAL * self.trials

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return nothing: TVM's own version is in every environment, and search finds the schedules."""
        return ()

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that tuning is off, or that the target is not here to be measured on."""
        given = Path(self.database)
        if self.trials < 1 and self.database == DEFAULT_FOLDER:
            return "tuning is off; give --trials with the number of trials for each kernel"
        if self.trials < 1 and not (given / WORKLOAD_FILE).exists():
            return f"there is no database {given / WORKLOAD_FILE}; give --trials to make one"
        if target.kind == "cuda" and not tvm.cuda(0).exist:
            return "tuning needs the GPU on this machine"
        if self.trials and self.proposer == LANGUAGE and not self.is_default:
            try:
                self._network(target)
            except CostModelFileError as error:
                return str(error)
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
        database = self.open_database(target)
        for name in functions:
            kernels = fuse_function(module[name])
            for task in tuning_tasks(kernels):
                self._tune_once(task, database, target)
            module = replace_function(module, name, _scheduled(kernels, database, target))
        return module

    def folder(self, target: Target) -> Path:
        """Return the database's folder: the given one where TVM wrote it, else one for the target."""
        given = Path(self.database)
        if (given / WORKLOAD_FILE).exists():
            return given
        key = f"{target.text} threads={target.num_threads}" + self._suffix(" ")
        return given / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()

    def open_database(self, target: Target) -> Any:
        """Return TVM's database in `folder`; it is made where there is none."""
        folder = self.folder(target)
        folder.mkdir(parents=True, exist_ok=True)
        return meta_schedule.database.JSONDatabase(
            str(folder / WORKLOAD_FILE), str(folder / RECORD_FILE), module_equality="structural"
        )

    def _tune_once(self, task: IRModule, database: Any, target: Target) -> None:
        """Tune a kernel unless the database has it."""
        tuned_for = tuning_target(target)
        if not self.trials or database.query_tuning_record(task, tuned_for, "main") is not None:
            return
        logger.debug("tuning a kernel for %d trials", self.trials)
        tune_kernel(
            task,
            tuned_for,
            TrialSettings(
                trials=self.trials,
                work_dir=self.folder(target) / "logs",
                strategy=self._strategy(task, target),
                is_beside_untuned=target.kind == "cpu",
            ),
            database=database,
            callbacks=self._keepers(task, target),
        )

    def _strategy(self, task: IRModule, target: Target) -> Any | None:
        """Return who proposes schedules as TVM takes it; None to let the number of trials decide."""
        proposer = self.proposer_for(target)
        if proposer in ("", EVOLUTIONARY):
            return proposer or None
        knowledge = Knowledge() if proposer == RANDOM else self._knowledge(target)
        return proposed_trials(proposer, task_name(task), knowledge, seed=_SEED)

    def proposer_for(self, target: Target) -> str:
        """Return who proposes schedules for a target; empty to let the number of trials decide.

        A default gives way where it knows nothing: all of ours to TVM's search on a GPU, where none was
        compared yet, and the language model to the draft model where none was trained for the target.
        """
        if not self.is_default:
            return self.proposer
        if target.kind != "cpu":
            return ""
        if self.proposer == LANGUAGE:
            try:
                self._network(target)
            except CostModelFileError:
                return DRAFT
        return self.proposer

    def _knowledge(self, target: Target) -> Knowledge:
        """Return what the records hold of this device, and the language model where it proposes."""
        key = target.text, target.num_threads
        if key not in self._lasting:
            self._lasting[key] = LastingKnowledge(
                self.records,
                target,
                environment_of(target, self),
                seed=_SEED,
                load_network=partial(self._network, target)
                if self.proposer_for(target) == LANGUAGE
                else None,
            )
        return self._lasting[key].now()

    def _network(self, target: Target) -> Network:
        """Return the language model.

        Raises:
            CostModelFileError: there is none for the target.
        """
        folder = Path(self.language_model or DEFAULT_LANGUAGE_MODEL)
        network, _ = load_network(folder, target.text, target.num_threads)
        return network

    def _keepers(self, task: IRModule, target: Target) -> list[KeepTrials]:
        """Return what keeps a kernel's trials in the records; nothing where there are none."""
        if not self.records:
            return []
        return [KeepTrials(self.records, task, tuning_target(target), target, environment_of(target, self))]

    def _suffix(self, separator: str) -> str:
        return f"{separator}proposer={self.proposer}" if self.proposer else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """How many schedules of a kernel are tried, and by whom.

    Attributes:
        work_dir: for TVM's logs.
        builder: builds a batch of trials; if None, a process of its own does.
        runner: measures what was built; if None, a process of its own does.
        seed: at least 1; TVM takes 0 for a random one.
        strategy: `evolutionary`, or a search strategy of TVM's; if None, evolution where trials are enough
            for it to learn from, else chance.
        is_beside_untuned: whether the schedule that the kernel has without tuning is measured too, so that
            the database never has a slower one; on processors.
    """

    trials: int
    work_dir: Path
    builder: Any | None = None
    runner: Any | None = None
    seed: int = 1
    strategy: Any | None = None
    is_beside_untuned: bool = False


def proposed_trials(proposer: str, task: str, knowledge: Knowledge, *, seed: int) -> Any:
    """Return a search strategy of TVM's by one of our own proposers.

    Args:
        proposer: one of `PROPOSERS` but `evolutionary`.
        task: names the kernel, as trials do.
    """
    return ProposedTrials(lambda candidates: new_proposer(proposer, task, candidates, knowledge, seed=seed))


def tune_kernel(
    task: IRModule,
    tuned_for: Any,
    settings: TrialSettings,
    *,
    database: Any,
    cost_model: Any | None = None,
    callbacks: Sequence[Any] = (),
) -> None:
    """Measure schedules of one kernel; the database has them afterwards.

    Args:
        task: a module whose `main` is the kernel.
        tuned_for: TVM's target.
        settings: how many schedules are tried, and by whom.
        cost_model: TVM's own name of one, or one that orders schedules from the first trial on; if None,
            TVM's own where trials are enough for it to learn from, else none.
        callbacks: told of every batch of trials.
    """
    prepare_tuning(tuned_for)
    strategy = settings.strategy
    is_proposed = strategy is not None and strategy != EVOLUTIONARY
    is_blind = strategy is None and cost_model is None and settings.trials < FEW_TRIALS
    builder = settings.builder or meta_schedule.builder.LocalBuilder(
        max_workers=1, f_build=build_trial, timeout_sec=_BUILD_TIMEOUT_S
    )
    runner = settings.runner or meta_schedule.runner.LocalRunner(timeout_sec=_TRIAL_TIMEOUT_S)
    meta_schedule.tune_tir(
        mod=task,
        target=tuned_for,
        work_dir=str(settings.work_dir),
        max_trials_global=settings.trials,
        num_trials_per_iter=min(settings.trials, PROPOSED_BATCH if is_proposed else _BATCH),
        builder=builder,
        runner=runner,
        database=database,
        cost_model=cost_model or ("random" if is_blind or is_proposed else "xgb"),
        measure_callbacks=[*meta_schedule.measure_callback.MeasureCallback.create("default"), *callbacks],
        strategy="replay-trace" if is_blind else strategy or EVOLUTIONARY,
        num_tuning_cores=1,
        seed=settings.seed,
    )
    if settings.is_beside_untuned:
        keep_untuned(task, tuned_for, database, builder=builder, runner=runner)


def prepare_tuning(tuned_for: Any) -> None:
    """Let TVM know a target's intrinsics, and print warnings alone."""
    import_intrinsics(tuned_for)
    _prepare_logger()


def _prepare_logger() -> None:
    """Let TVM's logger print warnings alone, and take others' handlers off it.

    It sets itself up again before it tunes: its console prints from the level that it has then, its files get
    everything. Handlers it knows by name, of which only its own are; it fails on one without a name.
    """
    tvm_logger = logging.getLogger(_TVM_LOGGER)
    tvm_logger.setLevel(logging.WARNING)
    for handler in list(tvm_logger.handlers):
        if not (handler.get_name() or "").startswith(_TVM_LOGGER):
            tvm_logger.removeHandler(handler)


def _scheduled(kernels: IRModule, database: Any, target: Target) -> IRModule:
    """Return the kernels with the database's best schedules, and the `tvm` backend's for the others."""
    with tuning_target(target), database:
        tuned = relax.transform.MetaScheduleApplyDatabase()(kernels)
    return schedule_kernels(_with_vector_math(tuned), target)


def tuning_tasks(kernels: IRModule) -> list[IRModule]:
    """Return a module for each kernel, whose `main` it is."""
    return [
        tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        for _, function in kernels.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    ]


def _with_vector_math(module: IRModule) -> IRModule:
    """Return the module with exp, erf and tanh as arithmetic; MetaSchedule itself cannot count that."""
    rewritten = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            rewritten.update_func(variable, vectorise_math(function))
    return rewritten


def tuning_target(target: Target) -> Any:
    """Return TVM's target with the threads that will be used: MetaSchedule splits loops for so many."""
    device = tvm_target(target)
    if target.kind == "cuda":
        return device
    return tvm.target.Target({**dict(device.export()), "num-cores": target.num_threads})


def build_trial(module: IRModule, target: Any, _parameters: Any) -> Any:
    """Build one trial in a builder's process.

    TVM's own function for this imports every tensor intrinsic first, which takes 18 s of its 30.
    """
    if str(target.kind.name) == "cuda":
        provide_compiler()
    plain = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return tvm.build(_with_vector_math(plain), target=target)
