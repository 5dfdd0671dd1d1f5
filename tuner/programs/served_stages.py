"""Stages of a plan of inference as a served pipeline's ranks run them: on inputs that are given.

Checked in tests/tessel/jobs/test_loading.py.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

import msgspec

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.plan import ModelPlan
from tuner.programs.compiled_stage import CompiledStage
from tuner.programs.compiled_stages import ProgramSpec, load_planned_model, load_programs
from tuner.programs.step_results import Tensors
from tuner.runtime.call_structure import flat_structure
from tuner.runtime.manifest import Manifest, TensorSpec
from tuner.stages.program import output_names
from tuner.tuning.compile_mix import part_row, result_types


class ServedStages:
    """The stages of one rank, and the inputs of the micro-batch that runs.

    Attributes:
        manifest: of the whole model, as it is called.
        outputs: names that stages give to what the model returns, in order.
        reads: names of the model's inputs that these stages read.
        programs: by stage; they keep outputs.
        inputs: of the micro-batch that runs, by name.
    """

    def __init__(self, spec: ProgramSpec, stages: Sequence[int]) -> None:
        model = load_planned_model(spec)
        self.manifest = _manifest(model, spec.plan)
        self.outputs = output_names(model)
        self.inputs: Tensors = {}
        self.programs: Mapping[int, CompiledStage] = load_programs(
            spec, stages, inputs=lambda micro_batch: self.inputs
        )
        for program in self.programs.values():
            program.keep_outputs()
        read = {name for program in self.programs.values() for name in program.reads}
        self.reads = tuple(each.name for each in model.inputs if each.name in read)
        if handed := sorted(set(model.parameter_names) & set(self.outputs)):
            raise TunerError(
                f"{model.name} returns its weight {handed[0]}, which no stage makes; return what is computed"
            )


def provide(spec_json: str, stages: Sequence[int]) -> ServedStages:
    """Build stages as a served rank asks for them: the specification comes as JSON text.

    Raises:
        ValueError: the text is not a `ProgramSpec`.
        TunerError: see `load_programs`.
    """
    return ServedStages(msgspec.json.decode(spec_json, type=ProgramSpec), stages)


def _manifest(model: Model, plan: ModelPlan) -> Manifest:
    results = result_types(model.module)
    return Manifest(
        model=model.name,
        fingerprint=plan.model_fingerprint,
        call=model.call or flat_structure([each.name for each in model.inputs], len(results)),
        inputs=tuple(TensorSpec(name=s.name, shape=s.shape, dtype=s.dtype) for s in model.inputs),
        outputs=tuple(
            TensorSpec(name=f"output {at}", shape=shape, dtype=dtype)
            for at, (shape, dtype) in enumerate(results)
        ),
        weights=(),
        bound=(),
        calls=(),
        num_threads=plan.num_threads,
        machine=platform.machine(),
        features=(),
        versions={},
        parts=tuple(map(part_row, plan.partition)),
        latency_us={name: figure.latency_us for name, figure in plan.end_to_end.items()},
        max_relative_error=plan.max_relative_error,
    )
