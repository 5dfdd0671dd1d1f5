"""Cut a model into stages and measure each function of each stage.

Cuts are given, or found from measured costs of single layers (`tuner.tuning.cut_model`). Every function of
a stage is partitioned over the backends and measured as a whole. Gradients of the chained stages are checked
against those of the program that the model was imported from, or else of the uncut model. Checked in
tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from records.workload import describe
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.lowering.batch_norm_folding import fold_batch_norms
from tuner.lowering.workload_of import workload_of
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.numerical_error import COMPARISON, NEGLIGIBLE, Deviation, tolerance_of
from tuner.plan import Figure, StagePlan, TiedParameter
from tuner.shards.interface import ShardedFunction, ShardedStage
from tuner.shards.stage import shard_ends, shard_stages
from tuner.shards.vocabulary import has_words
from tuner.stages import (
    Stage,
    StageFunction,
    build_stages,
    check_gradients,
    tied_groups,
    with_all_gradients,
)
from tuner.stages.placed_stages import PlacedStages
from tuner.tuning.cut_model import cut_chain, cut_m_shape, cut_placed
from tuner.tuning.import_check import reference_settings, verify_import
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, price_function
from tuner.tuning.session import Session, TuningProgress, checked_error
from tuner.tuning.stage_costs.measure_shards import Collectives, MeasuredShards, ShardMeasurer
from tuner.tuning.stage_costs.stage_pricing import count_bound_bytes, price_stages


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
    positions: Sequence[int] | None = None,
    memory_limit_bytes: int | None = None,
    collectives: Collectives | None = None,
    placed: PlacedStages | None = None,
) -> MeasuredStages:
    """Cut the model, and measure each stage's forward, joint backward and split backward.

    With collectives alone, the first and the last layer are stages of their own, vocabulary-parallel over
    `num_stages` devices, and the layers between are cut into `num_stages` stages, one per device (m shape).

    Args:
        num_stages: how many stages, where cuts are to be found.
        cuts: names of modules after which a stage ends, else those that the model marks; where there are
            any they decide alone.
        positions: in place of all that: where each stage but the first begins, as `cut_between` returns them.
        memory_limit_bytes: what weights and one micro-batch's activations of a stage may need.
        collectives: says how long all-reduces of shards take; None where no stage is divided.
        placed: in place of a number of stages: where each runs, which receives from which, and which are
            divided; with collectives where there are any of these.

    Raises:
        TunerError: the model was imported wrongly or cannot be cut or divided so, a function cannot be
            measured, or gradients are wrong.
        UnknownNameError: a cut names no module.
    """
    model, import_error = verify_import(with_all_gradients(model), session)
    penalty_us = measure_launch_penalty(session.measurer).latency_us
    if positions is not None:
        positions = tuple(positions)
    elif placed is not None:
        positions = cut_placed(model, session, placed, cuts, memory_limit_bytes, penalty_us)
    elif collectives is not None:
        positions = cut_m_shape(model, session, num_stages or 1, cuts, memory_limit_bytes, penalty_us)
    else:
        positions = cut_chain(model, session, num_stages, cuts, memory_limit_bytes, penalty_us)
    branches = None if placed is None else placed.branches
    stages = build_stages(model, positions, branches, constant_weights=not model.training)
    ends = None
    if collectives is not None and placed is not None:
        counts = {number: len(placed.devices[number]) for number in placed.divided}
        ends = _measure_divided(session, shard_stages(stages, counts), collectives, penalty_us)
    elif collectives is not None:
        ends = _measure_divided(session, _divided_ends(stages, model.name), collectives, penalty_us)
    divided = {} if ends is None else ends.stages
    whole = [each for each in stages if each.name not in divided]
    partitioned = partition_stages(session, whole, penalty_us, model.layers_by_variable())
    figures = dict(zip(partitioned, price_stages(session, tuple(partitioned.values())), strict=True))
    for name, shards in divided.items():
        figures |= {f"{name}.{kind}": found.total for kind, found in shards.figures.items()}
    plans = [stage_plan(session, stage, figures, partitioned) for stage in stages]
    tied = tied_groups(model, stages)
    return MeasuredStages(
        stages=tuple(divided[plan.name].plan(plan) if plan.name in divided else plan for plan in plans),
        cut_positions=positions,
        tied=tied,
        tied_bytes=tuple(_tied_bytes(group, stages, divided) for group in tied),
        functions=(*partitioned.values(), *(ends.measurer.partitioned if ends is not None else ())),
        max_error=_check(model, session, stages, partitioned, ends, branches),
        import_error=import_error,
    )


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


def _functions_of(stage: Stage) -> dict[str, StageFunction]:
    return {f"{stage.name}.{name}": function for name, function in stage.functions().items()}


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
            own = DataflowGraph.from_function(fold_batch_norms(function.module), layers=layers)
            graph = found.priced.graph.with_layers([node.layer for node in own.nodes])
            partitioned[name] = replace(found, priced=replace(found.priced, name=name, graph=graph))
    return partitioned


def _partition(
    session: Session, function: StageFunction, name: str, penalty_us: float
) -> PartitionedFunction:
    priced = price_function(session, function.module, name=name, launch_penalty_us=penalty_us)
    return choose_partition(priced)


def stage_plan(
    session: Session,
    stage: Stage,
    figures: Mapping[str, Figure],
    partitioned: Mapping[str, PartitionedFunction],
) -> StagePlan:
    """Return a stage as plain data, given figures and partitions of all functions, its own by its name."""
    prefix = f"{stage.name}."
    plan = stage.plan(
        {name.removeprefix(prefix): each for name, each in figures.items() if name.startswith(prefix)}
    )
    forward = partitioned.get(f"{prefix}forward")  # none where it is divided over devices
    if forward is None:
        return plan
    return msgspec.structs.replace(plan, bound_bytes=count_bound_bytes(session, forward))


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

    return check_gradients(
        model,
        stages,
        seed=session.seed,
        run=run,
        jobs=session.measurer.num_runs,
        interrupt=session.measurer.interrupt,
        known=session.whole_results,
    )


def _sharded_by_module(stages: Sequence[Stage], ends: _Divided) -> dict[int, ShardedFunction]:
    """Return the sharded function of each whole function of a stage that is divided."""
    found = {}
    for stage in stages:
        for name, function in _functions_of(stage).items():
            if stage.name in ends.stages:
                sharded = getattr(ends.stages[stage.name].stage, name.removeprefix(f"{stage.name}."))
                found[id(function.module)] = sharded
    return found
