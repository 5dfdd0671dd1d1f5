"""The least period of one cyclic problem: which periods to try, in what order, for how long.

Feasibility only grows with the period, so an answer at one period settles all longer or all shorter ones. The
least period that is not ruled out is tried first, since bounds are often met. Until some period is known to
work the tries gallop upwards; then they bisect. A try that does not end soon is set aside, the ends of the
open range are tried too, and each comes back with twice the time. Whenever a period works, the orders found
are shortened to their own least period first. Checked in tests/tessel/search/repetend/test_find_repetend.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tessel.search.budget import SearchBudget
from tessel.search.model.problem import IntArray
from tessel.search.repetend.branch_and_bound import Feasibility, OrderSearch
from tessel.search.repetend.chain_dp.chain_structure import (
    CrossingChains,
    NestedChain,
    find_crossing_chains,
    find_nested_chain,
)
from tessel.search.repetend.chain_dp.crossing_chain_dp import CrossingSearch
from tessel.search.repetend.chain_dp.nested_chain_dp import NestedChainSearch
from tessel.search.repetend.cyclic_problem import CyclicProblem
from tessel.search.repetend.cyclic_starts import tightest
from tessel.search.repetend.params import RepetendParams, RepetendPhase

OPERATIONS_A_TIGHTENING = 20
"""Charged for each node of each arc when orders are shortened to their own least period."""


_Try = OrderSearch | NestedChainSearch | CrossingSearch


@dataclass(slots=True)
class PeriodSearch:
    """The open range of one cyclic problem: `lowest` is not ruled out, `period` works.

    Attributes:
        budget: what the search may spend.
        params: how it divides that.
        lowest: every shorter period is impossible.
        below: periods from here on are of no interest.
        on_better: told period, lowest and method whenever a better period is known to work.
        period: the least one known to work; None while there is none.
        starts: int64, shape (num_nodes,), for it.
    """

    cyclic: CyclicProblem
    budget: SearchBudget
    params: RepetendParams
    lowest: int
    below: int
    on_better: Callable[[int, int, str], None] | None = None
    period: int | None = None
    starts: IntArray | None = None
    found_by: str = ""
    _tries: dict[int, _Try] = field(default_factory=dict)
    _structure: NestedChain | CrossingChains | None = None
    _is_structure_known: bool = False
    _stride: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether nothing of interest is open: the period is least, or all of interest are impossible."""
        return self.lowest >= (self.below if self.period is None else self.period)

    def run(self) -> None:
        """Narrow the range until it is closed or the budget is used up."""
        steps = min(self.params.first_try_work, self.params.max_try_work)
        while not self.is_closed:
            is_settled = False
            for period in self._candidates():
                is_settled = self._try(period, steps)
                if is_settled or self.budget.is_over:
                    break
            if self.budget.is_over or self._is_stuck():
                return
            if not is_settled:
                steps = min(2 * steps, self.params.max_try_work)

    def settle_for(self, period: int) -> None:
        """Try one period, such as one in which nothing overlaps, where the budget does not reach further."""
        self._try(period, self.params.max_try_work)

    def _candidates(self) -> Iterator[int]:
        """Yield open periods, each once, the most telling first."""
        last = (self.below if self.period is None else self.period) - 1
        stride = self._stride if self.period is None else (last - self.lowest) // 2
        first = min(self.lowest + stride, last)
        yield first
        if self.lowest < first:
            yield self.lowest
        step = max(1, 2 * stride)
        while self.period is None and self.lowest + step < last:
            yield self.lowest + step
            step *= 2
        if first < last:
            yield last

    def _try(self, period: int, steps: int) -> bool:
        """Search one period on; return whether the range has changed."""
        search = self._tries.setdefault(period, OrderSearch(self.cyclic, period))
        is_large = self.cyclic.num_nodes > self.params.max_blocks_ordered_first
        answer = Feasibility.UNKNOWN if is_large else self._run(search, steps)
        if answer is Feasibility.UNKNOWN:
            search = self._change_method(period, search)
            answer = self._run(search, steps)
        if answer is Feasibility.INFEASIBLE:
            self.lowest = period + 1
            self._stride = max(1, 2 * self._stride)
        elif answer is Feasibility.FEASIBLE and search.starts is not None:
            self.found_by = search.method
            num_arcs = len(self.cyclic.arcs) + 2 * len(self.cyclic.pairs)
            self.budget.charge(num_arcs * self.cyclic.num_nodes * OPERATIONS_A_TIGHTENING)
            self.period, self.starts = tightest(self.cyclic, search.starts, period=period, least=self.lowest)
        else:
            return False
        top = self.below if self.period is None else self.period
        self._tries = {known: tried for known, tried in self._tries.items() if self.lowest <= known < top}
        if answer is Feasibility.FEASIBLE and self.period is not None and self.on_better is not None:
            self.on_better(self.period, self.lowest, self.found_by)
        return True

    def _run(self, search: _Try, steps: int) -> Feasibility:
        """Search a period on and charge for it."""
        before = search.operations
        answer = search.run(steps)
        self.budget.charge(search.operations - before)
        return answer

    def _change_method(self, period: int, search: _Try) -> _Try:
        """Go over from orders to slots where that will end, since its running time is predictable."""
        if not isinstance(search, OrderSearch):
            return search
        if not self._is_structure_known:
            self._structure, self._is_structure_known = self._find_structure(), True
        other: NestedChainSearch | CrossingSearch
        if isinstance(self._structure, NestedChain):
            other = NestedChainSearch(self.cyclic, self._structure, period)
        elif isinstance(self._structure, CrossingChains):
            other = CrossingSearch(self.cyclic, self._structure, period)
        else:
            return search
        self._run(other, 0)
        if other.is_stuck:
            return search
        self._tries[period] = other
        return other

    def _is_stuck(self) -> bool:
        return all(period in self._tries and self._tries[period].is_stuck for period in self._candidates())

    def _find_structure(self) -> NestedChain | CrossingChains | None:
        left_out = self.params.left_out
        nested = None if RepetendPhase.NESTED_CHAINS in left_out else find_nested_chain(self.cyclic)
        if nested is not None or RepetendPhase.CROSSING_CHAINS in left_out:
            return nested
        return find_crossing_chains(self.cyclic)
