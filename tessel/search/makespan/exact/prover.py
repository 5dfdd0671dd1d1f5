"""Raise the lower bound of a whole schedule while it is searched, with a fixed share of the work.

The layers of `tessel.search.makespan.exact.count_layers`, merged to relaxed decision diagrams, are built for
each device, then for the most telling device with each other one, then for all devices together. A shorter
makespan lets a diagram drop more, so that all begin again, the most telling first, whenever the best schedule
has got shorter. Choices between a joint block and two are relaxed first
(`tessel.search.makespan.bounds.choice_relaxation`).
Checked in tests/tessel/search/makespan/exact/test_prover.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tessel.search.budget import OPERATIONS_A_UNIT
from tessel.search.makespan.bounds.choice_relaxation import without_choices
from tessel.search.makespan.exact.attempt import Attempt
from tessel.search.makespan.exact.count_model import count_model
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.params import Phase
from tessel.search.model.instance import Instance, build_instance

OPERATIONS_A_DIAGRAM = 1_000_000
"""Charged for the first layer's arrays."""

MAX_DEVICES = 6
"""Devices up to which the diagram of all of them is tried."""

MAX_STATES = 1 << 14
"""States of one layer; beyond, the diagram is given up."""

MAX_PENDING = 24
"""Entries of a queue that are remembered."""


def without_options(instance: Instance) -> Instance | None:
    """Return the instance with each choice relaxed to a pair of blocks, or None where one has another form.

    Diagrams are built of it: options that are counted apart make too many states.
    """
    relaxed = without_choices(instance.placement)
    if relaxed is None or relaxed is instance.placement:
        return None if relaxed is None else instance
    return build_instance(relaxed, micro_batches=instance.micro_batches, memory=instance.memory)


def diagram(instance: Instance, devices: tuple[int, ...], known: int) -> Attempt | None:
    """Return the relaxed decision diagram of some devices below a makespan, not begun; None without any."""
    model = count_model(instance, devices, max_pending=MAX_PENDING)
    return None if model is None else Attempt(model, known, MAX_STATES, keeps_history=False, merges=True)


@dataclass(slots=True)
class Prover:
    """The diagrams of one search.

    Attributes:
        instance: what is scheduled, choices relaxed; None where nothing is to be proven so.
        best: the incumbent, whose bound is raised.
        allowed: operations that may be used ahead of the share.
        bounds: what each set of devices has proven, 0 where it was given up.
        waiting: sets of devices still to do for the makespan known, the next one last.
        devices: those of the diagram under way.
        current: the diagram under way.
        known: the makespan when the diagrams began.
    """

    instance: Instance | None
    best: Incumbent
    allowed: float
    bounds: dict[tuple[int, ...], int] = field(default_factory=dict)
    waiting: list[tuple[int, ...]] = field(default_factory=list)
    devices: tuple[int, ...] = ()
    current: Attempt | None = None
    known: int = -1
    used: int = 0

    @classmethod
    def of(cls, best: Incumbent) -> Prover:
        """Return a prover that has not begun."""
        is_left_out = Phase.DECISION_DIAGRAMS in best.params.left_out
        instance = None if is_left_out else without_options(best.instance)
        return cls(instance, best, best.params.first_bound_work * OPERATIONS_A_UNIT)

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
        """Expand states of the diagram under way or begin the next; return whether there was one."""
        best, instance = self.best, self.instance
        if instance is None:
            return False
        num_devices = instance.arrays.num_devices
        if self.current is None:
            if self.known != best.makespan:
                self.known, self.waiting = best.makespan, self._sets(num_devices)
            if not self.waiting:
                return False
            self.devices = self.waiting.pop()
            best.budget.charge(OPERATIONS_A_DIAGRAM)
            self.bounds.setdefault(self.devices, 0)
            self.current = diagram(instance, self.devices, best.makespan)
            return True
        best.budget.charge(self.current.advance(best.makespan))
        if self.current.is_over:
            if not self.current.is_too_large:
                bound = min(self.current.least, best.makespan)
                best.lower_bound = max(best.lower_bound, bound)
                self.bounds[self.devices] = max(self.bounds[self.devices], bound)
            self.current = None
            if len(self.devices) == 1 and not any(len(each) == 1 for each in self.waiting):
                self.waiting = self._larger_sets(num_devices)
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
