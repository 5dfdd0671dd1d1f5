"""Backends are left out for as long as that helps."""

import logging
from collections.abc import Mapping

import pytest

from tests.samples.programs.whole_programs import Machine, count_parts, two_layers
from tuner.tuning.end_to_end.cache import EndToEndCache, Variant, fastest
from tuner.tuning.partitioned_function import choose_partition
from tuner.tuning.strategies.left_out import leave_backends_out

pytestmark = pytest.mark.tvm


def without(cost_us: Mapping[str, float], machine: Machine) -> tuple[Variant, dict[str, Variant]]:
    wholes = EndToEndCache(machine.measure)
    searched = wholes.measure(choose_partition(two_layers(cost_us)), label="mix")
    return searched, leave_backends_out(wholes, searched[0], searched)


def test_a_backend_that_is_slow_among_others_is_left_out() -> None:
    cost_us = {"tvm": 9.0, "products": 3.0, "singles": 2.0}
    machine = Machine({"tvm": 5.0, "products": 40.0, "singles": 100.0})
    searched, found = without(cost_us, machine)
    assert count_parts(searched[0]) == {"singles": 4}
    # Without `singles`, `products` runs the products; nobody but TVM can do without both.
    assert list(found) == ["without singles", "without singles,products"]
    assert count_parts(fastest(searched, *found.values())[0]).keys() == {"tvm"}


def test_a_backend_that_helps_stays_in() -> None:
    cost_us = {"tvm": 9.0, "products": 1.0, "singles": 2.0}
    machine = Machine({"tvm": 50.0, "products": 1.0, "singles": 1.0})
    searched, found = without(cost_us, machine)
    assert count_parts(searched[0]) == {"products": 2, "singles": 2}
    assert list(found) == ["without products", "without singles"]
    assert fastest(searched, *found.values()) == searched


def test_what_the_answer_does_not_use_is_not_left_out() -> None:
    machine = Machine({"tvm": 10.0, "products": 10.0, "singles": 10.0})
    _, found = without({"tvm": 1.0, "products": 50.0, "singles": 60.0}, machine)
    assert list(found) == ["without tvm"]


def test_equal_programs_are_measured_once() -> None:
    machine = Machine({"tvm": 5.0, "products": 40.0, "singles": 100.0})
    without({"tvm": 9.0, "products": 3.0, "singles": 2.0}, machine)
    assert len(machine.measured) == len({tuple(sorted(parts.items())) for parts in machine.measured})


def test_the_only_backend_is_not_left_out() -> None:
    machine = Machine({"tvm": 1.0})
    _, found = without({"tvm": 1.0}, machine)
    assert found == {}


def test_wholes_that_fail_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine({"tvm": 5.0, "singles": 100.0}, broken="products")
    with caplog.at_level(logging.WARNING):
        _, found = without({"tvm": 9.0, "products": 3.0, "singles": 2.0}, machine)
    assert found == {}
    assert "products hangs among others" in caplog.text


def test_what_works_is_found_where_the_searched_whole_fails() -> None:
    machine = Machine({"tvm": 5.0, "products": 4.0}, broken="singles")
    wholes = EndToEndCache(machine.measure)
    searched = choose_partition(two_layers({"tvm": 9.0, "products": 3.0, "singles": 2.0}))
    assert wholes.try_measure(searched, label="mix") is None
    alone = wholes.measure(choose_partition(searched.priced, only="tvm"), label="mix")
    found = leave_backends_out(wholes, searched, alone)
    assert list(found) == ["without singles"]
    assert "singles" not in count_parts(found["without singles"][0])
