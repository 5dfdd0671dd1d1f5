"""Tuning up to the schedule: partition the model, cut it into stages, measure them, return a plan.

`tune_placements` is the list of steps; each step is a function of its own module. All that is measured is in
the records when it returns, so a second run measures nothing. Checked in tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.measuring.communication.transfer import BACKEND as TRANSFER_BACKEND
from tuner.measuring.communication.transfer import measure_transfers, transfer_workload
from tuner.plan import Link, ModelPlan, StagePlan
from tuner.stages import cut_between, layers_of, with_all_gradients
from tuner.stages.placed_stages import PlacedStages
from tuner.targets.remote import is_remote
from tuner.tuning.cut_model import require_cuts
from tuner.tuning.import_check import verify_import
from tuner.tuning.partition_graph import partition_graph
from tuner.tuning.partition_model import PartitionedModel, partition_model
from tuner.tuning.partitioned_function import partition_plans
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.stage_costs.measure_shards import Collectives, MeasuredCollectives
from tuner.tuning.stage_costs.measure_stages import measure_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """How a model is cut for a pipeline, and how far its partition is searched.

    Attributes:
        stage_devices: device of each stage of the chain; the next one for each if empty.
        cuts: names of modules after which a stage ends; found if None.
        layer_cuts: in their place, the layers at which each stage but the first begins, by number, those that
            are divided included; layers as `measure_layers` has them, divided at branches.
        in_parts: whether these count the parts that layers can be divided into.
        memory_limit_bytes: memory of one device; None for no limit.
        hop_us: latency of one hop between devices, to which a link adds its time for the bytes; measured if
            None.
        graph_level_search: whole programs that the graph-level search may measure.
        divides_ends: whether the first and the last layer are further stages, vocabulary-parallel over all
            devices of the chain (an m shape).
        link: what joins the devices, for the collectives of what is divided; measured among ranks of this
            machine if None.
        placed: in place of `stage_devices` and `divides_ends`: where each stage runs, and which receives from
            which.
    """

    num_stages: int
    stage_devices: tuple[int, ...] = ()
    cuts: Sequence[str] | None = None
    layer_cuts: tuple[int, ...] | None = None
    in_parts: bool = False
    memory_limit_bytes: int | None = None
    hop_us: float | None = None
    graph_level_search: int = 0
    divides_ends: bool = False
    link: Link | None = None
    placed: PlacedStages | None = None

    def __post_init__(self) -> None:
        if self.stage_devices and len(self.stage_devices) != self.num_stages:
            raise ValueError(
                f"{self.num_stages} stages have {len(self.stage_devices)} devices; give one for each, or none"
            )
        stages = self.num_stages + (2 if self.divides_ends else 0)
        if self.layer_cuts is not None and len(self.layer_cuts) + 1 != stages:
            raise ValueError(
                f"{len(self.layer_cuts)} cuts make no {stages} stages; give one less than stages"
            )

    @property
    def devices_by_stage(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each stage, those that are divided included."""
        if self.placed is not None:
            return self.placed.devices
        chain = tuple((device,) for device in self.stage_devices or range(self.num_stages))
        every = tuple(sorted({device for (device,) in chain}))
        return (every, *chain, every) if self.divides_ends else chain

    @property
    def are_some_divided(self) -> bool:
        """Whether a stage is divided over devices."""
        return self.divides_ends if self.placed is None else bool(self.placed.divided)


def tune_placements(
    model: Model,
    session: Session,
    placements: Mapping[str, TuningSettings],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, bool | int | float] | None = None,
    batch: int = 1,
) -> dict[str, ModelPlan | TunerError]:
    """Tune a model for several placements of its stages; the whole model is partitioned once.

    Args:
        session: target, backends, records and the measuring process.
        placements: how the model is cut for each, by name; at least one, and the `graph_level_search` of the
            first is that of the whole model.
        shapes: what the model was loaded with, for those who load it again from the plan.
        values: the same.
        batch: the same.

    Returns:
        A plan for each placement, or why the model cannot be cut or measured so.

    Raises:
        TunerError: the whole model cannot be tuned.
    """
    found: dict[str, ModelPlan | TunerError] = {}
    for name, settings in placements.items():
        try:
            _require_cuts(model, settings)
        except TunerError as error:
            found[name] = error
    if len(found) == len(placements):
        return found
    model, _ = verify_import(with_all_gradients(model), session)
    first = next(iter(placements.values()))
    whole = partition_model(model, session, graph_level_search=first.graph_level_search)
    for name, settings in placements.items():
        if name in found:
            continue
        try:
            plan = _plan_stages(model, session, settings, whole)
        except TunerError as error:
            found[name] = error
        else:
            found[name] = msgspec.structs.replace(
                plan, shapes=dict(shapes or {}), values=dict(values or {}), batch=batch
            )
    return found


def _require_cuts(model: Model, settings: TuningSettings) -> None:
    if settings.layer_cuts is None:  # Else a planner has found them, for this model.
        require_cuts(
            model,
            num_stages=settings.num_stages,
            cuts=settings.cuts,
            memory_limit_bytes=settings.memory_limit_bytes,
            are_ends_divided=settings.divides_ends,
            placed=settings.placed,
        )


def _plan_stages(
    model: Model, session: Session, settings: TuningSettings, whole: PartitionedModel
) -> ModelPlan:
    """Cut the model as one placement asks, and measure its stages."""
    measured = measure_stages(
        model,
        session,
        num_stages=settings.num_stages,
        cuts=settings.cuts,
        positions=None
        if settings.layer_cuts is None
        else cut_between(layers_of(model, at_branches=True, in_parts=settings.in_parts), settings.layer_cuts),
        memory_limit_bytes=settings.memory_limit_bytes,
        collectives=_collectives(session, settings),
        placed=settings.placed,
    )
    branches = None if settings.placed is None else settings.placed.branches
    hops, hop_source = _hop_latencies(session, measured.stages, settings)
    measurer = session.measurer
    environment = measurer.environment(session.backends[0].name)
    partition = partition_plans(measured.functions)
    return ModelPlan(
        model=model.name,
        model_fingerprint=whole.fingerprint,
        training=model.training,
        target=session.target.text,
        device_model=environment.device_model,
        num_threads=environment.num_threads,
        partition=partition,
        graph=partition_graph(
            [function for function in measured.functions if function.priced.name.endswith(".forward")],
            {(part.workload_fingerprint, part.backend): number for number, part in enumerate(partition)},
        ),
        end_to_end=whole.end_to_end,
        sum_of_parts=whole.sum_of_parts,
        launch_penalty_us=whole.launch_penalty_us,
        max_relative_error=whole.max_relative_error,
        max_gradient_error=measured.max_error if model.training else None,
        stages=measured.stages,
        tied=measured.tied,
        tied_bytes=measured.tied_bytes,
        stage_devices=settings.devices_by_stage,
        stages_before=branches or (),
        cut_positions=measured.cut_positions
        if branches is not None
        or (settings.layer_cuts and not _are_between_layers(model, measured.cut_positions))
        else (),
        hop_latency_us=hops,
        hop_source=hop_source,
        new_measurements=measurer.new_measurements,
        reused_measurements=measurer.reused_measurements,
        ratio_to_mix=whole.ratio_to_mix,
        is_tie=whole.is_tie,
        import_error=whole.import_error,
        reference="" if model.reference is None else model.reference.mode,
        notes=model.notes,
        torch_calls=model.called,
        binds_weights=not model.training,
    )


def _are_between_layers(model: Model, positions: Sequence[int]) -> bool:
    """Whether names of layers say where all of these cuts are."""
    return {layer.start for layer in layers_of(model)}.issuperset(positions)


def _collectives(session: Session, settings: TuningSettings) -> Collectives | None:
    if not settings.are_some_divided:
        return None
    return settings.link or MeasuredCollectives(session)


def _hop_latencies(
    session: Session, stages: Sequence[StagePlan], settings: TuningSettings
) -> tuple[tuple[float, ...], Literal["measured", "given"]]:
    """Return the latency of the hop after each stage but the last; none where who follows is with it."""
    devices = settings.devices_by_stage
    before = (settings.placed or PlacedStages.chain(devices)).before
    crosses = [
        any(devices[number] != devices[later] for later, earlier in enumerate(before) if number in earlier)
        for number in range(len(devices) - 1)
    ]
    sizes = [max(1, stage.boundary_bytes) for stage in stages[:-1]]
    if settings.hop_us is not None:
        per_byte_us = 0.0 if settings.link is None else 1e6 / settings.link.bytes_per_s
        given = [settings.hop_us + per_byte_us * size for size in sizes]
        return tuple(each if crossed else 0.0 for each, crossed in zip(given, crosses, strict=True)), "given"
    latency_us = hop_latencies(session, sizes)
    return tuple(
        latency_us[size] if crossed else 0.0 for size, crossed in zip(sizes, crosses, strict=True)
    ), "measured"


def hop_latencies(session: Session, sizes: Sequence[int]) -> dict[int, float]:
    """Return microseconds of a hop between processes of this machine, by its bytes, measured once each.

    Raises:
        TunerError: the target is behind an RPC tracker: its hops are none of this machine's.
    """
    if is_remote(session.target.name):
        raise TunerError(
            f"hops between devices of {session.target.name} cannot be measured on this machine; give their "
            "latency with --hop-us"
        )
    measurer = session.measurer
    environment = measurer.environment(TRANSFER_BACKEND)
    session.on_progress(TuningProgress(text="measuring hops between devices"))
    with measurer.claimed(TRANSFER_BACKEND):
        found = {
            size: measurer.find(transfer_workload(size), TRANSFER_BACKEND) for size in sorted(set(sizes))
        }
        missing = [size for size, record in found.items() if record is None]
        latency_us = {
            size: record.measurement.latency_us for size, record in found.items() if record is not None
        }
        if missing:
            measurements = measure_transfers(missing, target=session.target, environment=environment)
            session.store.append_many(
                [(transfer_workload(size), found) for size, found in zip(missing, measurements, strict=True)]
            )
            latency_us |= {size: found.latency_us for size, found in zip(missing, measurements, strict=True)}
    measurer.new_measurements += len(missing)
    measurer.reused_measurements += len(found) - len(missing)
    return latency_us
