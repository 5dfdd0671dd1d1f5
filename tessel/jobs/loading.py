"""Load what can be called: a program of `tessel compile`, or a plan of inference, whose pipeline is started.

Loading a program imports nothing of what a plan needs. Checked in tests/tessel/jobs/test_loading.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessel.compiling.loading import load_program
from tessel.errors import ScheduleError

if TYPE_CHECKING:
    from tessel.compiling.program import Program
    from tessel.compiling.served_pipeline import ServedPipeline

_PROVIDER = "tuner.programs.served_stages:provide"

_PLAN_SUFFIX = ".json"


def load(path: str | os.PathLike[str], **options: Any) -> Program:
    """Return what a file holds, ready to be called: a program, or the pipeline of a plan of inference.

        >>> program = tessel.load("net.tessel")  # doctest: +SKIP
        >>> with tessel.load("plan.json", model="examples/own_model.py:build") as pipeline:  # doctest: +SKIP
        ...     y = pipeline(x)

    A program's compiled code becomes part of this process: load files only of those whose code you would run.
    Weights are mapped from the file, which must stay as it is while the program lives. A plan (`.json`) is
    built anew by a process for each device.

    Args:
        path: of the file.
        options: of a plan, those of `serve_plan`.

    Raises:
        UnfitProgramError: the file is none of a program, was changed, or is for another processor or other
            versions; says which.
        ScheduleError: a plan cannot be served, or a rank did not start; says why.
        TypeError: options are given for a program.
        OSError: it cannot be read.
    """
    if Path(path).suffix == _PLAN_SUFFIX:
        return serve_plan(path, **options)
    if options:
        raise TypeError(f"{path} is a program, which has no options; {', '.join(options)} are a plan's")
    return load_program(path)


def serve_plan(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    trust_model: bool = False,
    seed: int = 0,
    depth: int | None = None,
    timeout_s: float = 300.0,
) -> ServedPipeline:
    """Start the pipeline of a plan of inference, a process for each device, and return what calls it.

    Args:
        path: of the plan, tuned with `infer=True`.
        model: the `module:function` that the plan was tuned for, which says that its code is trusted.
        trust_model: whether whatever code the plan names as its model is run.
        seed: of weights that the model does not hold.
        depth: micro-batches on their way at once; two for each device if None.
        timeout_s: longest that ranks may take to start, and a micro-batch to come back.

    Raises:
        ScheduleError: it cannot be served, or a rank did not start; says why.
    """
    import msgspec

    from tessel.compiling.served_pipeline import ServedPipeline
    from tessel.engine.actions import rank_by_stage, stages_before
    from tessel.engine.serving.ranks import ServingJob, ServingRanks
    from tessel.loading import load_plan
    from tuner.plan import ModelPlan
    from tuner.programs.compiled_stages import ProgramSpec, check_spec

    plan = load_plan(path)
    ranks = rank_by_stage(plan.schedule)
    if plan.training:
        raise ScheduleError(
            f"{path} is a plan of training, and only inference is served; tune it with --infer"
        )
    if plan.device_kind != "cpu" or plan.replicas > 1 or any(len(each) > 1 for each in ranks):
        raise ScheduleError(
            f"{path} has stages on a GPU, on several devices, or in several copies, which are not served; "
            "tune it for CPUs with --placement vshape or interleaved:C"
        )
    if model is not None and model != plan.model:
        raise ScheduleError(f"{path} was tuned for {plan.model!r}, not for {model!r}; leave model out")
    spec = ProgramSpec(
        plan=ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__}),
        seed=seed,
        trust_model=trust_model or model is not None,
    )
    check_spec(spec)
    job = ServingJob(
        provider=_PROVIDER,
        spec=msgspec.json.encode(spec).decode(),
        rank_by_stage=tuple(rank for (rank,) in ranks),
        before=plan.stages_before or stages_before(plan.schedule),
        num_threads=plan.num_threads,
        depth=depth or 2 * plan.schedule.placement.devices,
        timeout_s=timeout_s,
    )
    return ServedPipeline(ServingRanks(job))
