"""Tuning up to the schedule: partition the model, cut it into stages, measure them, return a plan.

`tune_model` is the list of steps; each step is a function of its own module. Everything measured is in the
records when it returns, so a second run measures nothing. Checked in tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.frontend.model import Model
from tuner.measuring.transfer import BACKEND as TRANSFER_BACKEND
from tuner.measuring.transfer import measure_transfers, transfer_workload
from tuner.plan import ModelPlan, StagePlan
from tuner.tuning.import_check import admit_import
from tuner.tuning.measure_shards import Link
from tuner.tuning.measure_stages import measure_stages
from tuner.tuning.partition_graph import partition_graph
from tuner.tuning.partition_model import partition_model
from tuner.tuning.partitioned_function import partition_plans
from tuner.tuning.session import Session, TuningProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """How a model is cut for a pipeline, and how far its partition is searched.

    Attributes:
        num_stages: pipeline stages, one per device.
        cuts: names of modules after which a stage ends; found if None.
        memory_limit_bytes: memory of one device; None for no limit.
        hop_us: latency of one hop between devices; measured if None.
        graph_level_search: whole programs that the graph-level search may measure.
        link: what joins the devices, where the first and the last layer are to be divided by words over all
            of them (an m shape); None for a chain.
    """

    num_stages: int
    cuts: Sequence[str] | None = None
    memory_limit_bytes: int | None = None
    hop_us: float | None = None
    graph_level_search: int = 0
    link: Link | None = None


def tune_model(
    model: Model,
    session: Session,
    settings: TuningSettings,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int = 1,
) -> ModelPlan:
    """Find who runs what, where to cut, and what each stage costs.

    Args:
        model: what is tuned.
        session: target, backends, records and the measuring process.
        settings: how it is cut, and how far its partition is searched.
        shapes: what the model was loaded with, for those who load it again from the plan.
        batch: the same.

    Raises:
        TunerError: the model cannot be cut, lowered or measured, or gives wrong numbers; says which part.
    """
    model, _ = admit_import(model, session)
    whole = partition_model(model, session, graph_level_search=settings.graph_level_search)
    measured = measure_stages(
        model,
        session,
        num_stages=settings.num_stages,
        cuts=settings.cuts,
        memory_limit_bytes=settings.memory_limit_bytes,
        link=settings.link,
    )
    hops, hop_source = _hop_latencies(session, measured.stages, settings.hop_us)
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
        hop_latency_us=hops,
        hop_source=hop_source,
        new_measurements=measurer.new_measurements,
        reused_measurements=measurer.reused_measurements,
        shapes=dict(shapes or {}),
        batch=batch,
        ratio_to_mix=whole.ratio_to_mix,
        is_tie=whole.is_tie,
        import_error=whole.import_error,
        reference="" if model.reference is None else model.reference.mode,
        notes=model.notes,
        torch_calls=model.called,
    )


def _hop_latencies(
    session: Session, stages: Sequence[StagePlan], hop_us: float | None
) -> tuple[tuple[float, ...], Literal["measured", "given"]]:
    """Return the latency of each hop between neighbouring stages."""
    if hop_us is not None:
        return (hop_us,) * (len(stages) - 1), "given"
    sizes = [max(1, stage.boundary_bytes) for stage in stages[:-1]]
    measurer = session.measurer
    environment = measurer.environment(TRANSFER_BACKEND)
    found = {size: measurer.find(transfer_workload(size), TRANSFER_BACKEND) for size in sorted(set(sizes))}
    missing = [size for size, record in found.items() if record is None]
    session.on_progress(TuningProgress(text="measuring hops between devices"))
    latency_us = {size: record.measurement.latency_us for size, record in found.items() if record is not None}
    if missing:
        measurements = measure_transfers(missing, target=session.target, environment=environment)
        session.store.append_many(
            [(transfer_workload(size), found) for size, found in zip(missing, measurements, strict=True)]
        )
        latency_us |= {size: found.latency_us for size, found in zip(missing, measurements, strict=True)}
    measurer.new_measurements += len(missing)
    measurer.reused_measurements += len(found) - len(missing)
    return tuple(latency_us[size] for size in sizes), "measured"
