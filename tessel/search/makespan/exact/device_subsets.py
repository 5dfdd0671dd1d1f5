"""Raise the bound of problems under tight memory: a few devices exactly, the others as distances.

What a tight limit costs is often a matter of two to six devices: on one of them each micro-batch must come
back soon, and on others its backward then meets the forwards of later ones. The states of those devices
alone (`tessel.search.makespan.exact.count_layers`) are few, as their limits let few micro-batches be in
flight, above all where last blocks are left out (`tessel.search.makespan.bounds.sub_problem`). Each set of
devices, with or without its last blocks, is a relaxation, so that its least makespan is a bound.

    device with the highest bound → all devices, its last blocks only → last blocks of one more → …
                                  → or, where these have too many states: one more device → …

With the last blocks of one device alone, even all devices may have few states: 2400 in a layer for a chain of
8 at half memory, which proves its schedules to be within 0.3 % of the least. What is added next is the best
of a few by the period of the set, that of the repetend of up to two copies, found within little work: it only
directs the search. Of equal ones that is taken where one copy has the shorter period: where two copies
gain on one, three and more may gain again. Last blocks of the new device stay where the period is longer
with them and the states are not too many. Choices are relaxed before
(`tessel.search.makespan.bounds.choice_relaxation`). Begins when the exact search of all devices has too many
states, which waits while all devices are tried here, or cannot be tried. Checked in
tests/tessel/search/makespan/exact/test_device_subsets.py against exhaustive search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.search.budget import OPERATIONS_A_UNIT
from tessel.search.makespan.bounds.choice_relaxation import without_choices
from tessel.search.makespan.bounds.sub_problem import on_devices, without_last_blocks
from tessel.search.makespan.exact.attempt import Attempt
from tessel.search.makespan.exact.count_layers import width_of
from tessel.search.makespan.exact.count_model import count_model
from tessel.search.makespan.exact.exact_search import ExactSearch
from tessel.search.makespan.exact.prover import Prover
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.params import Phase
from tessel.search.model.instance import build_instance
from tessel.search.repetend.find_repetend import find_repetend_of
from tessel.search.repetend.params import RepetendParams

MAX_DEVICES = 64
"""Devices up to which it is tried; where there are more, each set takes too long to choose."""

FEW_DEVICES = 8
"""Devices up to which the search has its whole share. Of more, a few say less and take as long: on a chain of
16 sets of three added nothing, and schedules were 1 % longer for the work."""

MAX_CANDIDATES = 8
"""Devices of which one is added at a time, evenly spread over those that are left."""

MAX_STATES = 1 << 15
"""States of a layer; beyond, a set is given up."""

MAX_STATES_OF_ALL = 1 << 12
"""States of a layer of all devices at first; beyond, they are begun with one device."""

MAX_NUMBERS = 1 << 22
"""Numbers in the rows of a layer, 32 MiB; beyond, a set is given up."""

WORK_OF_A_PERIOD = 0.02
"""Units of work for the period of a set; it takes a tenth of that where there are few devices."""

OPERATIONS_A_SET = 2_000_000
"""Charged for the arrays of a set of devices."""


@dataclass(frozen=True, slots=True)
class Subset:
    """A relaxation.

    Attributes:
        devices: those that are kept, ascending.
        whole: those of them whose last blocks stay, ascending.
    """

    devices: tuple[int, ...]
    whole: tuple[int, ...]

    def added(self, device: int, *, is_whole: bool) -> Subset:
        """Return the relaxation with one more device, or with the last blocks of one that it has."""
        whole = {*self.whole, device} if is_whole else self.whole
        return Subset(tuple(sorted({*self.devices, device})), tuple(sorted(whole)))


@dataclass(slots=True)
class DeviceSubsetSearch:
    """Growing sets of devices, one at a time.

    Attributes:
        best: the incumbent whose bound is raised.
        placement: its placement, choices relaxed.
        prover: says which device to begin with.
        exact: the search of all devices, which comes first.
        current: the last set that was gone through; the first device at first.
        trying: the one that is gone through.
        candidates: devices that may be added and whose periods are not known.
        periods: by device looked at, the period of the set with it: of two copies, and of one.
        waiting: relaxations to try with the device that was chosen, the next one last.
        attempt: the one under way.
        tries_all: whether all devices are gone through at once, and the exact search waits for it.
        is_done: whether nothing is left to do.
    """

    best: Incumbent
    placement: Placement | None
    prover: Prover
    exact: ExactSearch
    current: Subset | None = None
    trying: Subset | None = None
    candidates: list[int] = field(default_factory=list)
    periods: dict[int, tuple[Fraction, Fraction]] = field(default_factory=dict)
    waiting: list[Subset] = field(default_factory=list)
    attempt: Attempt | None = None
    tries_all: bool = False
    used: int = 0
    is_done: bool = False

    @classmethod
    def of(cls, best: Incumbent, prover: Prover, exact: ExactSearch) -> DeviceSubsetSearch:
        """Return a search that has not begun; it is over where it cannot begin."""
        instance = best.instance
        is_small = 1 < instance.arrays.num_devices <= MAX_DEVICES
        is_left_out = bool({Phase.EXACT, Phase.DECISION_DIAGRAMS} & best.params.left_out)
        placement = without_choices(instance.placement)
        is_done = is_left_out or not is_small or instance.memory is None or placement is None
        return cls(best, placement, prover, exact, is_done=is_done)

    def run(self) -> None:
        """Go on as long as there is something to do and the share of the work is not used up."""
        best, budget = self.best, self.best.budget
        if not self._may_begin():
            return
        few = min(1.0, FEW_DEVICES / best.instance.arrays.num_devices) ** 2
        begins = best.params.work_before_subsets * OPERATIONS_A_UNIT
        while not self.is_done and not best.is_over:
            before = budget.operations
            lent = best.params.exact_share if self.tries_all and not self.exact.is_done else 0.0
            stuck = best.params.bound_share_while_stuck * self.tries_all * (before - best.best.operations)
            if self.used - stuck >= few * (best.params.subset_share + lent) * (before - begins):
                return
            self._advance()
            self.used += budget.operations - before

    def _may_begin(self) -> bool:
        """Return whether it is known what single devices prove, and that all of them are too many."""
        if self.current is not None:
            return True
        is_too_large = self.exact.is_done or self.exact.too_much is not None
        return is_too_large and len(self._bounds_alone()) == self.best.instance.arrays.num_devices

    def _bounds_alone(self) -> Mapping[int, int]:
        """What the diagrams of single devices have proven, by device."""
        return {devices[0]: bound for devices, bound in self.prover.bounds.items() if len(devices) == 1}

    def _advance(self) -> None:
        """Expand some states, begin the next set, or look at a device that may be added."""
        if self.attempt is not None:
            self._go_on(self.attempt)
        elif self.waiting:
            self._begin(self.waiting.pop())
        elif self.current is None:
            self._begin_growing()
        elif self.candidates:
            device = self.candidates.pop()
            self.periods[device] = self._periods(self.current.added(device, is_whole=True))
        else:
            self._grow(self.current)

    def _go_on(self, attempt: Attempt) -> None:
        best = self.best
        best.budget.charge(attempt.advance(best.makespan))
        best.lower_bound = max(best.lower_bound, min(attempt.proven, best.makespan))
        if not attempt.is_over:
            return
        self.attempt = None
        if attempt.is_too_large:
            self._give_up()
            return
        self.current, self.tries_all = self.trying, False
        self.waiting.clear()
        self._list_candidates()

    def _give_up(self) -> None:
        """Grow from one device where all are too many; end where nothing else is left to try."""
        if self.tries_all:
            self.tries_all = False
            self._list_candidates()
        else:
            self.is_done = not self.waiting

    def _begin(self, subset: Subset) -> None:
        best = self.best
        assert self.placement is not None
        self.trying = subset
        best.budget.charge(OPERATIONS_A_SET)
        relaxed = build_instance(
            without_last_blocks(self.placement, subset.whole),
            micro_batches=best.instance.micro_batches,
            memory=best.instance.memory,
        )
        model = count_model(relaxed, subset.devices)
        if model is None:
            self._give_up()
            return
        most = MAX_STATES_OF_ALL if self.tries_all else MAX_STATES
        states = min(most, MAX_NUMBERS // (width_of(model) + len(model.span)))
        self.attempt = Attempt(model, best.makespan, states, keeps_history=False)

    def _begin_growing(self) -> None:
        """Take the device whose diagram alone has proven most; one that runs nothing proves nothing."""
        alone, on_start = self._bounds_alone(), self.best.instance.arrays.on_start
        first = max(
            alone, key=lambda device: (alone[device], on_start[device + 1] > on_start[device], -device)
        )
        self.current = Subset((first,), (first,))
        self.waiting = [Subset(tuple(sorted(alone)), (first,))]
        self.tries_all = True

    def _list_candidates(self) -> None:
        assert self.current is not None
        devices = range(self.best.instance.arrays.num_devices)
        has_all = len(self.current.devices) == len(devices)
        known = self.current.whole if has_all else self.current.devices
        left = [device for device in devices if device not in known]
        self.is_done = not left
        count = min(len(left), MAX_CANDIDATES)
        self.candidates = [left[place * len(left) // count] for place in range(count)]
        self.periods = {}

    def _grow(self, current: Subset) -> None:
        """Choose a device, with its last blocks if the period is longer with them; end where it is not."""

        def rank(device: int) -> tuple[Fraction, Fraction, int]:
            of_two, of_one = self.periods[device]
            return of_two, -of_one, -device

        device = max(self.periods, key=rank)
        without, with_them = (current.added(device, is_whole=each) for each in (False, True))
        new = [] if without == current else [without]
        is_same = self._periods(without) >= self.periods[device]
        self.waiting = new if is_same else [*new, with_them]
        self.is_done = not self.waiting

    def _periods(self, subset: Subset) -> tuple[Fraction, Fraction]:
        """Return the least periods a micro-batch with at most two copies and with one, as far as found."""
        best = self.best
        assert self.placement is not None
        assert best.instance.memory is not None
        best.budget.charge(OPERATIONS_A_SET)
        part = on_devices(without_last_blocks(self.placement, subset.whole), subset.devices)
        memory = [best.instance.memory[device] for device in subset.devices]
        instance = build_instance(part, micro_batches=1, memory=memory)
        found = []
        for copies in (2, 1):
            budget = best.budget.part_of_work(WORK_OF_A_PERIOD)
            try:
                repetend = find_repetend_of(
                    instance, max_copies=copies, budget=budget, params=RepetendParams()
                )
            except ScheduleError:  # none was found within the work
                found.append(Fraction(0))
            else:
                found.append(repetend.rate)
        return found[0], found[1]
