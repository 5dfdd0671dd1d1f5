"""A provider of compiled stages in which every copy of a pipeline reads the first copy's inputs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tuner.programs.compiled_stage import CompiledStage
from tuner.programs.compiled_stages import ProgramSpec, draw_inputs, load_planned_model, load_programs


def repeated(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, CompiledStage]:
    """Build the stages, each with the inputs that its micro-batch has in the first copy."""
    spec = msgspec.json.decode(spec_json, type=ProgramSpec)
    model = load_planned_model(spec, guarded=False)
    copies = spec.plan.replicas
    return load_programs(
        spec,
        stage_numbers,
        inputs=lambda micro_batch: draw_inputs(model, spec.seed, micro_batch // copies * copies),
    )
