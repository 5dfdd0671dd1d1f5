"""Run an architecture in two stages on two ranks of torch.distributed (gloo), and compare with plain torch.

The plan is one as `tessel tune --train` writes it, with given prices in place of measured ones, and the
schedule and its 1F1B baseline run as `tessel run` runs them.
"""

from __future__ import annotations

import msgspec

from benchmarks.architectures.finding import Finding, limit_of
from benchmarks.architectures.given_prices import LAUNCH_PENALTY_US
from benchmarks.architectures.training import CannotTrainError, partition_stages, stages_of
from tessel.engine.results_check import ExpectedResults
from tessel.engine.run import RunSettings, StagePrograms, run_schedule
from tessel.pipeline import build_plan
from tessel.search import SearchBudget
from tuner.frontend.model import Model
from tuner.lowering.workload_of import workload_of
from tuner.numerical_error import Deviation, worst
from tuner.plan import Figure, ModelPlan
from tuner.programs.compiled_stages import ProgramSpec, computed_types, exact_gradients, reference_step
from tuner.stages import Stage, tied_groups
from tuner.targets.resolution import resolve_target
from tuner.tuning.partitioned_function import partition_plans

_NUM_STAGES = 2

_MICRO_BATCHES = 2

_BLOCK = Figure(latency_us=100.0, source="given")
"""Latency of every block: the schedule is not what is compared."""

_TIMEOUT_S = 900.0


def check_run(model: Model) -> Finding:
    """Compare the losses and gradients of a pipeline on real ranks with torch's.

    Args:
        model: its name is what the ranks load it by, such as
            `benchmarks.architectures.models:gpt2`.
    """
    try:
        trained, stages = stages_of(model, _NUM_STAGES)
    except CannotTrainError as error:
        return Finding(outcome="inapplicable", reason=str(error))
    except Exception as error:  # foreign code; whatever it raises is the result
        return Finding.of_error(error)
    try:
        deviation = _run(_plan(trained, stages))
    except Exception as error:  # as above
        return Finding.of_error(error)
    return Finding.of_deviation(deviation, limit_of(model))


def _run(tuned: ModelPlan) -> Deviation:
    plan = build_plan(
        tuned,
        micro_batches=_MICRO_BATCHES,
        memory_limit_bytes=None,
        budget=SearchBudget(work_limit=0.1, time_limit_s=60.0),
    )
    spec = ProgramSpec(plan=tuned, trust_model=True)
    report = run_schedule(
        plan.schedule,
        StagePrograms("tuner.programs.compiled_stages:provide_programs", msgspec.json.encode(spec).decode()),
        expected=ExpectedResults(
            reference=lambda count: reference_step(spec, count),
            name="the module under plain torch",
            tied=plan.tied,
            parameters=[stage.parameters for stage in plan.stages],
            types=lambda: computed_types(spec),
            exact=lambda count: exact_gradients(spec, count),
        ),
        settings=RunSettings(repeats=1, timeout_s=_TIMEOUT_S),
    )
    found = [
        Deviation(tensor=each.place, relative_error=each.relative_error, fault=each.fault)
        for each in (report.check.worst_loss, report.check.worst_gradient)
        if each is not None
    ]
    return worst(found) or Deviation(tensor="nothing", fault="was compared")


def _plan(model: Model, stages: tuple[Stage, ...]) -> ModelPlan:
    partitioned = partition_stages(stages)
    target = resolve_target("cpu", num_threads=1)
    return ModelPlan(
        model=model.name,
        model_fingerprint=workload_of(model.module["main"], "model", module=model.module).fingerprint,
        training=True,
        target=target.text,
        device_model="any",
        num_threads=1,
        partition=partition_plans(partitioned.values()),
        end_to_end={},
        sum_of_parts=_BLOCK,
        launch_penalty_us=LAUNCH_PENALTY_US,
        max_relative_error=None,
        max_gradient_error=None,
        stages=tuple(stage.plan(dict.fromkeys(stage.functions(), _BLOCK)) for stage in stages),
        tied=tied_groups(model, stages),
        hop_latency_us=(1.0,) * (len(stages) - 1),
        hop_source="given",
        new_measurements=0,
        reused_measurements=0,
        reference="" if model.reference is None else model.reference.mode,
        notes=model.notes,
    )
