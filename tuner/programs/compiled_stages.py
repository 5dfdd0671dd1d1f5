"""A plan's stages as programs for the pipeline engine: compiled by TVM, with torch tensors at the interface.

Each function of a stage is partitioned exactly as the plan says (its sub-graphs and their backends, by
fingerprint), lowered and built; nothing is searched or measured again. Weights are the model's, or drawn from
a seed, alike in every process. Stages of a plan for a GPU run on torch's current one, in the stream that TVM
and torch share by default. Checked in tests/tuner/programs/test_compiled_stages.py; on a GPU it was not run
yet.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed

from tuner.backends.protocol import Backend
from tuner.backends.registry import available_backends
from tuner.errors import TunerError
from tuner.frontend import load_model, names_file, require_trust
from tuner.frontend.loading import with_torch_calls
from tuner.frontend.model import Model, Reference
from tuner.frontend.torch.arrays import as_array
from tuner.graph import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.batch_norm_folding import fold_batch_norms
from tuner.lowering.lower import build_module, build_with_storages, lower_module
from tuner.lowering.outline import extract_function, outline_partitions
from tuner.lowering.weight_binding import bound_bytes
from tuner.lowering.workload_of import workload_of
from tuner.partition.candidate import FREE
from tuner.partition.find_partition import find_candidates, find_partition
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure, ModelPlan, Routes
from tuner.programs.compiled_stage import CompiledStage, Machine, StageMachine, with_release
from tuner.programs.inputs import aligned, draws_of
from tuner.programs.shard_groups import ShardGroups
from tuner.programs.sharded_program import OwnShard, ShardedProgram
from tuner.programs.step_results import PipelineCopy, Tensors
from tuner.programs.torch_machine import TorchMachine
from tuner.shards.interface import ShardedStage
from tuner.shards.layouts import Split
from tuner.shards.stage import shard_stages
from tuner.stages import Stage, StageFunction, build_stages, cut_after, draw_tensors
from tuner.stages.build import returned_gradients
from tuner.stages.interface import gradient_name
from tuner.stages.program import output_names
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

logger = logging.getLogger(__name__)


class ProgramSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every process needs to build the same programs.

    Attributes:
        plan: the plan's part that the tuner made.
        seed: draws weights and inputs.
        trust_model: whether the user wants the code run that the plan names as its model, where it names any.
    """

    plan: ModelPlan
    seed: int = 0
    trust_model: bool = False


def load_programs(
    spec: ProgramSpec,
    stage_numbers: Sequence[int],
    *,
    inputs: Callable[[int], Tensors] | None = None,
    shared: Mapping[int, CompiledStage] | None = None,
    on_torch: str | None = None,
) -> dict[int, CompiledStage]:
    """Build the stages with the given numbers.

    Args:
        spec: the plan, and what draws weights and inputs.
        stage_numbers: of the plan's stages.
        inputs: gives the model's inputs of a micro-batch by name, on the device; drawn if None. It is asked
            by each stage that reads an input, also twice for one micro-batch, and answers alike in a step.
        shared: the same stages for other shapes, whose weights these train too, by number.
        on_torch: where torch runs the functions operator by operator; None to compile them for the
            plan's device.

    Raises:
        TunerError: the model is not the one that the plan was made for, or a device or a backend of the plan
            is missing.
    """
    model = load_planned_model(spec, guarded=False)  # `check_spec` has tried the file
    one_copy = build_stages(
        model, _cuts(model, spec.plan), spec.plan.branches, constant_weights=spec.plan.binds_weights
    )
    stages = one_copy * spec.plan.replicas
    device, compiled = _who_runs(spec.plan, on_torch)
    weights = draw_weights(model, spec.seed)
    routes = _routes(one_copy)
    divided = _divided(one_copy, spec.plan)
    groups = ShardGroups(spec.plan)
    inputs = inputs or _inputs_on_device(model, spec, device, read_by=[stages[n] for n in stage_numbers])
    programs: dict[int, CompiledStage] = {}
    # A tied table is one tensor on a rank, whichever of its stages reads it.
    parts: dict[tuple[str, int], torch.Tensor] = {}

    for number in stage_numbers:
        stage = stages[number]
        recomputes = spec.plan.stages[number].recomputes
        copy, place = divmod(number, len(one_copy))
        own_routes = _of_copy(routes[place], copy * len(one_copy))
        if stage.name in divided:
            shard = _own_shard(divided[stage.name], groups.of_stage(number))
            own = {
                name: parts.setdefault((name, shard.num_shards), shard.part_of(name, weights[name]))
                for name in stage.parameters
            }
            programs[number] = ShardedProgram(
                stage,
                shard=shard,
                machines=shard.machines(compiled, device),
                weights=_on_device(own, device),
                inputs=inputs,
                routes=own_routes,
                recomputes=recomputes,
                copy=PipelineCopy(copy, spec.plan.replicas),
            )
            continue
        programs[number] = CompiledStage(
            stage,
            machines={name: compiled(function) for name, function in _functions_of(stage).items()},
            weights=_on_device({name: weights[name] for name in stage.parameters}, device)
            if shared is None
            else shared[number].weights,
            inputs=inputs,
            routes=own_routes,
            recomputes=recomputes,
            copy=PipelineCopy(copy, spec.plan.replicas),
        )
    return programs


def _who_runs(plan: ModelPlan, on_torch: str | None) -> tuple[str, Callable[[StageFunction], StageMachine]]:
    """Return where a stage's functions run, and what makes them ready."""
    if on_torch is not None:
        return on_torch, lambda function: TorchMachine(function, on_torch)
    target = _target_of(plan)
    if plan.tiles:
        logger.warning(
            "an earlier version tuned kernels of this plan; they are built by rule now: figures differ"
        )
    backends = available_backends(target)
    return target.kind, lambda function: _compile(function, plan, backends, target)


def _divided(stages: Sequence[Stage], plan: ModelPlan) -> Mapping[str, ShardedStage]:
    """Divide the stages again that the plan has over all devices, by name.

    Raises:
        TunerError: they would be divided otherwise than planned.
    """
    planned = {
        stage.name: stage.shards for stage in plan.stages[: plan.stages_of_copy] if stage.shards is not None
    }
    if not planned:
        return {}
    found = shard_stages(stages, {_number(name): shards.num_shards for name, shards in planned.items()})
    for name, shards in planned.items():
        again = found[name]
        axes = {
            weight: layout.axis
            for weight, layout in again.layouts.items()
            if weight in stages[_number(name)].parameters and isinstance(layout, Split)
        }
        if axes != shards.axes:
            raise TunerError(
                f"the plan has {name} over {shards.num_shards} devices, and the model cannot be divided so "
                "again; tune it again"
            )
    return {name: found[name] for name in planned}


def _number(name: str) -> int:
    return int(name.removeprefix("stage"))


def _own_shard(sharded: ShardedStage, group: torch.distributed.ProcessGroup | None) -> OwnShard:
    """Return this process's shard, one of the ranks that hold the stage."""
    return OwnShard(sharded, torch.distributed.get_rank(group), group)


def check_spec(spec: ProgramSpec) -> None:
    """Refuse, before any process starts, a plan whose device or model is not on this machine.

    Raises:
        TunerError: there is no such GPU, or a model's file is not the one that was tuned, or the model is
            code that the user did not name.
    """
    _target_of(spec.plan)
    require_trust(spec.plan.model, trusted=spec.trust_model)
    if names_file(spec.plan.model):
        load_planned_model(spec)


def provide_programs(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, CompiledStage]:
    """Build stages as an engine's ranks ask for them: the specification comes as JSON text.

    Raises:
        ValueError: the text is not a `ProgramSpec`.
        TunerError: see `load_programs`.
    """
    return load_programs(msgspec.json.decode(spec_json, type=ProgramSpec), stage_numbers)


def load_planned_model(spec: ProgramSpec, *, guarded: bool = True) -> Model:
    """Load the plan's model, and make sure that it still is the one that was tuned.

    Args:
        spec: the plan, and whether the user trusts the code that it names.
        guarded: see `load_model`.

    Raises:
        TunerError: its structure or shapes differ, its file is not there, or it is code that the user did
            not name.
    """
    plan = spec.plan
    require_trust(plan.model, trusted=spec.trust_model)
    if names_file(plan.model) and not Path(plan.model).is_file():
        raise TunerError(
            f"the plan's model is the file {plan.model!r}, which is not here; say where it is "
            "(`tessel run --model FILE`)"
        )
    loaded = load_model(
        plan.model,
        shapes=plan.shapes,
        values=plan.values,
        batch=plan.batch,
        training=plan.training,
        guarded=guarded,
    )
    model = with_torch_calls(loaded, plan.torch_calls)
    found = workload_of(model.module["main"], "model", module=model.module).fingerprint
    if found != plan.model_fingerprint:
        raise TunerError(
            f"model {plan.model} has fingerprint {found}, the plan was made for {plan.model_fingerprint}; "
            "tune it again"
        )
    return model


def draw_weights(model: Model, seed: int) -> Tensors:
    """Return the model's weights, random where it holds none; the same in every process."""
    drawn = draw_tensors(model, rng=np.random.default_rng([seed, 0]))
    return {name: aligned(drawn[name]) for name in model.parameter_names}


def reference_step(
    spec: ProgramSpec, num_micro_batches: int
) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses by micro-batch and mean gradients of the model's own program, or else of the uncut model.

    Raises:
        TunerError: the model is not the one that the plan was made for, or its program takes no such inputs.
    """
    model = load_planned_model(spec)
    if model.reference is not None:
        return _steps_of_reference(model, model.reference, spec.seed, num_micro_batches)
    whole = _whole_model(model, spec)
    whole.start_step(num_micro_batches)
    for micro_batch in range(num_micro_batches):
        whole.run(_Step("F", micro_batch), {})
        if model.training:
            whole.run(_Step("B", micro_batch), {})
    return whole.losses(), {name: as_array(gradient) for name, gradient in whole.gradients().items()}


def reference_outputs(spec: ProgramSpec, num_micro_batches: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield what the model's own program, or else the uncut model, returns for each micro-batch, by name.

    Raises:
        TunerError: the model is not the one that the plan was made for.
    """
    model = load_planned_model(spec)
    if model.reference is not None:
        draws, names = draws_of(model, spec.seed), output_names(model)
        given = {*(each.name for each in model.inputs), *model.parameter_names}  # what no stage makes
        for micro_batch in range(num_micro_batches):
            found = zip(names, model.reference.outputs(draws.arrays(micro_batch)), strict=True)
            yield {name: array for name, array in found if name not in given}
        return
    whole = _whole_model(model, spec)
    whole.keep_outputs()
    for micro_batch in range(num_micro_batches):
        whole.start_step(1)
        whole.run(_Step("F", micro_batch), {})
        yield {name: as_array(tensor) for name, tensor in whole.outputs()[micro_batch].items()}


def _whole_model(model: Model, spec: ProgramSpec) -> CompiledStage:
    """Compile the uncut model without a partition."""
    target = _target_of(spec.plan)
    (stage,) = build_stages(model, ())
    machines = {
        name: Machine(build_module(function.module, target), function, target)
        for name, function in _functions_of(stage).items()
        if name in ("forward", "backward")
    }
    return CompiledStage(
        stage,
        machines=machines,
        weights=_on_device(draw_weights(model, spec.seed), target.kind),
        inputs=_inputs_on_device(model, spec, target.kind, read_by=[stage]),
        routes=Routes(received={}, sent={}, received_gradients={}, sent_gradients={}),
    )


def _steps_of_reference(
    model: Model, reference: Reference, seed: int, num_micro_batches: int
) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Run the program that the model was imported from; only gradients that a stage makes are returned."""
    if not model.training:
        return {}, {}
    draws = draws_of(model, seed)
    losses: dict[int, float] = {}
    total: dict[str, np.ndarray] = {}
    for micro_batch in range(num_micro_batches):
        try:
            loss, found = reference.gradients(model, draws.arrays(micro_batch))
        except Exception as error:  # foreign code: the user's own module
            reason = str(error).strip().partition("\n")[0]
            raise TunerError(
                f"{model.name} cannot run on inputs that were drawn for it ({reason}); let its function "
                "return example inputs that show what whole numbers it takes"
            ) from error
        losses[micro_batch] = float(loss)
        _add_shares(total, found, num_micro_batches)
    (stage,) = build_stages(model, ())
    made = {info.name for info in stage.backward.outputs} if stage.backward is not None else set()
    return losses, {
        name: gradient for name, gradient in total.items() if gradient_name(name) in made or gradient.any()
    }


def computed_types(spec: ProgramSpec) -> frozenset[str]:
    """Return the data types of all that the model's program takes and makes, on its way as well."""
    module = load_planned_model(spec).module
    return frozenset(tensor.dtype for tensor in workload_of(module["main"], "model", module=module).values)


def exact_gradients(spec: ProgramSpec, num_micro_batches: int) -> dict[str, np.ndarray] | None:
    """Return mean gradients of the model's own program in double precision; None where it has none.

    Raises:
        TunerError: the model is not the one that the plan was made for.
    """
    model = load_planned_model(spec)
    if model.reference is None or not model.training:
        return None
    draws = draws_of(model, spec.seed)
    total: dict[str, np.ndarray] = {}
    for micro_batch in range(num_micro_batches):
        found = model.reference.exact_gradients(model, draws.arrays(micro_batch))
        if found is None:
            return None
        _add_shares(total, found, num_micro_batches)
    return total


def _add_shares(total: dict[str, np.ndarray], found: Mapping[str, np.ndarray], count: int) -> None:
    """Add one of so many micro-batches' gradients to their means, in float32 or wider."""
    for name, gradient in found.items():
        share = gradient.astype(np.promote_types(gradient.dtype, np.float32)) / count
        total[name] = total[name] + share if name in total else share


def _target_of(plan: ModelPlan) -> Target:
    """Return the plan's target as this machine has it; a GPU's code is for the plan's own architecture."""
    if plan.device_kind == "cpu":
        return resolve_target("cpu", num_threads=plan.num_threads)
    here = resolve_target("cuda")
    planned, found = (_architecture(text) for text in (plan.target, here.tvm_json))
    if planned != found:
        raise TunerError(
            f"the plan was tuned for {plan.device_model} ({planned}), but this machine's GPU is {found}; "
            "tune on this machine"
        )
    return Target(name="cuda", kind="cuda", tvm_json=plan.target, num_threads=1)


def _architecture(target_json: str) -> str:
    """Return such as `sm_90`; features of one architecture alone (`sm_90a`) are not told apart."""
    return str(json.loads(target_json).get("arch", "unknown")).rstrip("a")


def _on_device(tensors: Tensors, device: str) -> Tensors:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _inputs_on_device(
    model: Model, spec: ProgramSpec, device: str, *, read_by: Sequence[Stage]
) -> Callable[[int], Tensors]:
    """Return what gives the inputs of a micro-batch that some stages read.

    They are kept, so that a timed forward draws and copies nothing; others would take a rank's memory for
    nothing.
    """
    # Not the model: it may hold weights, of which a stage has its own.
    draws = draws_of(model, spec.seed)
    read = {info.name for stage in read_by for info in stage.inputs}

    @functools.cache
    def inputs(micro_batch: int) -> Tensors:
        drawn = draws.tensors(micro_batch)
        return {name: tensor.to(device) for name, tensor in drawn.items() if name in read}

    return inputs


class _Step(msgspec.Struct, frozen=True):
    kind: str
    micro_batch: int


def _functions_of(stage: Stage) -> dict[str, StageFunction]:
    functions = {
        "forward": stage.forward,
        "backward": stage.backward,
        "backward_input": stage.backward_input,
        "backward_weight": stage.backward_weight if stage.backward_input is not None else None,
    }
    return {name: function for name, function in functions.items() if function is not None}


def _cuts(model: Model, plan: ModelPlan) -> tuple[int, ...]:
    """Find the plan's cuts again: each stage but the last ends after its last layer."""
    if plan.cut_positions:
        return plan.cut_positions
    return cut_after(model, [stage.layers[-1] for stage in plan.stages[: plan.stages_of_copy - 1]])


def _routes(stages: Sequence[Stage]) -> list[Routes]:
    """Return, for each stage, what it sends to which other, forward and back."""
    routes = [Routes(received={}, sent={}, received_gradients={}, sent_gradients={}) for _ in stages]
    came_back: dict[int, set[str]] = {}
    for number in reversed(range(len(stages))):
        stage = stages[number]
        returned = returned_gradients(stage, came_back.get(number, set()))
        for source in sorted(set(stage.sources)):
            tensors = stage.receives_from(source)
            gradients = tuple(info for info in tensors if info.name in returned)
            came_back.setdefault(source, set()).update(info.name for info in gradients)
            routes[number].received[source] = routes[source].sent[number] = tensors
            if gradients:
                routes[number].sent_gradients[source] = gradients
                routes[source].received_gradients[number] = gradients
    return routes


def _of_copy(routes: Routes, first: int) -> Routes:
    """Return the routes of a copy of the pipeline whose stages are numbered from `first`."""
    return Routes(
        **{
            name: {stage + first: tensors for stage, tensors in getattr(routes, name).items()}
            for name in Routes.__struct_fields__
        }
    )


def _compile(
    function: StageFunction, plan: ModelPlan, backends: Sequence[Backend], target: Target
) -> Machine:
    partitioned = _partition_as_planned(function.module, plan, backends, target)
    lowered = lower_module(partitioned, backends, target)
    executable, storages = build_with_storages(with_release(lowered), target)
    return Machine(executable, function, target, storages=storages, bound_bytes=bound_bytes(lowered))


def _partition_as_planned(
    module: IRModule, plan: ModelPlan, backends: Sequence[Backend], target: Target
) -> IRModule:
    """Partition a function into the plan's sub-graphs, found again by their fingerprints."""
    graph = DataflowGraph.from_function(fold_batch_norms(module))
    planned = {(part.workload_fingerprint, part.backend): part.figure for part in plan.partition}
    missing = sorted({part.backend for part in plan.partition} - {backend.name for backend in backends})
    if missing:
        raise TunerError(
            f"the plan runs sub-graphs on the backend {missing[0]}, which is not available here; "
            "see `tessel backends`, or tune on this machine"
        )
    candidates = find_candidates(graph, gather_specs(backends, target)).candidates
    prices: list[Price] = []
    for candidate in candidates:
        if candidate.backend == FREE:
            prices.append(Figure(latency_us=0.0, source="derived"))
            continue
        workload = workload_of(extract_function(graph, candidate.sub_graph, candidate.backend))
        prices.append(
            planned.get((workload.fingerprint, candidate.backend), Invalid("the plan does not use it"))
        )
    partition = find_partition(graph, candidates, prices, launch_penalty_us=plan.launch_penalty_us)
    return outline_partitions(graph, partition.chosen)
