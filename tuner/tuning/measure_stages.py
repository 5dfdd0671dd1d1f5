"""Cut a model into stages and measure each function of each stage.

Cuts are given, or found from measured costs of single layers: each distinct layer is a stage of its own for
that purpose, so that the twelve equal blocks of a transformer are measured once. Every function of a stage
is partitioned over the backends and measured as a whole. Gradients of the chained stages are checked against
those of the program that the model was imported from, or else of the uncut model. Checked in
tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from records.workload import describe
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.lowering.workload_of import workload_of
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.numerical_error import COMPARISON, NEGLIGIBLE, Deviation, tolerance_of
from tuner.plan import Figure, StagePlan, TiedParameter
from tuner.pricing.protocol import is_spent
from tuner.shards import ShardedFunction, ShardedStage, has_words, shard_ends, shard_stages
from tuner.shards.vocabulary import holds_words
from tuner.stages import (
    Layer,
    Stage,
    StageFunction,
    build_stages,
    check_gradients,
    choose_cuts,
    cut_after,
    cut_between,
    layers_of,
    tied_groups,
    with_all_gradients,
)
from tuner.stages.placed_stages import (
    LayerCosts,
    PlacedStages,
    can_place,
    choose_placed_cuts,
    layer_reads,
)
from tuner.tuning.import_check import admit_import, reference_settings
from tuner.tuning.measure_shards import Collectives, MeasuredShards, ShardMeasurer
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, price_function
from tuner.tuning.session import Session, TuningProgress, checked_error
from tuner.tuning.stage_pricing import predict_stage, price_stage

_LayerKey: TypeAlias = tuple[str, ...]
"""Names what a layer's functions are; equal for equal layers."""

_WEIGHT_COPIES = 2
"""Weights and their gradients, which every stage holds when training; one copy when not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStages:
    """A model's stages with their costs.

    Attributes:
        stages: plain data, in order.
        cut_positions: bindings at which each stage but the first begins.
        tied: groups of parameters that are one and the same.
        tied_bytes: of each group on one device that holds it, of shards on the fullest.
        functions: the partitioned functions, by `stage1.forward` and the like.
        max_error: largest relative error of outputs and gradients against the model's own program, or else
            against the uncut model; None where nothing ran.
        import_error: see `tuner.tuning.import_check`.
    """

    stages: tuple[StagePlan, ...]
    cut_positions: tuple[int, ...]
    tied: tuple[tuple[TiedParameter, ...], ...]
    tied_bytes: tuple[int, ...]
    functions: tuple[PartitionedFunction, ...]
    max_error: float | None
    import_error: float | None


def measure_stages(
    model: Model,
    session: Session,
    *,
    num_stages: int | None = None,
    cuts: Sequence[str] | None = None,
    layer_cuts: Sequence[int] | None = None,
    memory_limit_bytes: int | None = None,
    collectives: Collectives | None = None,
    placed: PlacedStages | None = None,
) -> MeasuredStages:
    """Cut the model, and measure each stage's forward, joint backward and split backward.

    With collectives alone, the first and the last layer are stages of their own, vocabulary-parallel over
    `num_stages` devices, and the layers between are cut into `num_stages` stages, one per device (m shape).

    Args:
        model: what is cut.
        session: what measures.
        num_stages: how many stages, where cuts are to be found.
        cuts: names of modules after which a stage ends, else those that the model marks; where there are
            any they decide alone.
        layer_cuts: in place of all that: the layers at which each stage but the first begins, by number.
        memory_limit_bytes: what weights and one micro-batch's activations of a stage may need.
        collectives: says how long all-reduces of shards take; None where no stage is divided.
        placed: in place of a number of stages: where each runs, which receives from which, and which are
            divided; with collectives where there are any of these.

    Raises:
        TunerError: the model was imported wrongly or cannot be cut or divided so, a function cannot be
            measured, or gradients are wrong.
        UnknownNameError: a cut names no module.
    """
    model, import_error = admit_import(with_all_gradients(model), session)
    penalty_us = measure_launch_penalty(session.measurer).latency_us
    if layer_cuts is not None:
        positions = cut_between(layers_of(model), layer_cuts)
    elif placed is not None:
        positions = _cut_placed(model, session, placed, cuts, memory_limit_bytes, penalty_us)
    elif collectives is not None:
        positions = _cut_m_shape(model, session, num_stages or 1, cuts, memory_limit_bytes, penalty_us)
    else:
        positions = _cut_chain(model, session, num_stages, cuts, memory_limit_bytes, penalty_us)
    stages = build_stages(model, positions, None if placed is None else placed.branches)
    ends = None
    if collectives is not None and placed is not None:
        counts = {number: len(placed.devices[number]) for number in placed.divided}
        ends = _measure_divided(session, shard_stages(stages, counts), collectives, penalty_us)
    elif collectives is not None:
        ends = _measure_divided(session, _divided_ends(stages, model.name), collectives, penalty_us)
    divided = {} if ends is None else ends.stages
    whole = [each for each in stages if each.name not in divided]
    partitioned = partition_stages(session, whole, penalty_us, model.layers_by_variable())
    figures = {name: price_stage(session, function) for name, function in partitioned.items()}
    for name, shards in divided.items():
        figures |= {f"{name}.{kind}": found.total for kind, found in shards.figures.items()}
    plans = [stage_plan(stage, figures) for stage in stages]
    tied = tied_groups(model, stages)
    return MeasuredStages(
        stages=tuple(divided[plan.name].plan(plan) if plan.name in divided else plan for plan in plans),
        cut_positions=positions,
        tied=tied,
        tied_bytes=tuple(_tied_bytes(group, stages, divided) for group in tied),
        functions=(*partitioned.values(), *(ends.measurer.partitioned if ends is not None else ())),
        max_error=_check(
            model, session, stages, partitioned, ends, None if placed is None else placed.branches
        ),
        import_error=import_error,
    )


def require_memory(
    model: Model, *, num_stages: int | None, memory_limit_bytes: int | None, are_ends_divided: bool
) -> None:
    """Refuse, before anything is measured, what no cut can fit: cuts are found by bytes that are known.

    Args:
        model: what is to be cut where the cuts fit best; given cuts are for the schedule search to judge.
        num_stages: how many stages.
        memory_limit_bytes: what a stage may need; None for no limit.
        are_ends_divided: whether the first and the last layer are divided, and only those between are cut.

    Raises:
        TunerError: every cut has a stage that does not fit; names the layer.
    """
    if memory_limit_bytes is None or num_stages is None or num_stages < 2 or model.cuts:
        return
    layers = layers_of(model)
    if are_ends_divided:
        layers = layers[1:-1]
    if len(layers) < num_stages:
        return  # which is refused elsewhere, and better
    choose_cuts(
        [1.0] * len(layers),
        _layer_bytes(model, _alone(model, layers)),
        num_stages,
        memory_limit_bytes=memory_limit_bytes,
        names=[layer.name for layer in layers],
    )


def _layer_bytes(model: Model, alone: Sequence[Stage]) -> list[int]:
    """Return what each layer needs as a stage of its own, with one micro-batch in flight."""
    copies = _WEIGHT_COPIES if model.training else 1
    return [copies * stage.weight_bytes + stage.saved_bytes for stage in alone]


@dataclass(frozen=True, slots=True)
class _Divided:
    """The stages that are divided over several devices, by name, and what measured them."""

    measurer: ShardMeasurer
    stages: Mapping[str, MeasuredShards]


def _divided_ends(stages: Sequence[Stage], model_name: str) -> dict[str, ShardedStage]:
    """Divide the first and the last stage over as many devices as there are stages between."""
    ends = (stages[0], stages[-1])
    try:
        if not has_words(ends):
            raise TunerError("they look up no table by the model's inputs, so there are no words to divide")
        return shard_ends(stages)
    except TunerError as error:
        layers = " and ".join(stage.layers[0] for stage in ends)
        raise TunerError(
            f"{model_name} takes no m shape: its first and last layer, {layers}, cannot be sharded by "
            f"vocabulary ({error})"
        ) from error


def _measure_divided(
    session: Session, sharded: Mapping[str, ShardedStage], collectives: Collectives, penalty_us: float
) -> _Divided:
    measurer = ShardMeasurer(session, penalty_us, collectives)
    return _Divided(measurer, {name: measurer.price_stage(each, name) for name, each in sharded.items()})


def _tied_bytes(
    group: Sequence[TiedParameter], stages: Sequence[Stage], divided: Mapping[str, MeasuredShards]
) -> int:
    """Return what a tied tensor takes on a device that holds it; where shares differ, the largest."""
    largest = 0
    for member in group:
        stage = stages[member.stage]
        (info,) = (each for each in stage.forward.inputs if each.name == member.name)
        if stage.name in divided:
            largest = max(largest, *divided[stage.name].stage.bytes_of(info))
        else:
            largest = max(largest, info.num_bytes)
    return largest


def _cut_chain(
    model: Model,
    session: Session,
    num_stages: int | None,
    cuts: Sequence[str] | None,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut where it is asked for, or so that the slowest stage is as fast as can be."""
    if cuts is None and model.cuts:
        cuts = model.cuts
    if cuts is None:
        return _find_cuts(model, session, layers_of(model), num_stages or 1, memory_limit_bytes, penalty_us)
    positions = cut_after(model, cuts)
    if num_stages is not None and len(positions) + 1 != num_stages:
        raise TunerError(
            f"{len(positions)} cuts make {len(positions) + 1} stages, but the placement has {num_stages}; "
            "give one cut less than stages, or leave out cuts and marks"
        )
    return positions


def _cut_m_shape(
    model: Model,
    session: Session,
    num_devices: int,
    cuts: Sequence[str] | None,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut after the first and before the last layer, and the layers between into a stage a device."""
    layers = layers_of(model)
    if cuts is not None or model.cuts:
        raise TunerError(
            "an m shape divides the first and the last layer, and finds the cuts between; leave out cuts "
            "and marks"
        )
    if num_devices < 2 or len(layers) - 2 < num_devices:
        raise TunerError(
            f"an m shape on {num_devices} devices needs at least 2, and a layer for each between the first "
            f"and the last; {model.name} has {max(0, len(layers) - 2)} there"
        )
    inner = _find_cuts(model, session, layers[1:-1], num_devices, memory_limit_bytes, penalty_us)
    return (layers[1].start, *inner, layers[-1].start)


def _cut_placed(
    model: Model,
    session: Session,
    placed: PlacedStages,
    cuts: Sequence[str] | None,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut as the stages of a placement follow one another; divided ones are the layers with words, or not.

    Raises:
        TunerError: the model marks cuts, has no such branches, or other layers with words than are needed.
    """
    if cuts is not None or model.cuts:
        raise TunerError(
            "a placement of branches or divided blocks finds its cuts itself; leave out cuts and marks"
        )
    layers = layers_of(model, at_branches=not placed.is_chain)
    alone = build_stages(model, cut_between(layers, range(1, len(layers))))
    with_words = [number for number, stage in enumerate(alone) if holds_words(stage, alone)]
    are_as_many = len(with_words) == len(placed.divided)
    fixed = dict(zip(placed.divided, with_words, strict=False))
    if placed.needs_words and not are_as_many:
        names = ", ".join(layers[number].name for number in with_words) or "none"
        raise TunerError(
            f"the placement divides {len(placed.divided)} layers that hold words over all devices, and "
            f"{model.name} has {len(with_words)} ({names}); choose mshape or a chain"
        )
    costs = LayerCosts(
        names=tuple(layer.name for layer in layers),
        costs_us=(0.0,) * len(layers),
        memory_bytes=tuple(_layer_bytes(model, alone)),
        reads=layer_reads(model, layers),
        memory_limit_bytes=memory_limit_bytes,
    )
    if not placed.needs_words and not (are_as_many and can_place(placed, costs, fixed)):
        fixed = {}

    def cut(costs_us: Sequence[float]) -> tuple[int, ...]:
        return choose_placed_cuts(placed, replace(costs, costs_us=tuple(costs_us)), fixed=fixed)

    cut(costs.costs_us)  # Refused before anything is measured.
    return cut_between(layers, _cut_by_cost(session, layers, alone, penalty_us, cut))


def _find_cuts(
    model: Model,
    session: Session,
    layers: Sequence[Layer],
    num_stages: int,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut between neighbouring layers so that the slowest stage is as fast as can be, by costs of layers."""
    if num_stages == 1:
        return ()
    alone = _alone(model, layers)

    def cut(costs_us: Sequence[float]) -> tuple[int, ...]:
        return choose_cuts(
            costs_us,
            _layer_bytes(model, alone),
            num_stages,
            memory_limit_bytes=memory_limit_bytes,
            communication_us=[float(stage.boundary_bytes) for stage in alone[:-1]],
            names=[layer.name for layer in layers],
        )

    return cut_between(layers, _cut_by_cost(session, layers, alone, penalty_us, cut))


def _cut_by_cost(
    session: Session,
    layers: Sequence[Layer],
    alone: Sequence[Stage],
    penalty_us: float,
    cut: Callable[[Sequence[float]], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the layers at which stages begin, by what each layer costs alone.

    Where prices are active, layers are predicted from their parts, and measured only while cuts may change.
    """
    keys, functions_of_layer = [], {}
    for index, (layer, stage) in enumerate(zip(layers, alone, strict=True)):
        functions = _functions_of(stage, split=False)
        key = tuple(workload_of(f.module["main"], module=f.module).fingerprint for f in functions.values())
        keys.append(key)
        if key not in functions_of_layer:
            session.on_progress(
                TuningProgress(text=f"layer {layer.name}", completed=index, total=len(layers))
            )
            functions_of_layer[key] = [
                _partition(session, function, name, penalty_us) for name, function in functions.items()
            ]
    return _settle_cuts(session, keys, functions_of_layer, cut)


def _alone(model: Model, layers: Sequence[Layer]) -> Sequence[Stage]:
    """Make a stage of each of these layers, of a model whose other layers are stages too."""
    every = layers_of(model)
    stages = build_stages(model, cut_between(every, range(1, len(every))))
    first = next(index for index, layer in enumerate(every) if layer.start == layers[0].start)
    return stages[first : first + len(layers)]


def _settle_cuts(
    session: Session,
    keys: Sequence[_LayerKey],
    functions_of_layer: Mapping[_LayerKey, Sequence[PartitionedFunction]],
    cut: Callable[[Sequence[float]], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the cuts, pricing layers as the session's mode says.

    Active: all layers are predicted first. While the slowest stage could, with every unmeasured layer at the
    low end of its interval, be faster than that of the cuts at hand by more than the regret, the layer whose
    interval weighs most in the slowest stage is measured.
    """
    pricing = session.pricing
    price = predict_stage if pricing.mode == "active" else price_stage
    figures = {
        key: [price(session, function) for function in functions]
        for key, functions in functions_of_layer.items()
    }
    while True:
        likely_us = [sum(figure.latency_us for figure in figures[key]) for key in keys]
        hopeful_us = [sum(map(_low_us, figures[key])) for key in keys]
        chosen, hopeful = cut(likely_us), cut(hopeful_us)
        slowest_us, slowest = _slowest_stage(likely_us, chosen)
        at_best_us, _ = _slowest_stage(hopeful_us, hopeful)
        is_settled = at_best_us >= slowest_us * (1 - pricing.regret)
        if pricing.mode != "active" or is_settled or is_spent(pricing):
            return chosen
        doubt_us: dict[_LayerKey, float] = {}
        for index in slowest:
            if likely_us[index] > hopeful_us[index]:
                doubt = likely_us[index] - hopeful_us[index]
                doubt_us[keys[index]] = doubt_us.get(keys[index], 0.0) + doubt
        if not doubt_us:
            return chosen
        wanted = max(doubt_us, key=lambda key: (doubt_us[key], key))
        figures[wanted] = [price_stage(session, function) for function in functions_of_layer[wanted]]
        pricing.num_measured += len(functions_of_layer[wanted])


def _low_us(figure: Figure) -> float:
    """Return the low end of a prediction, and a measured latency as it is."""
    predicted = figure.source == "predicted" and figure.interval_us is not None
    return figure.interval_us[0] if predicted and figure.interval_us is not None else figure.latency_us


def _slowest_stage(costs_us: Sequence[float], cuts: Sequence[int]) -> tuple[float, range]:
    """Return the cost and the layers of the slowest stage, the first of equals."""
    bounds = [0, *cuts, len(costs_us)]
    stages = [range(first, last) for first, last in itertools.pairwise(bounds)]
    slowest = max(stages, key=lambda stage: sum(costs_us[index] for index in stage))
    return sum(costs_us[index] for index in slowest), slowest


def _functions_of(stage: Stage, *, split: bool = True) -> dict[str, StageFunction]:
    return {f"{stage.name}.{name}": function for name, function in stage.functions(split=split).items()}


def partition_stages(
    session: Session, stages: Sequence[Stage], penalty_us: float, layers: Mapping[str, str]
) -> dict[str, PartitionedFunction]:
    """Partition every function of every stage; those of equal structure are searched once.

    Each function's operators belong to its own layers (`layers`, by name of a variable), which the search
    does not look at.
    """
    known: dict[Structure, PartitionedFunction] = {}
    partitioned = {}
    for stage in stages:
        for name, function in _functions_of(stage).items():
            structure = Structure(function.module)
            if structure not in known:
                known[structure] = _partition(session, function, name, penalty_us)
            found = known[structure]
            own = DataflowGraph.from_function(function.module, layers=layers)
            graph = found.priced.graph.with_layers([node.layer for node in own.nodes])
            partitioned[name] = replace(found, priced=replace(found.priced, name=name, graph=graph))
    return partitioned


def _partition(
    session: Session, function: StageFunction, name: str, penalty_us: float
) -> PartitionedFunction:
    priced = price_function(session, function.module, name=name, launch_penalty_us=penalty_us)
    return choose_partition(priced)


def stage_plan(stage: Stage, figures: Mapping[str, Figure]) -> StagePlan:
    """Return a stage as plain data, given the figures of all functions, its own among them by its name."""
    prefix = f"{stage.name}."
    return stage.plan(
        {name.removeprefix(prefix): each for name, each in figures.items() if name.startswith(prefix)}
    )


def _check(
    model: Model,
    session: Session,
    stages: Sequence[Stage],
    partitioned: Mapping[str, PartitionedFunction],
    ends: _Divided | None = None,
    branches: Sequence[Sequence[int]] | None = None,
) -> float | None:
    """Check the chained, partitioned stages against the uncut model; once for each choice of partitions."""
    if session.pricing.mode == "model":
        return None
    functions = [*partitioned.values(), *(ends.measurer.partitioned if ends is not None else ())]
    kinds = f"stages={len(stages)};" if ends is None else f"m shape={len(stages)};"
    if branches is not None:
        kinds = f"branches={branches};{kinds}"
    settings = kinds + ",".join(function.fingerprint for function in functions)
    session.on_progress(TuningProgress(text=f"checking the stages against {_whole(model)}"))
    workload = workload_of(model.module["main"], "model", module=model.module)
    tolerance = tolerance_of(tensor.dtype for tensor in workload.values)
    # The share below which a gradient is rounding errors is part of what is checked.
    facts = [("check", "stages"), ("negligible", str(NEGLIGIBLE)), COMPARISON]
    found = checked_error(
        session,
        describe("model", workload.inputs, workload.operators, workload.results, facts),
        tolerance=tolerance,
        settings=settings if model.reference is None else f"{reference_settings(model, session)};{settings}",
        check=lambda: _stages_error(model, session, stages, partitioned, ends),
    )
    if not found.is_within(tolerance):
        raise TunerError(
            f"the stages of {model.name} differ from {_whole(model)}: {found.tensor} "
            f"{found.describe(tolerance)}; {_advice(model)}"
        )
    return found.relative_error


def _whole(model: Model) -> str:
    return "the uncut model" if model.reference is None else "the model's own program"


def _advice(model: Model) -> str:
    if model.reference is None:
        return "cut elsewhere with --cut, or leave a backend out with --backends"
    return (
        "leave a backend out with --backends, or tune it with --infer if its code changes gradients (hooks, "
        "detach_ in place)"
    )


def _stages_error(
    model: Model,
    session: Session,
    stages: Sequence[Stage],
    partitioned: Mapping[str, PartitionedFunction],
    ends: _Divided | None,
) -> Deviation:
    partitioned_by_module = {
        id(function.module): partitioned[name].module
        for stage in stages
        for name, function in _functions_of(stage).items()
        if name in partitioned
    }
    sharded_by_module = {} if ends is None else _sharded_by_module(stages, ends)

    def run(module: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        # The uncut model runs without any partition: TVM's own fusion and kernels, and NumPy's products. What
        # is checked is the cutting; kernels are checked one by one, and in the whole model.
        if ends is not None and id(module) in sharded_by_module:
            return ends.measurer.run_as_whole(sharded_by_module[id(module)], inputs)
        partitioned_module = partitioned_by_module.get(id(module))
        if partitioned_module is None:
            return session.measurer.run(module, inputs, calls_blas=True)
        return session.measurer.run(partitioned_module, inputs)

    return check_gradients(model, stages, seed=session.seed, run=run)


def _sharded_by_module(stages: Sequence[Stage], ends: _Divided) -> dict[int, ShardedFunction]:
    """Return the sharded function of each whole function of a stage that is divided."""
    found = {}
    for stage in stages:
        for name, function in _functions_of(stage).items():
            if stage.name in ends.stages:
                sharded = getattr(ends.stages[stage.name].stage, name.removeprefix(f"{stage.name}."))
                found[id(function.module)] = sharded
    return found
