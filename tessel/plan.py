"""The plan: what was tuned, where and when each block runs, and how that compares with hand-written rules.

A plan is one JSON document: the tuner's `ModelPlan` with the placement, the schedule and the comparison
beside. Everything a reader needs to rebuild or check it stands inside; latencies say where they come from.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tessel.comparison import ComparisonRow, comparison_html, format_ms
from tessel.documents import read_document, save
from tessel.errors import DocumentError, ScheduleError
from tessel.placement import Placement
from tessel.schedule import Schedule
from tuner.plan import ModelPlan

SCHEMA_VERSION = 1


class Plan(ModelPlan, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tuned model with its pipeline.

    Attributes:
        step_us: microseconds of one schedule step.
        memory_limit_bytes: memory of one device, or None where it was not limited.
        static_bytes: bytes each device holds throughout: weights, gradients and optimizer state.
        optimizer: what the static bytes count beside weights and gradients.
        placement: blocks of one micro-batch; spans in steps, memory in bytes.
        schedule: the searched schedule.
        comparison: the searched schedule and every hand-written one, fastest first.
    """

    step_us: float
    memory_limit_bytes: int | None
    static_bytes: tuple[int, ...]
    optimizer: str
    placement: Placement
    schedule: Schedule
    comparison: tuple[ComparisonRow, ...]
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """Return the plan's document, keys sorted, a line a value."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)

    def __repr__(self) -> str:
        return (
            f"Plan({self.model!r} on {self.device_model!r}, {len(self.stages)} stages, "
            f"{self.schedule.micro_batches} micro-batches, makespan "
            f"{format_ms(self.schedule.makespan * self.step_us / 1000)} ms)"
        )

    def _repr_html_(self) -> str:
        """Return the comparison with hand-written schedules, for a notebook."""
        return comparison_html(self.comparison, caption=repr(self))


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan; the file appears whole or not at all.

    Raises:
        DocumentError: the folder cannot be written.
    """
    save(plan, path)


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        DocumentError: the file cannot be read or is not a plan; the message names the key.
    """
    try:
        plan = msgspec.json.decode(read_document(path), type=Plan)
    except (msgspec.MsgspecError, ScheduleError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"{path} is not a plan: {error}; make one with `tessel tune`") from error
    if plan.schema_version != SCHEMA_VERSION:
        raise DocumentError(
            f"{path} has schema_version {plan.schema_version}, this installation reads {SCHEMA_VERSION}; "
            "tune again, or use the version that wrote it"
        )
    return plan
