"""Compiled stages with faults, as `tessel.engine` asks for them.

Shards whose ranks all lose the same collectives, and copies of a pipeline that repeat one another's inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec
import torch

from tuner.programs import sharded_program
from tuner.programs.compiled_stage import CompiledStage
from tuner.programs.compiled_stages import (
    ProgramSpec,
    load_planned_model,
    load_programs,
    provide_programs,
)
from tuner.programs.inputs import draw_inputs

FAULTS = ("without_maxima", "without_one_sum")


def without_maxima(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, CompiledStage]:
    """Leave out the maxima of the logits' rows: each rank goes by its own."""
    return _losing(spec_json, stage_numbers, lambda kind, number: kind == "max")


def without_one_sum(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, CompiledStage]:
    """Leave out one sum in four."""
    return _losing(spec_json, stage_numbers, lambda kind, number: kind == "sum" and number % 4 == 2)


def wrong_outputs(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, CompiledStage]:
    """Add one to a value of the last stage's weights, on the first rank that holds it alone."""
    programs = provide_programs(spec_json, stage_numbers)
    if torch.distributed.get_rank() == 0 and programs:
        weight = next(iter(programs[max(programs)].weights.values()))
        weight.view(-1)[0] += 1.0
    return programs


def repeated_micro_batches(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, CompiledStage]:
    """Give every copy of a pipeline the inputs of the first one."""
    spec = msgspec.json.decode(spec_json, type=ProgramSpec)
    model = load_planned_model(spec, guarded=False)
    copies = spec.plan.replicas
    return load_programs(
        spec,
        stage_numbers,
        inputs=lambda micro_batch: draw_inputs(model, spec.seed, micro_batch // copies * copies),
    )


def _losing(
    spec_json: str, stage_numbers: Sequence[int], is_lost: Callable[[str, int], bool]
) -> dict[int, CompiledStage]:
    counter = itertools.count()
    whole = sharded_program.all_reduce

    def all_reduce(
        tensor: torch.Tensor, kind: str = "sum", group: torch.distributed.ProcessGroup | None = None
    ) -> None:
        if not is_lost(kind, next(counter)):
            whole(tensor, kind, group)

    sharded_program.all_reduce = all_reduce  # in a rank's own process
    return provide_programs(spec_json, stage_numbers)
