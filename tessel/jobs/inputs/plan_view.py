"""A plan as it is looked at: what pictures, tables, runs and options ask of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tessel.comparison import Comparison
    from tessel.planning.plan_result import PlanResult
    from tessel.planning.saved_plan import SavedPlan
    from tessel.schedule import Schedule
    from tessel.tuned_plan import TunedPlan


class PlanView(Protocol):
    """A plan of either kind; see `tessel.Plan`."""

    @property
    def tuned(self) -> TunedPlan | None:
        """The document of a tuned model; None of a table's plan."""
        ...

    @property
    def planned(self) -> SavedPlan | None:
        """The document of a table's plan; None of a tuned model's."""
        ...

    @property
    def found(self) -> PlanResult | None:
        """What the planner weighed, where the plan was just made from a table."""
        ...

    @property
    def schedule(self) -> Schedule:
        """When each block of every micro-batch starts."""
        ...

    @property
    def step_us(self) -> float:
        """Microseconds of one step of the schedule."""
        ...

    @property
    def static_bytes(self) -> tuple[int, ...]:
        """Bytes that each device of the pipeline holds throughout."""
        ...

    @property
    def device_names(self) -> tuple[str, ...]:
        """What its devices are called."""
        ...

    @property
    def title(self) -> str:
        """The model, and what it runs on."""
        ...

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step."""
        ...

    @property
    def lower_bound_ms(self) -> float:
        """Milliseconds that nothing which was allowed beats."""
        ...

    @property
    def proof(self) -> str:
        """How near the two are, in words."""
        ...

    @property
    def step_interval_us(self) -> tuple[float, float] | None:
        """What the step takes at both ends of its layers' intervals."""
        ...

    def compare(self, schedules: Sequence[str] | None = None) -> Comparison:
        """Compare its order with hand-written ones."""
        ...
