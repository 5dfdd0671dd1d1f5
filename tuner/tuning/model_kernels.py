"""The kernels of a model that tuning may make faster, and a budget of trials for all of them.

The kernels are known before anything is measured. They are those of the cover of the model's graph with the
fewest parts, as MetaSchedule's and TVM's candidates fuse them: kernels exactly as a measured candidate is
lowered to, so that a database of them is found again. Other candidates that overlap these have kernels of
their own, which are left out. Checked in tests/tuner/tuning/test_model_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.backends.metaschedule.backend import MetaSchedule, tuning_tasks
from tuner.backends.metaschedule.trial_budget import DealtKernel, WeightedKernel, deal_trials
from tuner.backends.metaschedule.trials import task_name
from tuner.backends.protocol import Backend
from tuner.backends.tvm.native import TvmNative, fuse_function
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.graph import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_types import IRModule
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.outline import extract_function
from tuner.partition.find_partition import find_candidates, find_partition
from tuner.plan import Figure
from tuner.targets.target import Target
from tuner.tuning.partition_model import prepared_module

_NOTHING = NodeSet()


def find_model_kernels(
    module: IRModule, target: Target, *, without: NodeSet = _NOTHING
) -> tuple[WeightedKernel, ...]:
    """Return the kernels of a module's `main`, each once, with how often it is run.

    Args:
        module: as the partition search takes it.
        target: what is built for.
        without: nodes of its graph; kernels that compute any of them are left out.

    Raises:
        UnsupportedOperatorError: the module cannot be read as one data-flow graph.
        UnpriceableError: TVM cannot run an operator; names it.
    """
    tuned = MetaSchedule(trials=1)
    backends: Sequence[Backend] = (tuned, TvmNative())
    graph = DataflowGraph.from_function(module)
    found = find_candidates(graph, gather_specs(backends, target))
    partition = find_partition(
        graph,
        found.candidates,
        [Figure(latency_us=1.0, source="derived")] * len(found.candidates),
        launch_penalty_us=0.0,
    )
    kernels: dict[str, WeightedKernel] = {}
    for part in partition.chosen:
        if part.backend != tuned.name or part.sub_graph.inside & without:
            continue
        for task in tuning_tasks(fuse_function(extract_function(graph, part.sub_graph, part.backend))):
            name = task_name(task)
            known = kernels.get(name)
            kernels[name] = WeightedKernel(task, 1 if known is None else known.count + 1)
    return tuple(kernels.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedKernels:
    """What a budget of trials was spent on.

    Attributes:
        database: folder of the database that has the kernels now.
        kernels: those that got trials now.
    """

    database: Path
    kernels: tuple[DealtKernel, ...]


def tune_model_kernels(
    model: Model,
    backend: MetaSchedule,
    target: Target,
    *,
    budget: int,
    builder: Any,
    runner: Any,
    on_batch: Callable[[int], None] = lambda num_trials: None,
    without: NodeSet = _NOTHING,
) -> TunedKernels:
    """Deal a budget of trials to a model's kernels.

    Args:
        model: whose function's kernels are tuned: the outputs, or for training the loss.
        backend: which proposer proposes, which database and records keep what was measured.
        target: this machine's processor.
        budget: trials of all kernels together, those included that the database has of them.
        builder: TVM's.
        runner: TVM's.
        on_batch: told after each batch how many trials were measured.
        without: nodes of the model's graph whose kernels get none: others run them.

    Raises:
        TunerError: the target is no processor, or the proposer cannot run.
    """
    if target.kind != "cpu":
        raise TunerError(
            f"a budget of trials cannot be dealt for target {target.name!r}, since its kernels are measured "
            "on this machine's processor alone; give --trials, which counts for each kernel"
        )
    reason = backend.unavailable_reason(target)
    if reason is not None:
        raise TunerError(f"a budget of trials cannot be dealt: {reason}; choose another --proposer")
    dealt = deal_trials(
        find_model_kernels(prepared_module(model), target, without=without),
        budget,
        backend,
        target,
        builder=builder,
        runner=runner,
        on_batch=on_batch,
    )
    return TunedKernels(database=backend.folder(target), kernels=dealt)
