"""Which other partitions are measured as a whole, and that each is measured once."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from dataflow_samples import relax_module
from tvm import relax

from tests.mock_pricer import MockPricer
from tuner.errors import TunerError
from tuner.graph import DataflowGraph
from tuner.lowering.workload_of import describe_graph
from tuner.partition.find_partition import find_candidates
from tuner.partition.partition_spec import PartitionSpec
from tuner.plan import Figure
from tuner.rules import OperatorByKind, OperatorByPredicate, tvm_native_rule
from tuner.tuning.end_to_end_variants import (
    EndToEndCache,
    Finalist,
    Variant,
    fastest,
    find_coarser,
    find_finalists,
    leave_backends_out,
    simplest,
)
from tuner.tuning.partitioned_function import PartitionedFunction, PricedFunction, choose_partition

pytestmark = pytest.mark.tvm


def two_layers(cost_us: Mapping[str, float]) -> PricedFunction:
    """Return two layers, product and activation, with a price a backend; `products` runs products alone."""

    def build(builder: Any, x: Any, one: Any, two: Any) -> Any:
        for weight in (one, two):
            x = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, weight))))
        return x

    graph = DataflowGraph.from_function(relax_module(build, x=(4, 4), one=(4, 4), two=(4, 4)))
    specs = [
        PartitionSpec("tvm", tvm_native_rule()),
        PartitionSpec("products", OperatorByPredicate("products", lambda node: node.operator == "matmul")),
        PartitionSpec("singles", OperatorByKind()),
    ]
    found = find_candidates(graph, [spec for spec in specs if spec.backend in cost_us])
    return PricedFunction(
        name="model",
        graph=graph,
        workload=describe_graph(graph, "model"),
        candidates=found.candidates,
        prices=MockPricer(cost_us).price(found.candidates),
        num_candidates_by_rule={},
        refused=found.report.refused,
        num_pruned=0,
        launch_penalty_us=0.0,
    )


def count_parts(function: PartitionedFunction) -> dict[str, int]:
    return Counter(part.backend for part in function.partition.chosen)


@dataclass
class Machine:
    """A device on which a whole takes what each of its parts takes, by backend, whatever they do alone."""

    latency_us: Mapping[str, float]
    broken: str = ""
    measured: list[dict[str, int]] = field(default_factory=list)

    def measure(self, function: PartitionedFunction, *, label: str) -> Figure:
        assert label == "mix"
        parts = count_parts(function)
        self.measured.append(parts)
        if self.broken in parts:
            raise TunerError(f"{self.broken} hangs among others")
        return Figure(
            latency_us=sum(self.latency_us[name] * number for name, number in parts.items()), source="given"
        )


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


def test_a_program_keeps_its_first_latency() -> None:
    wholes = EndToEndCache(Machine({"tvm": 5.0}).measure)
    priced = two_layers({"tvm": 1.0})
    function = choose_partition(priced)
    lucky = function, Figure(latency_us=1.0, source="given")
    assert wholes.known(lucky) == lucky
    measured = wholes.measure(function, label="mix")
    assert wholes.known(lucky) == measured != lucky


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


def test_coarser_wholes_have_fewer_parts() -> None:
    priced = two_layers({"tvm": 3.0, "singles": 2.0})
    wholes = EndToEndCache(Machine({"tvm": 3.0, "singles": 2.0}).measure)
    searched = wholes.measure(choose_partition(priced), label="mix")
    assert count_parts(searched[0]) == {"singles": 4}
    coarser = find_coarser(wholes, choose_partition, searched[0], label="mix")
    assert coarser is not None
    assert count_parts(coarser[0]) == {"tvm": 2}
    assert coarser[1].latency_us == 6.0
    # TVM alone has nothing coarser than what it fuses.
    alone = partial(choose_partition, only="tvm")
    assert find_coarser(wholes, alone, alone(priced), label="mix") is None


def variant(name: str, latency_us: float, first_quartile_us: float | None = None) -> Variant:
    """Return one backend's answer, for two layers, with a latency."""
    cost_us = {"tvm": 3.0, "products": 3.0, "singles": 2.0}
    interval_us = None if first_quartile_us is None else (first_quartile_us, latency_us)
    return choose_partition(two_layers(cost_us), only=name), Figure(
        latency_us=latency_us, source="given", interval_us=interval_us
    )


def test_every_single_backend_races_and_mixes_that_may_be_as_fast() -> None:
    tvm, slow = variant("tvm", 10.0), variant("products", 60.0)
    disturbed = variant("singles", 30.0, first_quartile_us=12.0)
    finalists = find_finalists({"searched": disturbed, "coarser": tvm}, [tvm, slow])
    assert [(count_parts(each.function).keys(), each.is_single) for each in finalists] == [
        ({"singles"}, False),
        ({"tvm"}, True),
        ({"products", "tvm"}, True),
    ]
    hopeless, late = variant("products", 101.0), variant("singles", 12.6)
    finalists = find_finalists({"searched": late}, [tvm, hopeless])
    assert [count_parts(each.function).keys() for each in finalists] == [{"tvm"}]


def test_a_tie_goes_to_the_simplest() -> None:
    def finalist(name: str, *, is_single: bool) -> Finalist:
        function, figure = variant(name, 10.0)
        return Finalist(function=function, figure=figure, is_single=is_single)

    mixed, single = finalist("products", is_single=False), finalist("singles", is_single=True)
    assert (mixed.num_backends, mixed.num_parts, single.num_backends, single.num_parts) == (2, 4, 1, 4)
    assert simplest([mixed, single]) is single
    two, one = finalist("products", is_single=True), finalist("singles", is_single=True)
    assert simplest([two, one]) is one
    fewer, more = finalist("tvm", is_single=True), finalist("singles", is_single=True)
    assert fewer.num_parts < more.num_parts
    assert simplest([more, fewer]) is fewer
