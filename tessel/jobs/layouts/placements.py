"""Cut a model for each placement that is tried, and say what its stages then cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessel.jobs.inputs.arguments import parse_bandwidth
from tessel.jobs.layouts.planned_layout import (
    branched_placements,
    choose_layout_in_parts,
    choose_planned_layout,
    settings_of_layout,
)
from tessel.jobs.sessions import open_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tessel.jobs.inputs.tune_options import TuneOptions
    from tessel.tuned_model.layout_choice import ChosenLayout
    from tessel.tuned_model.model_placement import ModelPlacement
    from tuner.errors import TunerError
    from tuner.frontend import Model
    from tuner.plan import LayersPlan, ModelPlan
    from tuner.tuning.session import Session
    from tuner.tuning.tune import TuningSettings

PLANNED = "planned"
"""Names the layout that planning found, until its placement is known."""

_NO_BANDWIDTH = 1e15
"""Bytes a second that add nothing to the latency of a hop."""


def settings_by_placement(options: TuneOptions) -> dict[str, TuningSettings]:
    """Return how the model is to be cut for each placement, the one to compare with included.

    Raises:
        ScheduleError: the placement needs more devices.
    """
    from tessel.tuned_model.model_placement import placements_to_tune

    return {
        placement.name: _settings_of(placement, options)
        for placement in placements_to_tune(options.placement_name, options.devices)
    }


def measure_placements(
    model: Model,
    placements: dict[str, TuningSettings],
    shapes: Mapping[str, tuple[int, ...]],
    options: TuneOptions,
) -> tuple[Mapping[str, ModelPlan | Exception], ChosenLayout | None]:
    """Measure the stages of each placement, with the copies that it has.

    With `auto`, of the layout that is planned, of branches where the model has them, and of the chain.
    """
    from tessel.errors import InfeasibleError
    from tessel.tuned_model.model_placement import AUTO, BASELINE
    from tuner.tuning.tune import tune_placements

    values = dict(options.value or {})
    # Cuts that are given leave nothing to plan: every placement that can take them is tried.
    if options.placement_name != AUTO or options.devices == 1 or options.cut or model.cuts:
        with open_session(options) as session:
            tuned = tune_placements(
                model, session, placements, shapes=shapes, values=values, batch=options.batch
            )
        return {name: _with_copies(name, found, options) for name, found in tuned.items()}, None
    chain, choice = placements[BASELINE], None
    replicas, branched = branched_placements(
        model,
        lambda placement: _settings_of(placement, options),
        devices=options.devices,
        # What an all-reduce of all gradients takes is known of a link alone.
        replicas_of=options.micro_batches if chain.link is not None else 1,
    )
    with open_session(options) as session:
        try:
            choice = _choose_layout(model, session, chain, options)
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
        tuned = tune_placements(model, session, placements, shapes=shapes, values=values, batch=options.batch)
    return {name: _replicated(found, replicas.get(name, 1)) for name, found in tuned.items()}, choice


def _settings_of(placement: ModelPlacement, options: TuneOptions) -> TuningSettings:
    """Return how the model is to be cut for one placement."""
    from tuner.plan import Link
    from tuner.stages.placed_stages import PlacedStages
    from tuner.tuning.tune import TuningSettings

    link = None
    if options.link is not None:
        link = Link(bytes_per_s=parse_bandwidth(options.link), latency_us=options.hop_us or 0.0)
    return TuningSettings(
        num_stages=len(placement.chain),
        placed=PlacedStages(placement.stages, placement.before, placement.needs_words)
        if placement.stages
        else None,
        stage_devices=placement.chain,
        divides_ends=placement.divides_ends,
        cuts=tuple(options.cut) if options.cut else None,
        memory_limit_bytes=options.memory_limit_bytes,
        hop_us=options.hop_us,
        link=link,
        graph_level_search=options.graph_level_search,
    )


def _choose_layout(
    model: Model, session: Session, settings: TuningSettings, options: TuneOptions
) -> ChosenLayout:
    """Measure layers and divided ends, and plan with them."""
    from tessel.tuned_model.layout_choice import LayoutRequest
    from tuner.plan import Link
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
        link = settings.link
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
        memory_limit_bytes=options.memory_limit_bytes,
        optimizer=options.optimizer,
        sharding=options.sharding,
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
