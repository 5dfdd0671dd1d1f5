"""Layouts near the best: its cuts and unequal devices moved, and all cuts where they are few.

A move is judged by an order that is searched for a moment. Checked in tests/tessel/planning/test_find_plan.py
and test_own_degrees.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tessel.planning.candidates.bounded_families import BoundedFamilies
from tessel.planning.candidates.candidate import Candidate, has_headroom, promise
from tessel.planning.candidates.families import Family, swapped_orders
from tessel.planning.candidates.own_degrees import moved_degrees
from tessel.planning.candidates.pool import Pool
from tessel.planning.candidates.sweep import initial_cuts
from tessel.planning.cutting.cut import Cut, every_cut, neighbours, num_cuts

MAX_ENUMERATED = 2_000
"""Cuts of all families up to which all are looked at, one by one, for a proof."""


@dataclass(slots=True, eq=False)
class Neighbourhood:
    """What is looked at near the best of a pool.

    Attributes:
        bounded: the families that may be chosen.
        seed: of each search of an order.
    """

    pool: Pool
    bounded: BoundedFamilies
    seed: int
    _enumerated: dict[tuple[Family, Cut], Candidate] = field(default_factory=dict)

    def move_devices(self) -> None:
        """Swap unequal devices of the best layout, or move some, as long as its step gets shorter."""
        is_better = self.pool.best is not None
        while is_better and not self.pool.budget.is_over:
            is_better = False
            best = self.pool.best
            assert best is not None  # looked at before the loop
            for family in self._with_devices_moved(best.family):
                if self.pool.budget.is_over or self.bounded.is_done:
                    return
                if self._try_family(family).step_us < best.step_us * (1 - 1e-9):
                    is_better = True
                    break

    def move_cuts(self, share: float) -> None:
        """Move single cuts of the best, with a share of what is left."""
        problem = self.pool.problem
        part = self.pool.budget.part(share)
        is_better = self.pool.best is not None
        while is_better and not part.is_over:
            is_better = False
            best = self.pool.best
            assert best is not None  # looked at before the loop
            for cut in neighbours(best.cut, best.figures, may_recompute=problem.may_recompute):
                if part.is_over or self.bounded.is_done:
                    return
                if not best.family.allows(cut):
                    continue
                candidate = self.pool.price(best.family, cut)
                if candidate.lower_bound_us >= self.pool.best_us or not has_headroom(candidate.figures):
                    continue
                moment = part.part(0.05)
                if self.pool.search(candidate, moment, seed=self.seed).step_us < best.step_us * (1 - 1e-9):
                    is_better = True
                    break

    def enumerate(self) -> None:
        """Look at all cuts of the families that may still win, if they are few, and keep what is proven.

        Nothing is, where the budget does not cover them all.
        """
        alive = self.bounded.alive()
        if sum(self._num_cuts(family) for family in alive) > MAX_ENUMERATED:
            return
        for family in alive:
            for cut in self._every_cut(family):
                if (family, cut) not in self._enumerated:
                    if self.pool.budget.is_over:
                        return
                    self._enumerated[family, cut] = self.pool.price(family, cut)
        priced = {
            key: candidate
            for key, candidate in self._enumerated.items()
            if key[0] in alive and has_headroom(candidate.figures)
        }
        for key, candidate in sorted(priced.items(), key=lambda item: item[1].lower_bound_us):
            if self.pool.budget.is_over or candidate.lower_bound_us >= self.pool.best_us * (1 - 1e-12):
                continue
            part = self.pool.budget.part(0.2)
            priced[key] = self.pool.search(candidate, part, seed=self.seed, proves=True)
        self._enumerated |= priced
        self.bounded.proven |= dict.fromkeys(alive, math.inf)
        for (family, _), candidate in priced.items():
            self.bounded.proven[family] = min(self.bounded.proven[family], candidate.lower_bound_us)

    def _with_devices_moved(self, family: Family) -> Iterator[Family]:
        """Yield the families that differ in two positions, each to be cut anew."""
        cluster = self.pool.problem.cluster
        for order in swapped_orders(family, cluster):
            yield replace(family, device_order=order)
        if family.placement == "vshape" and self.pool.problem.options.tensor_parallel == "own":
            for stem in self.bounded.stems:
                if stem.is_of(family) and not stem.is_every:
                    yield from moved_degrees(family, stem.degrees, cluster)

    def _try_family(self, family: Family) -> Candidate:
        """Return the best of a family's first cuts, its order searched for a moment if that may win."""
        assert self.pool.best is not None  # devices are swapped in it
        priced = [
            self.pool.price(family, cut) for cut in (*initial_cuts(self.pool, family), self.pool.best.cut)
        ]
        found = min(priced, key=promise)
        if found.lower_bound_us >= self.pool.best_us or not has_headroom(found.figures):
            return found
        return self.pool.search(found, self.pool.budget.part(0.05), seed=self.seed)

    def _num_cuts(self, family: Family) -> int:
        sections = family.sections(self.pool.problem.num_layers)
        return num_cuts(sections, may_recompute=self.pool.problem.may_recompute)

    def _every_cut(self, family: Family) -> Iterator[Cut]:
        sections = family.sections(self.pool.problem.num_layers)
        return every_cut(sections, may_recompute=self.pool.problem.may_recompute)
