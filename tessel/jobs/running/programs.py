"""Builders of the stages that are run, and what their results are compared with."""

from __future__ import annotations

import functools
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessel.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    import numpy as np

    from tessel.engine.devices import Devices
    from tessel.engine.job import RankSum
    from tessel.engine.results_check import ExpectedResults, Reference
    from tessel.engine.run import StagePrograms
    from tessel.jobs.running.options import RunOptions
    from tessel.jobs.running.subject import Subject
    from tessel.tuned_plan import TunedPlan
    from tuner.programs.compiled_stages import ProgramSpec
    from tuner.programs.torch_programs import TorchProgramSpec

_SLEEP_STEP_S = 0.01
_OF_PLAN = ("compiled", "torch")
"""Kinds of stages that load the plan's model."""


@dataclass(frozen=True)
class Programs:
    """Who builds the stages, what results are compared with, and how long a step is simulated to be."""

    stages: StagePrograms
    expected: ExpectedResults | None
    step_us: float | None
    are_sleeping: bool = False


def find_programs(subject: Subject, options: RunOptions, devices: Devices) -> Programs:
    """Return who builds the stages, from which specification, and the unpipelined model.

    Raises:
        UsageError: there are no such stages for this document, or they would run code that the user
            has not said to trust.
    """
    trust_model = _is_trusted(subject, options)
    chosen = options.stages or ("sleep" if subject.plan is None else "compiled")
    if chosen == "sleep":
        return _sleeping(subject, devices)
    if ":" in chosen:
        return _stages_of_ones_own(subject, chosen, devices)
    if chosen not in _OF_PLAN:
        raise UsageError(f"--stages {chosen} is none of compiled, torch, sleep and module:function")
    if subject.plan is None:
        raise UsageError(
            f"--stages {chosen} needs a plan, and this document is a schedule without a model; give sleep or "
            "module:function"
        )
    _require_named(subject.plan)
    return _stages_of_plan(subject.plan, chosen, options.seed, devices, trust_model=trust_model)


def _require_named(plan: TunedPlan) -> None:
    """Refuse a plan of a module that was handed over, which other processes cannot load by its name."""
    from tuner.frontend import is_code, names_file
    from tuner.frontend.zoo import MODELS

    model = plan.model
    if not (names_file(model) or is_code(model) or model.startswith(tuple(MODELS))):
        raise UsageError(
            f"the plan is of a module {model}, which each rank would have to load by a name; tune the "
            'module:function or file.py:function that returns it and its inputs, or run with stages="sleep"'
        )


def _is_trusted(subject: Subject, options: RunOptions) -> bool:
    """Return whether the user wants the code run that a plan names as its model.

    Raises:
        UsageError: it would be run and is not wanted, or the user named another model.
    """
    model, is_named = options.model, options.model is not None
    if model is not None and (subject.plan is None or model != subject.plan.model):
        found = (
            "is a schedule, without a model" if subject.plan is None else f"was tuned for {subject.name!r}"
        )
        raise UsageError(f"--model {model}: this document {found}; leave --model out, or name that")
    stages = options.stages or "compiled"
    if options.trust_model or is_named or subject.plan is None or stages not in _OF_PLAN:
        return options.trust_model or is_named
    from tuner.frontend import is_code

    if is_code(subject.plan.model):
        raise UsageError(
            f"this plan names the Python code {subject.plan.model!r} as its model, and running the plan runs "
            f"that code; if you trust it, add --model {shlex.quote(subject.plan.model)} or --trust-model"
        )
    return False


def _sleeping(subject: Subject, devices: Devices) -> Programs:
    import msgspec

    from tessel.engine.actions import stages_before
    from tessel.engine.run import StagePrograms
    from tessel.engine.synthetic.run import PROVIDER, sleep_spec

    step_us = subject.step_us or _SLEEP_STEP_S * 1e6
    schedule = subject.schedule
    spec = sleep_spec(schedule.placement, step_us=step_us, device=devices.kind, batch=schedule.classes)
    return Programs(
        StagePrograms(
            PROVIDER,
            msgspec.json.encode(spec).decode(),
            _copies(subject.plan),
            stages_before(subject.schedule),
        ),
        None,
        step_us,
        are_sleeping=True,
    )


def _stages_of_ones_own(subject: Subject, provider: str, devices: Devices) -> Programs:
    """Take stages from a function of the user's; a function `reference` beside it gives the whole model."""
    import msgspec

    from tessel.engine import EngineError
    from tessel.engine.actions import rank_by_stage
    from tessel.engine.import_function import find_function
    from tessel.engine.run import StagePrograms

    find_function(provider)  # Refused here, before any process starts.
    told: dict[str, object] = {"ranks": rank_by_stage(subject.schedule), "device": devices.kind}
    if (batch := subject.schedule.classes) is not None:
        told["classes"] = batch.names
    spec = msgspec.json.encode(told).decode()
    name = f"{provider.rpartition(':')[0]}:reference"
    try:
        whole = find_function(name)
    except EngineError:
        expected = None
    else:
        expected = _expected(functools.partial(whole, spec), name, subject.plan)
    step_us = subject.step_us if subject.plan is None else None
    stages = StagePrograms(provider, spec, _copies(subject.plan), returns_outputs=True)
    return Programs(stages, expected, step_us)


def _sums(plan: TunedPlan) -> tuple[RankSum, ...]:
    """Return the sums of gradients over ranks at the end of a step, in one order."""
    from tessel.engine.job import RankSum
    from tessel.tuned_model.model_figures import gradient_sums

    if not plan.training:
        return ()
    return tuple(RankSum(ranks=each.devices, num_bytes=each.num_bytes) for each in gradient_sums(plan))


def _copies(plan: TunedPlan | None) -> int:
    return 1 if plan is None else plan.replicas


def _stages_of_plan(
    plan: TunedPlan, stages: str, seed: int, devices: Devices, *, trust_model: bool
) -> Programs:
    import msgspec

    from tessel.engine.run import StagePrograms
    from tuner.plan import ModelPlan

    tuned = ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__})
    spec: TorchProgramSpec | ProgramSpec
    if stages == "torch":
        from tuner.programs.torch_programs import TorchProgramSpec

        provider = "tuner.programs.torch_programs:provide_programs"
        spec = TorchProgramSpec(plan=tuned, seed=seed, device=devices.kind, trust_model=trust_model)
        expected = _expected_of_torch(spec, plan)
    elif devices.kind == plan.device_kind:
        from tuner.programs.compiled_stages import ProgramSpec

        provider = "tuner.programs.compiled_stages:provide_programs"
        spec = ProgramSpec(plan=tuned, seed=seed, trust_model=trust_model)
        expected = _expected_of_compiled(spec, plan)
    else:
        raise UsageError(
            f"--device {devices.kind}: this plan was compiled for {plan.device_model}; leave --device out, "
            "or give --stages torch"
        )
    programs = StagePrograms(
        provider,
        msgspec.json.encode(spec).decode(),
        plan.replicas,
        plan.stages_before,
        _sums(plan),
        returns_outputs=not plan.training,
    )
    return Programs(programs, expected, plan.step_us)


def _expected_of_torch(spec: TorchProgramSpec, plan: TunedPlan) -> ExpectedResults:
    from tuner.programs import torch_programs

    torch_programs.check_spec(spec)
    return _expected(
        functools.partial(torch_programs.reference_step, spec),
        "the uncut model under plain torch",
        plan,
        outputs=functools.partial(torch_programs.reference_outputs, spec),
    )


def _expected_of_compiled(spec: ProgramSpec, plan: TunedPlan) -> ExpectedResults:
    from tuner.programs import compiled_stages

    compiled_stages.check_spec(spec)
    return _expected(
        functools.partial(compiled_stages.reference_step, spec),
        _reference_name(plan.model),
        plan,
        types=functools.partial(compiled_stages.computed_types, spec),
        exact=functools.partial(compiled_stages.exact_gradients, spec),
        outputs=functools.partial(compiled_stages.reference_outputs, spec),
    )


def _reference_name(model: str) -> str:
    """Return what the results of compiled stages are compared with."""
    from tuner.frontend import is_code, names_file

    if is_code(model):
        return "the uncut torch module under plain torch"
    if names_file(model):
        return "the uncut, unpartitioned program of the file"
    return "the uncut, unpartitioned program that was imported from the model"


def _expected(
    reference: Callable[[int], Reference],
    name: str,
    plan: TunedPlan | None,
    *,
    types: Callable[[], Collection[str]] | None = None,
    exact: Callable[[int], Mapping[str, np.ndarray] | None] | None = None,
    outputs: Callable[[int], Iterable[Mapping[str, np.ndarray]]] | None = None,
) -> ExpectedResults:
    from tessel.engine.results_check import ExpectedResults

    if plan is None:
        return ExpectedResults(reference=reference, name=name)
    parameters = [stage.parameters for stage in plan.stages]
    return ExpectedResults(
        reference=reference,
        name=name,
        tied=plan.tied,
        parameters=parameters,
        types=types,
        exact=exact,
        outputs=outputs,
    )
