"""Plans of small models of one's own: documents to run, and runs on real ranks beside plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
from planned_models import plan_on_tvm
from random_schedules import draw_schedule

from tessel.comparison import compare_schedules
from tessel.engine.results_check import ExpectedResults, Reference
from tessel.engine.run import RunReport, RunSettings, StagePrograms, run_schedule
from tessel.pipeline import place_stages
from tessel.planning.costs.training_step import place_blocks
from tessel.search import find_schedule
from tessel.tuned_model.model_figures import figures_of_model
from tessel.tuned_plan import TunedPlan, save_plan
from tuner.plan import ModelPlan
from tuner.programs import torch_programs
from tuner.programs.compiled_stages import ProgramSpec, reference_outputs, reference_step

COMPILED = "tuner.programs.compiled_stages:provide_programs"
"""Provides a plan's stages as they are compiled."""

STEP_US = 10.0


def save_planned(model: str, cut: str, path: Path, *, training: bool = True) -> Path:
    """Save a plan for two ranks, with micro-batches in any order, and return where."""
    tuned = plan_on_tvm(model, [cut], training=training)
    figures = figures_of_model(tuned, keeps_joint=True)
    placement = place_blocks(figures, STEP_US)
    schedule = draw_schedule(placement, 4, np.random.default_rng(0))
    save_plan(
        TunedPlan(
            **{name: getattr(tuned, name) for name in tuned.__struct_fields__},
            step_us=STEP_US,
            memory_limit_bytes=None,
            static_bytes=figures.static_bytes,
            optimizer="sgd",
            placement=placement,
            schedule=schedule,
            comparison=compare_schedules(schedule).rows,
        ),
        path,
    )
    return path


def run_compiled(plan: ModelPlan, micro_batches: int, provider: str = COMPILED) -> RunReport:
    """Search an order for a plan's stages, all of equal length, and run it and 1F1B beside plain torch.

    Args:
        plan: its stages.
        micro_batches: of each copy.
        provider: of the stages; those of the plan unless one with faults is given.
    """
    spec = ProgramSpec(plan=plan, trust_model=True)
    text = msgspec.json.encode(spec).decode()
    return _run(
        plan,
        micro_batches,
        StagePrograms(provider, text, plan.replicas, plan.stages_before, returns_outputs=not plan.training),
        lambda count: reference_step(spec, count),
        lambda count: reference_outputs(spec, count),
    )


def run_on_torch(plan: ModelPlan, micro_batches: int) -> RunReport:
    """Run the same plan with stages under torch, as `--stages torch` does."""
    spec = torch_programs.TorchProgramSpec(plan=plan, trust_model=True)
    text = msgspec.json.encode(spec).decode()
    provider = "tuner.programs.torch_programs:provide_programs"
    return _run(
        plan,
        micro_batches,
        StagePrograms(provider, text, plan.replicas, plan.stages_before, returns_outputs=not plan.training),
        lambda count: torch_programs.reference_step(spec, count),
        lambda count: torch_programs.reference_outputs(spec, count),
    )


def _run(
    plan: ModelPlan,
    micro_batches: int,
    programs: StagePrograms,
    reference: Callable[[int], Reference],
    outputs: Callable[[int], Iterable[Mapping[str, np.ndarray]]],
) -> RunReport:
    schedule = find_schedule(
        place_stages(plan, step_us=1.0), micro_batches=micro_batches, memory=None, time_limit_s=0.5
    )
    return run_schedule(
        schedule,
        programs,
        expected=ExpectedResults(
            reference=reference,
            name="plain torch",
            tied=plan.tied,
            parameters=[stage.parameters for stage in plan.stages],
            outputs=outputs,
        ),
        settings=RunSettings(repeats=1),
    )
