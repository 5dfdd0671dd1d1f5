"""Stages of one's own for `tessel run`, in which the fault happens that an environment variable describes.

`FAULT` is a `Fault` as JSON; without it nothing goes wrong. The stages are those of `pipeline_programs`, or,
where `FAULTY_PLAN` names a plan, its compiled stages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from fault_injection import Fault, FaultyProgram
from pipeline_programs import ChainSpec, provide
from pipeline_programs import reference as chain_reference

from tessel.engine.program import StageProgram
from tessel.loading import load_plan
from tuner.plan import ModelPlan
from tuner.programs import compiled_stages


def stages(spec_json: str, stage_numbers: Sequence[int]) -> Mapping[int, StageProgram]:
    """Build stages as `tessel run --stages` asks for them."""
    if "FAULTY_PLAN" in os.environ:
        programs = dict(compiled_stages.load_programs(_compiled_spec(), stage_numbers))
    else:
        chain = ChainSpec(len(json.loads(spec_json)["ranks"]))
        programs = dict(provide(msgspec.json.encode(chain).decode(), stage_numbers))
    if "FAULT" in os.environ:
        fault = Fault(**json.loads(os.environ["FAULT"]))
        if fault.stage in programs:
            programs[fault.stage] = FaultyProgram(programs[fault.stage], fault)
    return programs


def reference(spec_json: str, num_micro_batches: int) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses and mean gradients of the whole model; weights of equal names are one."""
    if "FAULTY_PLAN" in os.environ:
        return compiled_stages.reference_step(_compiled_spec(), num_micro_batches)
    losses, gradients = chain_reference(len(json.loads(spec_json)["ranks"]), num_micro_batches)
    total: dict[str, np.ndarray] = {}
    for key, gradient in gradients.items():
        name = key.partition("/")[2]
        total[name] = total[name] + gradient if name in total else gradient
    return losses, total


def _compiled_spec() -> compiled_stages.ProgramSpec:
    plan = load_plan(Path(os.environ["FAULTY_PLAN"]))
    tuned = ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__})
    return compiled_stages.ProgramSpec(plan=tuned, trust_model=True)  # a test's own model
