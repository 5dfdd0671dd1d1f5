"""A plan of `tessel plan` as a document: all that is needed to draw, check, export or run it.

It holds the profile and the cluster that it was made for, so that another program recomputes every figure,
and the schedule with its placement, whose steps last `step_us` and whose memory is counted in bytes.
Checked in tests/tessel/planning/test_saved_plan.py.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec
import numpy as np

from tessel.batches.mixture import Mixture
from tessel.documents import read_document
from tessel.errors import DocumentError, ScheduleError, shown
from tessel.planning.cluster import OPTIMIZERS, Cluster
from tessel.planning.costs.block_check import check_blocks
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.costs.stage_spreads import stage_spreads
from tessel.planning.costs.training_step import end_of_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.plan_result import PROVEN_GAP, PlanResult
from tessel.planning.runtime import OVERLAPPED, RUNTIMES
from tessel.planning.sharding import SHARDINGS
from tessel.profiles.classes import class_profile, mean_profile
from tessel.profiles.profile import Profile
from tessel.profiles.towers import tower_layers
from tessel.schedule import Schedule
from tessel.validation import MAX_UNITS, check_schedule

SCHEMA_VERSION = 2
"""2 names the runtime, and counts trained weights and what is kept between the halves of a backward."""


class SavedBaseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way to run the same profile on the same devices, to compare with.

    Attributes:
        name: such as `1f1b`.
        step_ms: milliseconds of a training step; None where there is no such plan.
        fits: whether it keeps the memory limit.
        reason: why there is none, or why it does not fit; empty if it does.
    """

    name: str
    step_ms: float | None
    fits: bool
    reason: str = ""


class SavedBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Micro-batches that differ: which replica runs which of them, and when.

    Attributes:
        mixture: the class of each micro-batch of a step.
        replicas: micro-batches of each replica, as their places in the mixture's sequence; ascending.
        schedules: of each replica; its micro-batches are numbered in the order of `replicas`.
    """

    mixture: Mixture
    replicas: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule, ...]


class SavedPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training step on a cluster: layout, placement, order, and what it takes.

    Attributes:
        profile: the layers and their costs.
        cluster: the devices and links.
        optimizer: a key of `OPTIMIZERS`.
        runtime: a key of `RUNTIMES`; of version 1, the one whose hops its schedule has.
        sharding: what replicas divide among them: one of `SHARDINGS`.
        offload: what lies in the memory of the hosts: one of `OFFLOADS`.
        overlap_factor: share of its sum that a forward takes with a backward beside it; `UNSET` where each
            block runs by itself.
        layout: degrees, cuts and which device runs which stage.
        schedule: of one pipeline, the slowest; its placement counts memory in bytes.
        order: the rule that made the order, or `searched`.
        step_us: microseconds of one step of the schedule.
        training_step_us: microseconds of the whole training step, synchronisation and optimizer included.
        lower_bound_us: no allowed plan takes less.
        static_bytes: bytes that each device of the pipeline holds throughout.
        memory_bytes: most bytes that each device of the pipeline holds.
        baselines: what it was compared with.
        batch: of micro-batches that differ, what each replica runs; `UNSET` where all are alike.
    """

    profile: Profile
    cluster: Cluster
    optimizer: str
    runtime: str = OVERLAPPED.name
    sharding: str = "none"
    offload: str = "none"
    overlap_factor: float | msgspec.UnsetType = msgspec.UNSET
    layout: Layout
    schedule: Schedule
    order: str
    step_us: float
    training_step_us: float
    lower_bound_us: float
    static_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    baselines: tuple[SavedBaseline, ...] = ()
    schema_version: int = SCHEMA_VERSION
    batch: SavedBatch | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, result: PlanResult, profile: Profile, job: Job) -> SavedPlan:
        """Return the document of a plan.

        Args:
            result: of `find_plan`; its best step has a schedule.
            profile: that it was made from.
            job: that it was made for.
        """
        best = result.best
        assert best.schedule is not None, "the best step of a plan has a schedule"
        return cls(
            profile=profile,
            cluster=job.cluster,
            optimizer=job.optimizer.name,
            runtime=job.runtime.name,
            sharding=job.sharding,
            offload=job.offload,
            overlap_factor=msgspec.UNSET if job.overlap_factor is None else job.overlap_factor,
            layout=best.layout,
            schedule=best.schedule,
            order=best.order,
            step_us=best.step.step_us,
            training_step_us=best.estimate.step_us,
            lower_bound_us=result.lower_bound_us,
            static_bytes=tuple(map(int, best.step.figures.static_bytes)),
            memory_bytes=best.estimate.memory_bytes,
            baselines=tuple(
                SavedBaseline(
                    name=each.name,
                    step_ms=None if each.planned is None else each.planned.estimate.step_us / 1e3,
                    fits=each.fits,
                    reason=each.reason,
                )
                for each in result.baselines
            ),
            batch=msgspec.UNSET
            if job.mixture is None or best.shared is None
            else SavedBatch(
                mixture=job.mixture, replicas=best.shared.replicas, schedules=best.shared.schedules
            ),
        )

    def to_json(self) -> bytes:
        """Return the plan's document, keys sorted, a line a value."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)

    @property
    def device_names(self) -> tuple[str, ...]:
        """What the devices of each position of the pipeline are called: by their numbers in the cluster."""
        return self.layout.device_names

    @property
    def job(self) -> Job:
        """What it was made for."""
        return Job(
            cluster=self.cluster,
            global_batch=self.layout.global_batch,
            optimizer=OPTIMIZERS[self.optimizer],
            runtime=RUNTIMES[self.runtime],
            sharding=self.sharding,
            offload=self.offload,
            overlap_factor=None
            if isinstance(self.overlap_factor, msgspec.UnsetType)
            else self.overlap_factor,
            mixture=None if isinstance(self.batch, msgspec.UnsetType) else self.batch.mixture,
        )

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedule of every replica where micro-batches differ; else one that all of them run."""
        return (self.schedule,) if isinstance(self.batch, msgspec.UnsetType) else self.batch.schedules

    @property
    def mean_profile(self) -> Profile:
        """The profile; where micro-batches differ, of their mean times and most bytes."""
        if isinstance(self.batch, msgspec.UnsetType):
            return self.profile
        mixture = self.batch.mixture
        return mean_profile([class_profile(self.profile, name) for name in mixture.classes], mixture.counts)

    @property
    def stage_spreads(self) -> tuple[float, ...]:
        """Sigma of each stage's work, on average over micro-batches; empty where no layer says."""
        if not self.profile.has_spreads:
            return ()
        mixture = None if isinstance(self.batch, msgspec.UnsetType) else self.batch.mixture
        if mixture is None:
            return tuple(stage_spreads((self.profile,), self.layout, self.job)[0].tolist())
        profiles = [class_profile(self.profile, name) for name in mixture.classes]
        found = stage_spreads(profiles, self.layout, self.job)
        return tuple(np.average(found, axis=0, weights=mixture.counts).tolist())

    @property
    def proof(self) -> str:
        """How near its step is to the least that any allowed plan takes."""
        gap = self.training_step_us / self.lower_bound_us - 1 if self.lower_bound_us else math.inf
        return (
            "proven optimal of all plans" if gap <= PROVEN_GAP else f"gap {gap:.1%} to the bound of all plans"
        )

    @property
    def title(self) -> str:
        """The model, and how the devices are used."""
        return f"{self.profile.name}, {self.layout.named_degrees}"


def load_saved_plan(path: str | os.PathLike[str]) -> SavedPlan:
    """Read a plan of `tessel plan --save`.

    Raises:
        DocumentError: the file cannot be read, is no such plan, or contradicts itself.
    """
    try:
        plan = msgspec.json.decode(read_document(path), type=SavedPlan)
        _refuse_nearest(plan, path)
        for schedule in plan.schedules:
            check_schedule(schedule)
        _check(plan)
        plan = _recomputed(plan)
    except (msgspec.MsgspecError, ScheduleError, RecursionError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(
            f"{Path(path)} is no plan of layers: {shown(error)}; make one with `tessel plan --save`"
        ) from error
    return plan


def _refuse_nearest(plan: SavedPlan, path: str | os.PathLike[str]) -> None:
    """Refuse the nearest plan to one that fits, whose devices have no memory left for activations."""
    if plan.schedule.memory is None or min(plan.schedule.memory, default=0) >= 0:
        return
    device = plan.schedule.memory.index(min(plan.schedule.memory))
    names, lacking = plan.device_names[device], -plan.schedule.memory[device] / 2**30
    raise DocumentError(
        f"{Path(path)} is a plan that does not fit: without activations, devices {names} lack "
        f"{lacking:.2f} GiB; plan with more memory, more devices or sharding"
    )


def _check(plan: SavedPlan) -> None:
    """Refuse figures that nothing can be computed with, and parts that do not belong together."""
    if not 1 <= plan.schema_version <= SCHEMA_VERSION:
        raise ScheduleError(
            f"it has schema_version {plan.schema_version}, this installation reads 1 to {SCHEMA_VERSION}"
        )
    if plan.runtime not in RUNTIMES:
        raise ScheduleError(f"there is no runtime {shown(plan.runtime)!r}")
    if plan.sharding not in SHARDINGS:
        raise ScheduleError(f"there is no sharding {shown(plan.sharding)!r}")
    if plan.optimizer not in OPTIMIZERS:
        raise ScheduleError(f"there is no optimizer {shown(plan.optimizer)!r}")
    for name in ("step_us", "training_step_us", "lower_bound_us"):
        value = getattr(plan, name)
        if not 0 <= value < float("inf") or (name == "step_us" and not value):
            raise ScheduleError(f"{name} is {value}, and it is a finite number above 0")
    if plan.schedule.overlap_factor not in (None, plan.job.overlap_factor):
        raise ScheduleError(
            f"pairs of its schedule take {plan.schedule.overlap_factor:g} of their sum, and the plan says "
            f"{plan.job.overlap_factor}"
        )
    devices = plan.schedule.placement.devices
    if devices != plan.layout.pipeline:
        raise ScheduleError(f"the schedule has {devices} devices, and the layout {plan.layout.pipeline}")
    for name in ("static_bytes", "memory_bytes"):
        values = getattr(plan, name)
        if len(values) != devices or not all(0 <= value <= MAX_UNITS for value in values):
            raise ScheduleError(f"{name} is not one number within 0..{MAX_UNITS} for each device")
    tower = plan.layout.bubbles
    ahead = 0 if tower is None else tower.layers
    if plan.layout.cuts[-1][1] + 1 != len(plan.profile.layers) or plan.layout.cuts[0][0] != ahead:
        raise ScheduleError("the cuts do not cover the layers of the profile")
    if tower is not None and not 0 < ahead == tower_layers(plan.profile):
        raise ScheduleError(
            f"its tower in bubbles has {ahead} layers, and the profile names {tower_layers(plan.profile)}"
        )
    if not isinstance(plan.batch, msgspec.UnsetType):
        _check_batch(plan, plan.batch)
    elif plan.schedule.classes is not None:
        raise ScheduleError("its schedule has classes of micro-batches, and it does not say what they are of")
    for text in (plan.profile.name, plan.profile.device, plan.order, *(each.name for each in plan.baselines)):
        if not text.isprintable():
            raise ScheduleError(f"the text {shown(text)!r} holds characters that cannot be printed")


def _check_batch(plan: SavedPlan, batch: SavedBatch) -> None:
    """Refuse replicas that do not run every micro-batch once, or other classes than their schedules say."""
    sequence = batch.mixture.sequence
    own = sorted(each for group in batch.replicas for each in group)
    if own != list(range(len(sequence))) or len(batch.replicas) != plan.layout.data_parallel:
        raise ScheduleError("its replicas do not run every micro-batch of the batch once")
    if len(batch.schedules) != len(batch.replicas) or plan.schedule not in batch.schedules:
        raise ScheduleError("it has not one schedule for each replica, of which the slowest is the plan's")
    if plan.schedule.makespan < max(schedule.makespan for schedule in batch.schedules):
        raise ScheduleError("its schedule is not that of the slowest replica")
    for group, schedule in zip(batch.replicas, batch.schedules, strict=True):
        classes = schedule.classes
        names = tuple(str(batch.mixture.classes[sequence[each]]) for each in group)
        if classes is None or classes.names != names or schedule.placement != plan.schedule.placement:
            raise ScheduleError("a replica's schedule is of other micro-batches than it runs")


ROUNDING = 0.02
"""Share by which a step may differ that is computed again: each block is rounded up to whole steps."""


def _recomputed(plan: SavedPlan) -> SavedPlan:
    """Return the plan as this version has it, once its figures follow from profile, layout and schedule.

    Raises:
        ScheduleError: one does not.
    """
    if plan.schema_version == SCHEMA_VERSION:
        _check_figures(plan)
        return plan
    refused: ScheduleError | None = None
    for runtime in RUNTIMES:  # which version 1 did not say
        changed = msgspec.structs.replace(plan, runtime=runtime, schema_version=SCHEMA_VERSION)
        try:
            _check_figures(changed, earlier=True)
        except ScheduleError as error:
            refused = refused or error
        else:
            return changed
    assert refused is not None, "there are runtimes"
    raise refused


def _check_figures(plan: SavedPlan, *, earlier: bool = False) -> None:
    """Refuse figures that do not follow from profile, layout and schedule.

    Args:
        plan: its parts belong together.
        earlier: whether memory was counted as version 1 did, and is taken as it stands.
    """
    figures = stage_figures(plan.profile, plan.layout, plan.job)
    check_blocks(plan.schedule.placement, figures, plan.step_us, counts_halves=not earlier)
    own = dict(
        zip(map(str, figures.mixture.classes), figures.by_class, strict=True) if figures.mixture else ()
    )
    for schedule in plan.schedules if own else ():
        batch = schedule.classes
        assert batch is not None, "its batch was looked at"
        for index, each in enumerate(batch.classes):
            check_blocks(batch.class_placement(schedule.placement, index), own[each.name], plan.step_us)
    found = end_of_step(figures, *plan.schedules, step_us=plan.step_us)
    peaks = tuple(map(max, zip(*(each.peak_memory for each in plan.schedules), strict=True)))
    held = tuple(static + peak for static, peak in zip(plan.static_bytes, peaks, strict=True))
    if plan.memory_bytes != held:
        raise ScheduleError(
            f"memory_bytes are {list(plan.memory_bytes)}, and its schedule gives {list(held)}"
        )
    if not earlier and plan.static_bytes != figures.static_bytes:
        raise ScheduleError(
            f"static_bytes are {list(plan.static_bytes)}, and its layers give {list(figures.static_bytes)}"
        )
    # What earlier versions summed and updated of weights that are not trained is not known any more.
    is_longer = plan.training_step_us > found.step_us * (1 + ROUNDING)
    if plan.training_step_us < found.step_us * (1 - ROUNDING) or (is_longer and not earlier):
        raise ScheduleError(
            f"training_step_us is {plan.training_step_us:g}, and its schedule gives {found.step_us:g}"
        )
    if plan.lower_bound_us > plan.training_step_us * (1 + 1e-9):
        raise ScheduleError(
            f"lower_bound_us is {plan.lower_bound_us:g}, above the {plan.training_step_us:g} of its step"
        )
