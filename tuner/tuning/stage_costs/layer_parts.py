"""Guess what the parts of measured layers cost, to see whether measuring them could pay.

A part takes of its layer's time the share that it has of the layer's floating-point operations; its weights,
and what it keeps and sends, are known from its own functions. Left out: what a layer wins by fusing across
the border of its parts, and that some operators are faster than others. Checked in
tests/tuner/tuning/stage_costs/test_layer_parts.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tuner.frontend.model import Model
from tuner.lowering.workload_of import workload_of
from tuner.plan import Figure, LayersPlan, StagePlan
from tuner.stages import Stage, build_stages, cut_between, layers_of, tied_groups, with_all_gradients

_FUNCTIONS = ("forward", "backward", "backward_input", "backward_weight")


def guess_parts(model: Model, layers: LayersPlan) -> LayersPlan | None:
    """Return the layers in parts, with derived figures; None where no layer has parts.

    Args:
        model: whose layers were measured.
        layers: whole ones, as they were measured.
    """
    model = with_all_gradients(model)
    whole, parts = (layers_of(model, at_branches=True, in_parts=in_parts) for in_parts in (False, True))
    if len(parts) == len(whole):
        return None
    stages = build_stages(model, cut_between(parts, range(1, len(parts))))
    of_layer = [
        [number for number, part in enumerate(parts) if layer.start <= part.start < layer.stop]
        for layer in whole
    ]

    operations = [_operations(stage) for stage in stages]

    def parts_of(layer: StagePlan, numbers: Sequence[int]) -> list[StagePlan]:
        return _parts_of(layer, [stages[n] for n in numbers], [operations[n] for n in numbers], numbers)

    def divided(plans: Sequence[StagePlan]) -> tuple[StagePlan, ...]:
        return tuple(
            plan for numbers, layer in zip(of_layer, plans, strict=True) for plan in parts_of(layer, numbers)
        )

    return msgspec.structs.replace(
        layers,
        layers=divided(layers.layers),
        tied=tied_groups(model, stages),
        shards={
            count: (
                parts_of(first, of_layer[0])[0],
                parts_of(last, of_layer[-1])[-1],
            )
            for count, (first, last) in layers.shards.items()
        },
        tensor_parallel={count: divided(plans) for count, plans in layers.tensor_parallel.items()},
    )


def _parts_of(
    layer: StagePlan,
    stages: Sequence[Stage],
    operations: Sequence[Mapping[str, int]],
    numbers: Sequence[int],
) -> list[StagePlan]:
    """Return the parts of a layer, which may be a shard's; it alone where it has no parts."""
    if len(stages) == 1:
        return [msgspec.structs.replace(layer, name=f"stage{numbers[0]}")]
    weights = sum(stage.weight_bytes for stage in stages)
    saved = sum(stage.saved_bytes for stage in stages)
    of_function = {
        name: [counts.get(name, 0) for counts in operations] for name in _FUNCTIONS if getattr(layer, name)
    }
    found = []
    for index, (stage, number) in enumerate(zip(stages, numbers, strict=True)):
        plan = stage.plan(
            {
                name: _share(getattr(layer, name), counts[index], sum(counts), len(counts))
                for name, counts in of_function.items()
            }
        )
        found.append(
            msgspec.structs.replace(
                plan,
                name=f"stage{number}",
                weight_bytes=_portion(layer.weight_bytes, stage.weight_bytes, weights),
                bound_bytes=_portion(layer.bound_bytes, stage.weight_bytes, weights),
                saved_bytes=_portion(layer.saved_bytes, stage.saved_bytes, saved),
                saved_for_weight_bytes=_portion(layer.saved_for_weight_bytes, stage.saved_bytes, saved),
                shards=layer.shards,
            )
        )
    return found


def _operations(stage: Stage) -> dict[str, int]:
    """Count the floating-point operations of each of a stage's functions."""
    return {
        name: workload_of(function.module["main"], module=function.module).flops
        for name, function in stage.functions().items()
    }


def _share(figure: Figure, operations: int, of_layer: int, count: int) -> Figure:
    """Return a part of a latency, an equal one where no operation is known."""
    share = operations / of_layer if of_layer else 1 / count
    return Figure(latency_us=figure.latency_us * share, source="derived")


def _portion(of_layer: int, num_bytes: int, of_parts: int) -> int:
    """Return a part of a layer's bytes, which may be a shard's, by what whole parts have of them."""
    return of_layer * num_bytes // of_parts if of_parts else 0
