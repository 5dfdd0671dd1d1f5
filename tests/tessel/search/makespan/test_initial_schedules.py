"""First schedules: never worse than a rule that fits, whatever the size and the budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tessel.handwritten import HANDWRITTEN, Rule
from tessel.placement import Placement
from tessel.search import find_schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan import initial_schedules as module
from tessel.search.model.instance import IntArray
from tessel.shapes import make_shape, vshape, zbv
from tessel.validation import check_schedule


def test_rules_come_however_little_may_be_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TASKS", 0)
    placement = zbv(3, split_backward=True)
    found = find_schedule(placement, micro_batches=24, memory=9, budget=SearchBudget(0.0, 0.0))
    check_schedule(found)
    built = [
        rule.build(placement, micro_batches=24, memory=(9,) * 3).makespan
        for rule in HANDWRITTEN
        if rule.why_not(placement, 24, (9,) * 3) is None
    ]
    assert found.makespan <= min(built)


@pytest.mark.parametrize(
    ("placement", "micro_batches", "memory"),
    [
        (vshape(64, forward_span=list(range(20, 84)), lag=3), 20, 70),
        (zbv(48, split_backward=True), 16, 96),
    ],
)
def test_search_is_never_worse_than_a_rule_on_many_devices(
    placement: Placement, micro_batches: int, memory: int
) -> None:
    found = find_schedule(
        placement, micro_batches=micro_batches, memory=memory, budget=SearchBudget(0.0, 0.0)
    )
    limits = (memory,) * placement.devices
    for rule in HANDWRITTEN:
        if rule.name in ("v-half", "v-min"):  # not linear: tried where the budget allows
            continue
        if rule.why_not(placement, micro_batches, limits) is None:
            built = rule.build(placement, micro_batches=micro_batches, memory=limits)
            assert found.makespan <= built.makespan, rule.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "memory"),
    [(vshape(512), 512), (zbv(512, split_backward=True), 1024), (make_shape("mshape", 128), 128)],
)
def test_search_is_never_worse_than_a_rule_with_512_micro_batches(placement: Placement, memory: int) -> None:
    found = find_schedule(placement, micro_batches=512, memory=memory, time_limit_s=1)
    limits = (memory,) * placement.devices
    for rule in HANDWRITTEN:
        if rule.name in ("v-half", "v-min") or rule.why_not(placement, 512, limits) is not None:
            continue
        built = rule.build(placement, micro_batches=512, memory=limits)
        assert found.makespan <= built.makespan, rule.name


def test_limits_in_flight_come_after_the_limit_on_time_only_where_no_other_rule_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TASKS", 0)
    placement = vshape(32, split_backward=True, lag=1)
    tried: list[str] = []
    of_rule = module.rule_schedules

    def noting(rule: Rule, *args: Any, **options: Any) -> Iterator[IntArray]:
        tried.append(rule.name)
        return of_rule(rule, *args, **options)

    monkeypatch.setattr(module, "rule_schedules", noting)
    for memory, found_by in ((32, "zb-h1"), (8, "1f1b-limited")):
        tried.clear()
        found = find_schedule(placement, micro_batches=64, memory=memory, budget=SearchBudget(0.0, 0.0))
        assert found.found_by == found_by
        assert ("1f1b-limited" in tried) == (memory == 8)
    tried.clear()
    find_schedule(placement, micro_batches=64, memory=32, budget=SearchBudget(0.0))
    assert "1f1b-limited" in tried  # a limit on work does not count here


def test_one_f_one_b_is_found_at_once_on_128_devices_with_512_micro_batches() -> None:
    found = find_schedule(vshape(128), micro_batches=512, memory=128, budget=SearchBudget(0.0, 0.0))
    assert (found.makespan, found.optimal, found.found_by) == ((512 + 127) * 4, True, "1f1b")
