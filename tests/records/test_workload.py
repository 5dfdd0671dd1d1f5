"""A workload's form is canonical: names and order do not matter, what is computed does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records import Operator, Tensor, Workload
from records.workload import describe
from tests.records.strategies import workloads

T = Tensor((4, 4), "float32")


def op(name: str, *inputs: int, attributes: tuple[tuple[str, str], ...] = ()) -> Operator:
    return Operator(name=name, kind=0, inputs=inputs, outputs=(T,), attributes=attributes, flops=16)


@settings(max_examples=100, deadline=None)
@given(workload=workloads())
def test_json_round_trip_keeps_the_fingerprint(workload: Workload) -> None:
    again = Workload.from_json(workload.to_json())
    assert again == workload
    assert again.fingerprint == workload.fingerprint


@settings(max_examples=100, deadline=None)
@given(workload=workloads())
def test_describing_a_description_changes_nothing(workload: Workload) -> None:
    again = describe(
        workload.role, workload.inputs, workload.operators, workload.results, workload.parameters
    )
    assert describe(again.role, again.inputs, again.operators, again.results, again.parameters) == again


def test_order_of_independent_operators_does_not_matter() -> None:
    one = describe("kernel", [T], [op("exp", 0), op("tanh", 0), op("add", 1, 2)], [3])
    other = describe("kernel", [T], [op("tanh", 0), op("exp", 0), op("add", 2, 1)], [3])
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        describe("stage", [T], [op("exp", 0)], [1]),
        describe("kernel", [Tensor((4, 5), "float32")], [op("exp", 0)], [1]),
        describe("kernel", [Tensor((4, 4), "float16")], [op("exp", 0)], [1]),
        describe("kernel", [Tensor((4, 4), "float32", constant=True)], [op("exp", 0)], [1]),
        describe("kernel", [T], [op("tanh", 0)], [1]),
        describe("kernel", [T], [op("exp", 0, attributes=(("axis", "1"),))], [1]),
        describe("kernel", [T], [op("exp", 0)], [1], [("probe", "x")]),
    ],
)
def test_what_is_computed_matters(changed: Workload) -> None:
    assert changed.fingerprint != describe("kernel", [T], [op("exp", 0)], [1]).fingerprint


def test_what_no_result_needs_is_dropped() -> None:
    assert describe("kernel", [T, T], [op("exp", 0), op("tanh", 1)], [2]) == describe(
        "kernel", [T], [op("exp", 0)], [1]
    )


def test_totals_of_a_hand_worked_product() -> None:
    weight = Tensor((4, 4), "float32", constant=True)
    workload = describe("kernel", [T, weight], [op("matmul", 0, 1)], [2])
    assert (workload.flops, workload.input_bytes, workload.constant_bytes, workload.output_bytes) == (
        16,
        64,
        64,
        64,
    )


@settings(max_examples=60, deadline=None)
@given(text=st.binary(max_size=200))
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="workload"):
        Workload.from_json(text)


def test_references_forward_are_refused() -> None:
    with pytest.raises(ValueError, match="reads value 2"):
        describe("kernel", [T], [op("exp", 2)], [1])
