"""`tessel tune`: from a model and a target to a partition, stages, a schedule, a comparison and a picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import completion, search_options, tuning_options
from scripts.options.arguments import (
    check_choice,
    describe_shapes,
    parse_bandwidth,
    parse_bytes,
    parse_shape_choices,
)
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import (
    BatchOption,
    GraphLevelSearchOption,
    JsonOption,
    ModelArgument,
    RemoteTargetOption,
    TrialBudgetOption,
    TuningOptions,
)
from scripts.reports.comparison import build_comparison, print_comparison
from scripts.reports.pictures import write_picture
from scripts.reports.placements import placement_rows, print_placements, print_planned
from scripts.reports.tables import print_end_to_end, print_partition, print_stages
from scripts.searching import search_thread
from scripts.searching.planned_layout import (
    branched_placements,
    choose_layout_in_parts,
    choose_planned_layout,
    fastest_placement,
    placement_name,
    settings_of_layout,
    with_replicas,
)
from scripts.terminal import console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scripts.documents.tuning import Tuned
    from tessel.plan import Plan
    from tessel.search.budget import StoppedBy
    from tessel.tuned_model.layout_choice import ChosenLayout
    from tessel.tuned_model.model_placement import ModelPlacement
    from tuner.errors import TunerError
    from tuner.frontend import Model
    from tuner.plan import LayersPlan, ModelPlan
    from tuner.tuning.session import Session
    from tuner.tuning.tune import TuningSettings

_PIPELINE = "Pipeline options"
OPTIMIZERS = ("none", "sgd", "momentum", "adam")

PLANNED = "planned"
"""Names the layout that planning found, until its placement is known."""

_NO_BANDWIDTH = 1e15
"""Bytes a second that add nothing to the latency of a hop."""


def _check_placement(name: str) -> str:
    """Refuse a name that is no placement, before anything is loaded.

    Raises:
        typer.BadParameter: it is none.
    """
    from tessel.errors import ScheduleError
    from tessel.tuned_model.model_placement import check_placement_name

    try:
        check_placement_name(name)
    except ScheduleError as error:
        raise typer.BadParameter(str(error)) from error
    return name


@dataclass(frozen=True, kw_only=True)
class TuneOptions(TuningOptions):
    """How a model is priced, cut into stages and scheduled, and where the plan goes."""

    target: RemoteTargetOption = "cpu"
    devices: Annotated[int, typer.Option(help="Devices of the pipeline, one stage each.")] = 4
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of one step.")] = 16
    memory: Annotated[
        str | None, typer.Option(help="Memory of one device, such as 16GiB; unlimited if left out.")
    ] = None
    train: Annotated[
        bool, typer.Option("--train/--infer", help="Tune forward and backward, or forward alone.")
    ] = True
    out: Annotated[Path, typer.Option(help="Folder for the plan and the picture.")] = Path("out")
    batch: BatchOption = 1
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Shape of an input: input_ids=1,128; may be repeated. Several of one input are planned in "
            "the same stages, cut for the largest.",
        ),
    ] = None
    cut: Annotated[
        list[str] | None,
        typer.Option(
            help="Cut after this module; may be repeated. If left out: as the model marks them, else found.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    optimizer: Annotated[
        str,
        typer.Option(
            help=f"Optimizer, whose state each device keeps: {', '.join(OPTIMIZERS)}.",
            rich_help_panel=_PIPELINE,
            autocompletion=completion.one_of(*OPTIMIZERS),
        ),
    ] = "sgd"
    hop_us: Annotated[
        float | None,
        typer.Option(help="Latency of one hop in us; measured if left out.", rich_help_panel=_PIPELINE),
    ] = None
    placement: Annotated[
        str,
        typer.Option(
            help="Placement of stages: vshape, one per device; interleaved:2 or zbv, two; xshape, one and a "
            "copy in reverse; mshape, one, with vocabulary-parallel embedding and head over all devices; "
            "nnshape, the same for an encoder-decoder; kshape, two towers; a placement FILE; auto, as "
            "planned from measured layers.",
            rich_help_panel=_PIPELINE,
            autocompletion=completion.model_placements,
            callback=_check_placement,
        ),
    ] = "vshape"
    link: Annotated[
        str | None,
        typer.Option(
            help="Bandwidth between devices, in one direction, such as 10GB/s; hops and collectives are "
            "measured between processes of this machine if left out.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    no_recompute: Annotated[
        bool,
        typer.Option(
            "--no-recompute",
            help="Keep all activations; under --memory, stages may else run their forward again in their "
            "backward.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False
    work: Annotated[
        float | None,
        search_options.work_option("10, unless --time-limit is given", panel=_PIPELINE),
    ] = None
    time_limit: Annotated[
        str | None,
        typer.Option(
            help=f"For the schedule search. {search_options.TIME_HELP}",
            rich_help_panel=_PIPELINE,
            show_default=False,
        ),
    ] = None
    trial_budget: TrialBudgetOption = None
    graph_level_search: GraphLevelSearchOption = 0
    json: JsonOption = False


@takes_options
def tune(model: ModelArgument, options: TuneOptions) -> None:
    """Find a fast way to run a model on several devices, and compare it with hand-written schedules.

    Examples:

    `tessel tune gpt2 --target cpu --devices 4 --micro-batches 16 --out out/gpt2`

    `tessel tune gpt2 --devices 4 --micro-batches 16 --placement auto`

    `tessel tune net.onnx --infer --devices 2 --micro-batches 8 --memory 2GiB`
    """
    memory_bytes = None if options.memory is None else parse_bytes(options.memory)
    search_options.make_budget(options.work, options.time_limit)
    _check(options)
    tuning_options.check_writable_folder(options.out)

    import msgspec

    from tessel.plan import save_plan

    if options.threads is None and options.target == "cpu":
        # The pipeline's devices share this machine's cores, so each is measured with its share.
        options = replace(options, threads=tuning_options.threads_of_device(options.devices))
    placements = _settings_by_placement(options, memory_bytes)
    shapes, *others = parse_shape_choices(options.shape or [])
    _check_other_shapes(others, placements, options)
    loaded = tuning_options.load_model(model, shapes=shapes, batch=options.batch, training=options.train)
    options = tuning_options.spend_trials(options, loaded, options.trial_budget)
    tuned, choice = _tune(loaded, placements, shapes, options, memory_bytes)
    plan, stopped_by = _plan(tuned, choice, options, memory_bytes)
    if others:
        found = [_plan_for(each, plan, placements, options, memory_bytes) for each in others]
        plan = msgspec.structs.replace(plan, other_shapes=tuple(found))
    plan_path = options.out / "plan.json"
    save_plan(plan, plan_path)
    title = f"{plan.model} on {plan.device_model}"
    write_picture(plan.schedule, plan, options.out / "schedule.svg", title=title)
    if options.json:
        console.print_json(_document(plan, plan_path, stopped_by))
        return
    _print_plan(plan)
    if plan.other_shapes:
        _print_other_shapes(plan)
    console.print_line(
        f"\nwritten: {plan_path}, {options.out / 'schedule.svg'}; records in {options.records}"
    )


def _settings_by_placement(options: TuneOptions, memory_bytes: int | None) -> dict[str, TuningSettings]:
    """Return how the model is to be cut for each placement, the one to compare with included.

    Raises:
        ScheduleError: the placement needs more devices.
    """
    from tessel.tuned_model.model_placement import placements_to_tune

    return {
        placement.name: _settings_of(placement, options, memory_bytes)
        for placement in placements_to_tune(options.placement, options.devices)
    }


def _settings_of(placement: ModelPlacement, options: TuneOptions, memory_bytes: int | None) -> TuningSettings:
    """Return how the model is to be cut for one placement."""
    from tuner.stages.placed_stages import PlacedStages
    from tuner.tuning.stage_costs.measure_shards import Link
    from tuner.tuning.tune import TuningSettings

    link = None
    if options.link is not None:
        link = Link(bytes_per_us=parse_bandwidth(options.link) / 1e6, latency_us=options.hop_us or 0.0)
    return TuningSettings(
        num_stages=len(placement.chain),
        placed=PlacedStages(placement.stages, placement.before, placement.needs_words)
        if placement.stages
        else None,
        stage_devices=placement.chain,
        divides_ends=placement.divides_ends,
        cuts=tuple(options.cut) if options.cut else None,
        memory_limit_bytes=memory_bytes,
        hop_us=options.hop_us,
        link=link,
        graph_level_search=options.graph_level_search,
    )


def _plan_for(
    shapes: Mapping[str, tuple[int, ...]],
    plan: Plan,
    placements: dict[str, TuningSettings],
    options: TuneOptions,
    memory_bytes: int | None,
) -> Plan:
    """Tune a planned model for other shapes, in the same stages.

    Raises:
        TunerError: for these shapes the stages hold other weights.
    """
    from tuner.errors import TunerError

    cuts = tuple(stage.layers[-1] for stage in plan.stages[: plan.stages_of_copy - 1])
    placements = {options.placement: replace(placements[options.placement], cuts=cuts)}
    loaded = tuning_options.load_model(plan.model, shapes=shapes, batch=options.batch, training=options.train)
    tuned, _ = _tune(loaded, placements, shapes, options, memory_bytes)
    other, _ = _plan(tuned, None, options, memory_bytes)
    for one, same in zip(plan.stages, other.stages, strict=True):
        if one.parameters != same.parameters:
            raise TunerError(
                f"{one.name} of {plan.model} holds other weights for {describe_shapes(shapes)} than for "
                f"{describe_shapes(plan.shapes)}; cut the model elsewhere with --cut, or tune them apart"
            )
    return other


def _check_other_shapes(
    others: Sequence[object], placements: Mapping[str, TuningSettings], options: TuneOptions
) -> None:
    """Refuse several shapes where stages are no chain that can be cut alike again."""
    from tessel.tuned_model.model_placement import AUTO

    is_chain = all(each.placed is None and not each.divides_ends for each in placements.values())
    if others and not (is_chain and options.placement != AUTO):
        raise typer.BadParameter(
            f"--shape gives an input several shapes, and stages of --placement {options.placement} cannot "
            "be cut alike for each; give one shape, or vshape, interleaved:C, zbv or xshape"
        )


def _tune(
    model: Model,
    placements: dict[str, TuningSettings],
    shapes: Mapping[str, tuple[int, ...]],
    options: TuneOptions,
    memory_bytes: int | None,
) -> tuple[Mapping[str, ModelPlan | Exception], ChosenLayout | None]:
    """Measure the stages of each placement, with the copies that it has.

    With `auto`, of the layout that is planned, of branches where the model has them, and of the chain.
    """
    from tessel.errors import InfeasibleError
    from tessel.tuned_model.model_placement import AUTO, BASELINE
    from tuner.tuning.tune import tune_placements

    # Cuts that are given leave nothing to plan: every placement that can take them is tried.
    if options.placement != AUTO or options.devices == 1 or options.cut or model.cuts:
        with tuning_options.open_session(options) as session:
            tuned = tune_placements(model, session, placements, shapes=shapes, batch=options.batch)
        return {name: _with_copies(name, found, options) for name, found in tuned.items()}, None
    chain, choice = placements[BASELINE], None
    replicas, branched = branched_placements(
        model,
        lambda placement: _settings_of(placement, options, memory_bytes),
        devices=options.devices,
        # What an all-reduce of all gradients takes is known of a link alone.
        replicas_of=options.micro_batches if chain.link is not None else 1,
    )
    with tuning_options.open_session(options) as session:
        try:
            choice = _choose_layout(model, session, chain, options, memory_bytes)
        except InfeasibleError:
            # What follows the blocks of replicas is not known then, so they cannot be compared.
            branched = {name: each for name, each in branched.items() if replicas[name] == 1}
            if not branched:
                raise
        planned = (
            {}
            if choice is None
            else {PLANNED: settings_of_layout(choice.layout, chain, in_parts=choice.in_parts)}
        )
        placements = {**planned, **branched, BASELINE: chain}
        tuned = tune_placements(model, session, placements, shapes=shapes, batch=options.batch)
    return {name: _replicated(found, replicas.get(name, 1)) for name, found in tuned.items()}, choice


def _choose_layout(
    model: Model, session: Session, settings: TuningSettings, options: TuneOptions, memory_bytes: int | None
) -> ChosenLayout:
    """Measure layers and divided ends, and plan with them."""
    from tessel.planning.cluster import Link
    from tessel.tuned_model.layout_choice import LayoutRequest
    from tuner.tuning.stage_costs.layer_parts import guess_parts
    from tuner.tuning.stage_costs.measure_layers import measure_layers
    from tuner.tuning.stage_costs.measure_shards import MeasuredCollectives
    from tuner.tuning.tune import hop_latencies

    counts = [count for count in range(2, options.devices + 1) if options.devices % count == 0]

    def measured(*, in_parts: bool) -> LayersPlan:
        return measure_layers(
            model,
            session,
            # Copies of a divided model need collectives among some devices, which a link alone gives.
            shard_counts=counts if settings.link is not None else [options.devices],
            tensor_counts=counts if settings.link is not None else (),
            collectives=settings.link or MeasuredCollectives(session),
            batch=options.batch,
            in_parts=in_parts,
        )

    layers = measured(in_parts=False)
    if settings.link is not None:
        link = Link(bytes_per_s=settings.link.bytes_per_us * 1e6, latency_us=settings.link.latency_us)
    else:
        # Without a bandwidth a hop takes what the largest boundary takes.
        largest = max(1, *(layer.boundary_bytes for layer in layers.layers))
        hop_us = settings.hop_us
        if hop_us is None:
            hop_us = hop_latencies(session, [largest])[largest]
        link = Link(bytes_per_s=_NO_BANDWIDTH, latency_us=hop_us)
    request = LayoutRequest(
        devices=options.devices,
        micro_batches=options.micro_batches,
        link=link,
        memory_limit_bytes=memory_bytes,
        optimizer=options.optimizer,
        recompute=not options.no_recompute,
        # What an all-reduce of all gradients takes is known of a link alone.
        replicates=settings.link is not None,
    )
    choice = choose_planned_layout(layers, request, work=options.work, seed=options.seed)
    guessed = guess_parts(model, layers)
    if guessed is None:
        return choice
    return choose_layout_in_parts(
        choice, guessed, lambda: measured(in_parts=True), request, work=options.work, seed=options.seed
    )


def _plan(
    tuned: Mapping[str, ModelPlan | Exception],
    choice: ChosenLayout | None,
    options: TuneOptions,
    memory_bytes: int | None,
) -> tuple[Plan, StoppedBy]:
    """Search a schedule for each placement, and return the plan of the one asked for, or of the fastest.

    Raises:
        TunerError: the model cannot be cut so.
        InfeasibleError: it does not fit so.
    """
    import msgspec

    from tessel.errors import InfeasibleError
    from tessel.tuned_model.model_placement import AUTO

    if choice is not None:
        tuned = _with_planned_layout(tuned, choice)
    plans: dict[str, tuple[Plan, StoppedBy]] = {}
    failures: dict[str, Exception] = {}
    for name, result in tuned.items():
        if isinstance(result, Exception):
            failures[name] = result
            continue
        try:
            share = options.micro_batches // result.replicas
            plans[name] = _search(name, result, replace(options, micro_batches=share), memory_bytes)
        except InfeasibleError as error:
            failures[name] = error
    chosen = options.placement
    if chosen == AUTO:
        if not plans:
            raise next(iter(failures.values()))
        chosen = fastest_placement({name: each for name, (each, _) in plans.items()}, choice)
    elif chosen in failures:
        raise failures[chosen]
    plan, stopped_by = plans[chosen]
    if len(tuned) == 1:
        return plan, stopped_by
    rows = placement_rows({name: each for name, (each, _) in plans.items()}, failures, chosen)
    planned = () if choice is None else choice.rows
    return msgspec.structs.replace(plan, placements=rows, planned=planned), stopped_by


def _with_planned_layout(
    tuned: Mapping[str, ModelPlan | Exception], choice: ChosenLayout
) -> dict[str, ModelPlan | Exception]:
    """Name the planned layout as its placement is, and give it its replicas."""
    from tessel.tuned_model.replicas import replicated

    name = with_replicas(placement_name(choice.layout), choice.layout.data_parallel)
    if name in tuned:
        name = f"{name}, planned"
    planned = tuned[PLANNED]
    if not isinstance(planned, Exception):
        planned = replicated(planned, choice.copies, is_mirrored=choice.is_mirrored)
    return {name: planned} | {each: found for each, found in tuned.items() if each != PLANNED}


def _replicated(found: ModelPlan | TunerError, replicas: int) -> ModelPlan | TunerError:
    """Give a tuned pipeline replicas, each on devices of its own."""
    from tessel.tuned_model.replicas import replicated

    return found if isinstance(found, Exception) else replicated(found, replicas)


def _with_copies(name: str, found: ModelPlan | TunerError, options: TuneOptions) -> ModelPlan | Exception:
    """Give a tuned chain the copies that its placement has."""
    from tessel.errors import ScheduleError
    from tessel.tuned_model.model_placement import model_placement
    from tessel.tuned_model.replicas import replicated

    copies = model_placement(name, options.devices).copies
    if isinstance(found, Exception) or copies == 1:
        return found
    if options.micro_batches % copies:
        return ScheduleError(
            f"{name} sends half of the micro-batches each way, and there are {options.micro_batches}; give "
            "an even number with --micro-batches"
        )
    return replicated(found, copies, is_mirrored=True)


def _search(
    name: str, tuned: ModelPlan, options: TuneOptions, memory_bytes: int | None
) -> tuple[Plan, StoppedBy]:
    """Search the schedule of one placement, with a budget of its own."""
    from tessel.pipeline import build_plan

    budget = search_options.make_budget(options.work, options.time_limit)
    with (
        console.progress_bar(f"searching schedules, {name}") as update,
        search_thread.ended_by_interrupt(budget),
    ):
        budget.on_progress = lambda progress: update(f"best makespan {progress.makespan} steps")
        plan = build_plan(
            tuned,
            micro_batches=options.micro_batches,
            memory_limit_bytes=memory_bytes,
            optimizer=options.optimizer,
            recompute=not options.no_recompute,
            budget=budget,
            seed=options.seed,
        )
    return plan, budget.stopped_by


def _check(options: TuneOptions) -> None:
    if options.devices < 1:
        raise typer.BadParameter(f"--devices is {options.devices}; a pipeline has at least one device")
    if options.micro_batches < 1:
        raise typer.BadParameter(
            f"--micro-batches is {options.micro_batches}; a step has at least one micro-batch"
        )
    check_choice("--optimizer", options.optimizer, OPTIMIZERS)
    if options.hop_us is not None and not 0 <= options.hop_us < 1e9:
        raise typer.BadParameter(f"--hop-us is {options.hop_us}; a latency is a number of microseconds >= 0")
    if options.devices > 1 and options.hop_us is None and options.target.startswith("rpc://"):
        raise typer.BadParameter(
            f"--target {options.target} is behind an RPC tracker, and what a tensor takes from one of its "
            "devices to another is not measured from here; give --hop-us, and --link where stages are divided"
        )


def _document(plan: Plan, path: Path, stopped_by: StoppedBy) -> Tuned:
    from msgspec import UNSET

    from scripts.documents.tuning import OtherShapes, Tuned

    return Tuned(
        plan=str(path),
        new_measurements=plan.new_measurements,
        reused_measurements=plan.reused_measurements,
        comparison=plan.comparison,
        max_relative_error=plan.max_relative_error,
        max_gradient_error=plan.max_gradient_error,
        import_error=UNSET if plan.import_error is None else plan.import_error,
        notes=plan.notes,
        lower_bound_ms=plan.schedule.lower_bound * plan.step_us / 1000,
        optimal=plan.schedule.optimal,
        gap=plan.schedule.gap if plan.schedule.lower_bound else None,
        stopped_by=stopped_by,
        recompute=tuple(stage.recomputes for stage in plan.stages),
        placements=plan.placements,
        planned=plan.planned,
        other_shapes=tuple(
            OtherShapes(
                shapes=each.shapes,
                makespan_ms=each.schedule.makespan * each.step_us / 1000,
                optimal=each.schedule.optimal,
                max_gradient_error=each.max_gradient_error,
            )
            for each in plan.other_shapes
        ),
    )


def _print_plan(plan: Plan) -> None:
    kind = "training" if plan.training else "inference"
    console.print_line(
        f"{plan.model} ({kind}) on {plan.device_model}, {plan.num_threads} threads: "
        f"{len(plan.stages)} stages, {plan.schedule.micro_batches} micro-batches"
    )
    console.print_line(
        f"{plan.new_measurements} new measurements, {plan.reused_measurements} found in the records\n"
    )
    print_partition(plan)
    print_end_to_end("Forward function, end to end", plan)
    if plan.max_gradient_error is not None:
        console.print_line(
            f"largest error of the stages' gradients against {_whole(plan)} {plan.max_gradient_error:.1e}"
        )
    console.print_line()
    print_stages(plan.stages)
    print_schedule(plan)


def _print_other_shapes(plan: Plan) -> None:
    """Print what the same stages take for each further shape."""
    from tessel.comparison import format_ms

    rows = [
        [
            describe_shapes(each.shapes),
            format_ms(each.schedule.makespan * each.step_us / 1000),
            "yes" if each.schedule.optimal else f"within {each.schedule.gap:.1%}",
            "-" if each.max_gradient_error is None else f"{each.max_gradient_error:.1e}",
        ]
        for each in (plan, *plan.other_shapes)
    ]
    console.print_line()
    title = "Shapes, in the same stages, each with its own kernels and order"
    console.print_table(title, ["shapes", "step (ms)", "proven optimal", "largest gradient error"], rows)


def _whole(plan: Plan) -> str:
    """Name the reference that the stages' gradients were compared with."""
    whose = {"train": "the model's own, in train mode", "eval": "the model's own, in eval mode"}
    return (
        "the uncut model's" if not plan.reference else whose.get(plan.reference, "the exported program's own")
    )


def print_schedule(plan: Plan) -> None:
    """Print what the schedule search found beside every hand-written schedule."""
    from tessel.comparison import format_ms

    schedule = plan.schedule
    proof = "proven optimal" if schedule.optimal else f"within {schedule.gap:.1%} of optimal"
    comparison = build_comparison(schedule, plan, None)
    console.print_line(
        f"\nSchedule: {format_ms(schedule.makespan * plan.step_us / 1000)} ms per step, {proof};"
    )
    console.print_line(f"simulated from the stages' figures above, hop latency {plan.hop_source}")
    print_comparison(comparison, in_bytes=True)
    if plan.placements:
        console.print_line()
        print_placements(plan.placements)
    if plan.planned:
        console.print_line()
        print_planned(plan.planned)
