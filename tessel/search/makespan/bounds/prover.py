"""Raise the lower bound of a whole schedule while it is searched, with a fixed share of the work.

The diagrams of `tessel.search.makespan.bounds.decision_diagram` are built for each device, then for the most
telling device with each other one, then for all devices together. A shorter makespan lets a diagram drop
more, so that all begin again, the most telling first, whenever the best schedule has got shorter. Choices
between a joint block and two are relaxed first (`tessel.search.makespan.bounds.choice_relaxation`).
Checked in tests/tessel/search/makespan/bounds/test_decision_diagram.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tessel.search.budget import OPERATIONS_A_UNIT
from tessel.search.makespan.bounds.choice_relaxation import without_choices
from tessel.search.makespan.bounds.decision_diagram import RelaxedDiagram, relaxed_diagram
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.params import Phase
from tessel.search.model.problem import Problem, make_problem

OPERATIONS_A_DIAGRAM = 1_000_000
"""Charged for the first layer's arrays."""

MAX_DEVICES = 6
"""Devices up to which the diagram of all of them is tried."""


@dataclass(slots=True)
class Prover:
    """The diagrams of one search.

    Attributes:
        problem: the blocks and limits, choices relaxed; None where nothing is to be proven so.
        best: the incumbent, whose bound is raised.
        allowed: operations that may be used ahead of the share.
        bounds: what each set of devices has proven, 0 where it was given up.
        waiting: sets of devices still to do for the makespan known, the next one last.
        current: the diagram under way.
        known: the makespan when the diagrams began.
        used: operations used.
    """

    problem: Problem | None
    best: Incumbent
    allowed: float
    bounds: dict[tuple[int, ...], int] = field(default_factory=dict)
    waiting: list[tuple[int, ...]] = field(default_factory=list)
    current: RelaxedDiagram | None = None
    known: int = -1
    used: int = 0

    @classmethod
    def of(cls, best: Incumbent) -> Prover:
        """Return a prover that has not begun."""
        instance = best.instance
        relaxed = without_choices(instance.placement)
        problem = None
        if relaxed is not None and Phase.DECISION_DIAGRAMS not in best.params.left_out:
            problem = make_problem(relaxed, memory=instance.memory)
        return cls(problem, best, best.params.first_bound_work * OPERATIONS_A_UNIT)

    def run(self) -> None:
        """Go on as long as there is something to do and the share of the work is not used up."""
        best, budget, params = self.best, self.best.budget, self.best.params
        while not best.is_over:
            before = budget.operations
            stuck = params.bound_share_while_stuck * (before - best.best.operations)
            if self.used >= self.allowed + params.bound_share * before + stuck:
                return
            if not self._advance():
                return
            self.used += budget.operations - before

    def _advance(self) -> bool:
        """Add a layer to the diagram under way or begin the next; return whether there was one."""
        if self.problem is None:
            return False
        if self.current is None:
            if self.known != self.best.makespan:
                self.known, self.waiting = self.best.makespan, self._sets(self.problem.num_devices)
            if not self.waiting:
                return False
            devices = self.waiting.pop()
            self.current = relaxed_diagram(self.problem, devices, self.best.instance.micro_batches)
            self.best.budget.charge(OPERATIONS_A_DIAGRAM)
            self.bounds.setdefault(devices, 0)
            return True
        self.best.budget.charge(self.current.advance(self.best.makespan))
        if self.current.is_over:
            devices, bound = self.current.devices, self.current.bound
            self.best.lower_bound = max(self.best.lower_bound, bound)
            self.bounds[devices] = max(self.bounds[devices], bound)
            self.current = None
            if len(devices) == 1 and not any(len(each) == 1 for each in self.waiting):
                self.waiting = self._larger_sets(self.problem.num_devices)
        return True

    def _sets(self, num_devices: int) -> list[tuple[int, ...]]:
        """Return each device alone, the most telling last."""
        alone: list[tuple[int, ...]] = [(device,) for device in range(num_devices)]
        return sorted(alone, key=lambda devices: self.bounds.get(devices, 0))

    def _larger_sets(self, num_devices: int) -> list[tuple[int, ...]]:
        """Return the most telling device with each other one, and all together last, in reverse."""
        alone = sorted(range(num_devices), key=lambda device: self.bounds.get((device,), 0))
        pairs = [(min(alone[-1], other), max(alone[-1], other)) for other in alone[:-1]]
        whole = [tuple(range(num_devices))] if 2 < num_devices <= MAX_DEVICES else []
        return [*whole, *pairs]
