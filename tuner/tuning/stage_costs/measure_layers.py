"""Measure each layer of a model by itself, and divided over devices: what a planner chooses from.

    layers      e | b | b | b | h                     each distinct one once, all functions of its backward
    ends        e and h over 2 devices, over 4, …     vocabulary-parallel, collectives included
    tensor      e | b | b | b | h                     each divided over 2 devices, over 4, …
    optimizer   w - rate · g over a vector            by which every update is reckoned from its traffic

Layers are divided where a branch begins and where branches meet: a planner may run branches side by side.
A layer alone leaves out what fusing across its borders would win, so the stages of a plan are measured again
as they are cut. Checked in tests/tuner/tuning/stage_costs/test_measure_shards.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tvm import relax

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.plan import Figure, LayersPlan, StagePlan
from tuner.shards.stage import shard_stages
from tuner.shards.vocabulary import vocabulary_layouts
from tuner.stages import Stage, build_stages, cut_between, layers_of, tied_groups, with_all_gradients
from tuner.tuning.import_check import verify_import
from tuner.tuning.partitioned_function import choose_partition, price_function
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.stage_costs.measure_shards import Collectives, ShardMeasurer
from tuner.tuning.stage_costs.measure_stages import partition_stages, stage_plan
from tuner.tuning.stage_costs.stage_pricing import price_stage, price_stages

_UPDATED_BYTES = 16 << 20
"""Bytes of weights that the measured update goes over: more than caches hold, with gradient and result."""

_MOVES = 3
"""Tensors that plain gradient descent reads and writes: weight, gradient, weight."""


def measure_layers(
    model: Model,
    session: Session,
    *,
    shard_counts: Sequence[int] = (),
    tensor_counts: Sequence[int] = (),
    collectives: Collectives | None = None,
    batch: int = 1,
    in_parts: bool = False,
) -> LayersPlan:
    """Return what every layer of a model costs, whole and divided, and its ends divided by words.

    Args:
        shard_counts: numbers of devices over which the ends are to be divided, each at least 2.
        tensor_counts: numbers of devices over which every layer is to be divided, each at least 2; those over
            which nothing of the model can be are left out.
        collectives: says how long all-reduces of shards take; needed where there are shard counts.
        batch: samples of a micro-batch, as the model was loaded.
        in_parts: whether layers are measured in the parts that they can be divided into.

    Raises:
        TunerError: the model was imported wrongly, or a function cannot be partitioned or measured. Ends that
            cannot be divided are no error: the reason is in `undivided`.
    """
    model, _ = verify_import(with_all_gradients(model), session)
    penalty_us = measure_launch_penalty(session.measurer).latency_us
    layers = layers_of(model, at_branches=True, in_parts=in_parts)
    cuts = cut_between(layers, range(1, len(layers)))
    stages = build_stages(model, cuts, constant_weights=not model.training)
    partitioned = partition_stages(session, stages, penalty_us, model.layers_by_variable())
    figures = dict(zip(partitioned, price_stages(session, tuple(partitioned.values())), strict=True))
    plans = [stage_plan(session, stage, figures, partitioned) for stage in stages]
    shards: dict[int, tuple[StagePlan, StagePlan]] = {}
    undivided = ""
    tensor_parallel: dict[int, tuple[StagePlan, ...]] = {}
    if collectives is not None:
        measurer = ShardMeasurer(session, penalty_us, collectives)
        for count in shard_counts if len(layers) > 2 else ():
            try:
                shards[count] = _divided(measurer, stages, plans, count)
            except TunerError as error:
                undivided = undivided or str(error)
        for count in tensor_counts:
            try:
                tensor_parallel[count] = _tensor_parallel(measurer, stages, plans, count)
            except TunerError as error:
                session.on_progress(TuningProgress(text=f"not divided over {count} devices: {error}"))
    return LayersPlan(
        model=model.name,
        device_model=session.measurer.environment(session.backends[0].name).device_model,
        training=model.training,
        batch=batch,
        layers=tuple(plans),
        tied=tied_groups(model, stages),
        shards=shards,
        undivided=undivided,
        update=_measure_update(session, penalty_us) if model.training else None,
        updated_bytes=_UPDATED_BYTES,
        update_moves=_MOVES,
        tensor_parallel=tensor_parallel,
    )


def _divided(
    measurer: ShardMeasurer, stages: Sequence[Stage], plans: Sequence[StagePlan], count: int
) -> tuple[StagePlan, StagePlan]:
    """Return the plans of the first and the last layer over so many devices.

    Raises:
        TunerError: they cannot be divided, or a segment cannot be measured.
    """
    ends = (stages[0], stages[-1])
    vocabulary_layouts(ends, count)  # Refuses a model without words.
    sharded = shard_stages(stages, {0: count, len(stages) - 1: count})
    first, last = (
        measurer.price_stage(sharded[stage.name], stage.name).plan(plan)
        for stage, plan in zip(ends, (plans[0], plans[-1]), strict=True)
    )
    return first, last


def _tensor_parallel(
    measurer: ShardMeasurer, stages: Sequence[Stage], plans: Sequence[StagePlan], count: int
) -> tuple[StagePlan, ...]:
    """Return the plans of all layers over so many devices; of equal layers the first is divided.

    Raises:
        TunerError: nothing of the model can be divided so, or a segment cannot be measured.
    """
    structures = [_structure(stage) for stage in stages]
    first: dict[Hashable, int] = {}
    for number, structure in enumerate(structures):
        first.setdefault(structure, number)
    sharded = shard_stages(stages, dict.fromkeys(first.values(), count))
    priced = {
        number: measurer.price_stage(sharded[stages[number].name], stages[number].name)
        for number in first.values()
    }
    found = []
    for structure, stage, plan in zip(structures, stages, plans, strict=True):
        number = first[structure]
        weights = dict(zip(stage.parameters, stages[number].parameters, strict=True))
        found.append(priced[number].plan(plan, weights=weights))
    return tuple(found)


def _structure(stage: Stage) -> Hashable:
    """Return what is equal of stages that differ in the names of their tensors alone."""
    own, handed_on = set(stage.parameters), {info.name for info in (*stage.outputs, *stage.sent)}
    return (
        len(stage.inputs),
        tuple(info.name in own for info in stage.forward.inputs),
        tuple(info.name in handed_on for info in stage.forward.outputs),
        tuple((name, Structure(function.module)) for name, function in stage.functions().items()),
    )


def _measure_update(session: Session, penalty_us: float) -> Figure:
    """Return how long plain gradient descent takes over `_UPDATED_BYTES` of weights."""
    priced = price_function(session, _update(), name="optimizer.update", launch_penalty_us=penalty_us)
    return price_stage(session, choose_partition(priced))


def _update() -> IRModule:
    """Return a module whose `main` takes a step against a gradient."""
    ty = relax.TensorType((_UPDATED_BYTES // 4 // 1024, 1024), "float32")
    weight, gradient = relax.Var("weight", ty), relax.Var("gradient", ty)
    builder = relax.BlockBuilder()
    with builder.function("main", [weight, gradient]):
        with builder.dataflow():
            scaled = builder.emit(relax.op.multiply(gradient, relax.const(0.01, "float32")))
            result = builder.emit_output(relax.op.subtract(weight, scaled))
        builder.emit_func_output(result)
    return builder.finalize()
