"""CP-SAT as the last word on small problems: its proofs are true, and it is labelled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tessel.errors import InfeasibleError
from tessel.search.budget import SearchBudget
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.constraint_model import ConstraintSearch
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.initial_schedules import offer_serial
from tessel.search.makespan.params import MakespanParams, Phase
from tessel.search.makespan.repeating_part import schedule_of
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape
from tessel.validation import check_schedule
from tests.samples.schedule_samples import Case, least_makespan, tiny_cases

pytest.importorskip("ortools", reason="needs the extra `cpsat`")


@settings(max_examples=40, deadline=None)
@given(case=tiny_cases())
def test_it_finds_and_proves_the_least_makespan(case: Case) -> None:
    placement, micro_batches, memory = case
    try:
        instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    except InfeasibleError:
        return
    best = Incumbent(instance, makespan_lower_bound(instance), SearchBudget(100.0))
    offer_serial(best)
    best.budget.charge(10**9)
    ConstraintSearch.of(best, seed=0).run()
    assert best.lower_bound == best.makespan == least_makespan(placement, micro_batches, memory)
    found = schedule_of(
        instance, best.best.start, lower_bound=best.lower_bound, search_seconds=0.0, found_by="CP-SAT"
    )
    check_schedule(found)


@pytest.mark.slow
def test_choices_are_proven_and_the_proof_is_labelled() -> None:
    placement = make_shape(
        "vshape", 3, choose_backward=True, backward_span=6, backward_input_span=4, backward_weight_span=3
    )

    def search(params: MakespanParams) -> tuple[int, int, str]:
        found = find_schedule(placement, micro_batches=5, memory=2, budget=SearchBudget(1.0), params=params)
        return found.makespan, found.lower_bound, found.found_by

    without = MakespanParams(left_out=frozenset({Phase.EXACT}))
    makespan, bound, found_by = search(without)
    other_makespan, other_bound, other_found_by = search(
        MakespanParams(left_out=frozenset({Phase.EXACT, Phase.CP_SAT}))
    )
    assert makespan == bound <= other_makespan
    assert other_bound < bound
    assert "CP-SAT" in found_by
    assert "CP-SAT" not in other_found_by


def test_without_the_solver_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    placement = make_shape("nnshape", 3, choose_backward=True)
    found = find_schedule(placement, micro_batches=3, memory=3, budget=SearchBudget(0.6))
    check_schedule(found)
    assert "CP-SAT" not in found.found_by
