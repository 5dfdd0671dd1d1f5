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
from tuner.describe import describe_graph
from tuner.errors import TunerError
from tuner.graph import DataflowGraph
from tuner.partition import find_candidates
from tuner.partitioned_function import PartitionedFunction, PricedFunction, choose_partition
from tuner.plan import Figure
from tuner.rules import OperatorByKind, OperatorByPredicate, PartitionSpec, tvm_native_rule
from tuner.whole_variants import Variant, Wholes, compare_again, fastest, find_coarser, find_without

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

    def measure(self, function: PartitionedFunction, *, label: str, repetition: int) -> Figure:
        assert (label, repetition) == ("mix", 0)
        parts = count_parts(function)
        self.measured.append(parts)
        if self.broken in parts:
            raise TunerError(f"{self.broken} hangs among others")
        return Figure(
            latency_us=sum(self.latency_us[name] * number for name, number in parts.items()), source="given"
        )


def without(cost_us: Mapping[str, float], machine: Machine) -> tuple[Variant, dict[str, Variant]]:
    wholes = Wholes(machine.measure)
    searched = wholes.measure(choose_partition(two_layers(cost_us)), label="mix")
    return searched, find_without(wholes, searched[0], searched)


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
    wholes = Wholes(Machine({"tvm": 5.0}).measure)
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
    wholes = Wholes(machine.measure)
    searched = choose_partition(two_layers({"tvm": 9.0, "products": 3.0, "singles": 2.0}))
    assert wholes.try_measure(searched, label="mix") is None
    alone = wholes.measure(choose_partition(searched.priced, only="tvm"), label="mix")
    found = find_without(wholes, searched, alone)
    assert list(found) == ["without singles"]
    assert "singles" not in count_parts(found["without singles"][0])


def test_coarser_wholes_have_fewer_parts() -> None:
    priced = two_layers({"tvm": 3.0, "singles": 2.0})
    wholes = Wholes(Machine({"tvm": 3.0, "singles": 2.0}).measure)
    searched = wholes.measure(choose_partition(priced), label="mix")
    assert count_parts(searched[0]) == {"singles": 4}
    coarser = find_coarser(wholes, choose_partition, searched[0], label="mix")
    assert coarser is not None
    assert count_parts(coarser[0]) == {"tvm": 2}
    assert coarser[1].latency_us == 6.0
    # TVM alone has nothing coarser than what it fuses.
    alone = partial(choose_partition, only="tvm")
    assert find_coarser(wholes, alone, alone(priced), label="mix") is None


def named_variants(wholes: Wholes) -> dict[str, Variant]:
    priced = two_layers({"tvm": 3.0, "products": 3.0, "singles": 2.0})
    chosen = {name: choose_partition(priced, only=name) for name in ("tvm", "products", "singles")}
    return {name: wholes.measure(function, label="mix") for name, function in chosen.items()}


def test_the_fastest_are_measured_again_and_their_medians_compared() -> None:
    latencies_us = {"singles": [10.0, 12.0, 11.5], "products": [10.2, 10.1, 10.4], "tvm": [20.0]}

    def measure(function: PartitionedFunction, *, label: str, repetition: int) -> Figure:
        (name,) = count_parts(function).keys() & latencies_us.keys() - {"tvm"} or {"tvm"}
        return Figure(latency_us=latencies_us[name][repetition], source="given")

    compared = compare_again(measure, named_variants(Wholes(measure)))
    assert {name: figure.latency_us for name, (_, figure) in compared.items()} == {
        "tvm": 20.0,
        "products": 10.2,
        "singles": 11.5,
    }


def test_one_that_was_disturbed_is_measured_again_for_its_faster_samples() -> None:
    figures = {
        "tvm": [Figure(latency_us=10.0, source="measured", interval_us=(9.9, 10.1))] * 3,
        "products": [
            Figure(latency_us=latency_us, source="measured", interval_us=(9.0, 14.0))
            for latency_us in (12.0, 9.0, 9.1)
        ],
        "singles": [Figure(latency_us=11.0, source="measured", interval_us=(10.9, 11.1))],
    }

    def measure(function: PartitionedFunction, *, label: str, repetition: int) -> Figure:
        parts = count_parts(function)
        name = next(name for name in ("products", "singles", "tvm") if name in parts)
        return figures[name][repetition]

    compared = compare_again(measure, named_variants(Wholes(measure)))
    assert {name: figure.latency_us for name, (_, figure) in compared.items()} == {
        "tvm": 10.0,
        "products": 9.1,
        "singles": 11.0,
    }


def test_one_that_is_far_ahead_is_not_measured_again() -> None:
    machine = Machine({"tvm": 5.0, "products": 40.0, "singles": 100.0})
    variants = named_variants(Wholes(machine.measure))
    assert compare_again(machine.measure, variants) == variants
    assert len(machine.measured) == len(variants)
