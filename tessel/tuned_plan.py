"""The plan: what was tuned, where and when each block runs, and how that compares with hand-written rules.

A plan is one JSON document: the tuner's `ModelPlan` with the placement, the schedule and the comparison
beside. It is self-contained: everything needed to rebuild or check it is included, and every latency states
its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tessel.comparison import ComparisonRow, comparison_html, format_ms
from tessel.documents import read_document, save
from tessel.errors import DocumentError, ScheduleError, shown
from tessel.placement import Placement
from tessel.placement_comparison import PlacementRow, PlannedRow
from tessel.schedule import Schedule
from tessel.validation import MAX_UNITS, check_schedule
from tuner.plan import ModelPlan

SCHEMA_VERSION = 1


class TunedPlan(ModelPlan, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tuned model with its pipeline.

    Attributes:
        step_us: microseconds of one schedule step.
        memory_limit_bytes: memory of one device, or None where it was not limited.
        static_bytes: bytes each device holds throughout: weights, gradients and optimizer state.
        optimizer: what the static bytes count beside weights and gradients.
        sharding: what copies of the pipeline divide among them: `optimizer`, its state; `UNSET` for nothing.
        placement: blocks of one micro-batch; spans in steps, memory in bytes.
        schedule: the searched schedule.
        comparison: the searched schedule and every hand-written one, fastest first.
        placements: the placements that the model was tuned for, fastest first, where it was not for the
            plain chain alone.
        planned: where the layout was planned from the figures of single layers: it and what it was compared
            with, fastest first.
        other_shapes: plans of the same model in the same stages for other shapes of its inputs, each with its
            own kernels and order, and without others of its own.
    """

    step_us: float
    memory_limit_bytes: int | None
    static_bytes: tuple[int, ...]
    optimizer: str
    sharding: str | msgspec.UnsetType = msgspec.UNSET
    placement: Placement
    schedule: Schedule
    comparison: tuple[ComparisonRow, ...]
    placements: tuple[PlacementRow, ...] = ()
    planned: tuple[PlannedRow, ...] = ()
    other_shapes: tuple[TunedPlan, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """Return the plan's document, keys sorted, a line a value."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)

    @property
    def state_sharding(self) -> str:
        """What copies of the pipeline divide among them: `none`, or `optimizer`."""
        return "none" if isinstance(self.sharding, msgspec.UnsetType) else self.sharding

    @property
    def device_names(self) -> tuple[str, ...]:
        """What its devices are called: by their numbers."""
        return tuple(map(str, range(self.placement.devices)))

    def __repr__(self) -> str:
        return (
            f"Plan({self.model!r} on {self.device_model!r}, {len(self.stages)} stages, "
            f"{self.schedule.micro_batches} micro-batches, makespan "
            f"{format_ms(self.schedule.makespan * self.step_us / 1000)} ms)"
        )

    def _repr_html_(self) -> str:
        """Return the comparison with hand-written schedules, for a notebook."""
        return comparison_html(self.comparison, caption=repr(self))


def save_plan(plan: TunedPlan, path: Path) -> None:
    """Write the plan; the file appears whole or not at all.

    Raises:
        DocumentError: the folder cannot be written.
    """
    save(plan, path)


def read_plan(path: Path) -> TunedPlan:
    """Read a plan's document as it stands; `tessel.loading.load_plan` also computes its figures again.

    Raises:
        DocumentError: the file cannot be read, is not a plan, or contradicts itself; the message names
            the key.
    """
    try:
        plan = msgspec.json.decode(read_document(path), type=TunedPlan)
        for each in (plan, *plan.other_shapes):
            check_schedule(each.schedule)
            _check(each)
        _check_other_shapes(plan)
    except (msgspec.MsgspecError, ScheduleError, RecursionError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"{path} is not a plan: {shown(error)}; make one with `tessel tune`") from error
    if plan.schema_version != SCHEMA_VERSION:
        raise DocumentError(
            f"{path} has schema_version {plan.schema_version}, this installation reads {SCHEMA_VERSION}; "
            "tune again, or use the version that wrote it"
        )
    return plan


def _check(plan: TunedPlan) -> None:
    """Refuse figures that nothing can be computed with, and names that are not what they show."""
    if not 0 < plan.step_us < float("inf"):
        raise ScheduleError(f"a step has {plan.step_us} us, and its length is a finite number above 0")
    if not all(stage.layers for stage in plan.stages):
        raise ScheduleError("a stage has no layers")
    if "mix" not in plan.end_to_end or not plan.end_to_end["mix"].latency_us:
        raise ScheduleError('"end_to_end" has no latency of "mix"')
    if plan.stage_devices and len(plan.stage_devices) != len(plan.stages):
        raise ScheduleError(
            f'"stage_devices" has {len(plan.stage_devices)} entries, and there are {len(plan.stages)} stages'
        )
    _check_branches(plan)
    if plan.replicas < 1 or len(plan.stages) % plan.replicas:
        raise ScheduleError(f'"replicas" is {plan.replicas}, and there are {len(plan.stages)} stages')
    devices = plan.schedule.placement.devices
    if len(plan.static_bytes) != devices:
        raise ScheduleError(
            f"there are static_bytes of {len(plan.static_bytes)} devices, and {devices} devices"
        )
    if not all(0 <= held <= MAX_UNITS for held in (*plan.static_bytes, plan.memory_limit_bytes or 0)):
        raise ScheduleError(f"static_bytes or the memory limit are not within 0..{MAX_UNITS}")
    tuned = {name: getattr(plan, name) for name in ModelPlan.__struct_fields__}
    for text in _texts(msgspec.to_builtins(tuned)):
        if not text.isprintable():
            raise ScheduleError(f"the text {shown(text)!r} holds characters that cannot be printed")


def _check_other_shapes(plan: TunedPlan) -> None:
    """Refuse plans for other shapes that are of another model, or in other stages."""
    weights = [stage.parameters for stage in plan.stages]
    seen = [plan.shapes]
    for other in plan.other_shapes:
        is_same = (other.model, other.values) == (plan.model, plan.values)
        if not is_same or [stage.parameters for stage in other.stages] != weights:
            raise ScheduleError('"other_shapes" holds a plan of another model or with other stages')
        if other.other_shapes or other.shapes in seen:
            raise ScheduleError('"other_shapes" holds a plan for several shapes, or two for the same')
        seen.append(other.shapes)


def _check_branches(plan: TunedPlan) -> None:
    """Refuse stages that would receive from none that stands before them."""
    before = plan.stages_before
    if before and len(before) != len(plan.stages):
        raise ScheduleError(
            f'"stages_before" has {len(before)} entries, and there are {len(plan.stages)} stages'
        )
    for number, earlier in enumerate(before):
        if list(earlier) != sorted(set(earlier)) or any(not 0 <= each < number for each in earlier):
            raise ScheduleError(
                f'"stages_before" has stage {number} receive from {shown(list(earlier))}, and stages receive '
                "from ones before them"
            )


def _texts(document: object) -> Iterator[str]:
    """Yield every key and text of a document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _texts(value)
