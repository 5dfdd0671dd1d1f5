"""What is rounded and widened again within a partition is read as it was before."""

from __future__ import annotations

from typing import Any

import pytest
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module, part_of, partition_module
from tuner.backends.cpu.nhwc import Nhwc, without_roundings
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op

SHAPES = [(1, 16, 9, 11), (16, 16, 3, 3), (24, 16, 1, 1), (24, 24, 3, 3)]


def wide(value: Any) -> Any:
    return op.astype(value, "float32")


def half(value: Any) -> Any:
    return op.astype(value, "bfloat16")


def network(x: Any, first: Any, second: Any, third: Any) -> Any:
    """A residual of three convolutions, each operator between conversions, as the importer writes it."""
    y = half(op.nn.conv2d(wide(x), wide(first), padding=1))
    y = half(op.nn.relu(wide(y)))
    z = half(op.nn.conv2d(wide(y), wide(second)))
    y = half(op.nn.relu(wide(half(op.nn.conv2d(wide(z), wide(third), padding=1)))))
    return half(op.add(wide(y), wide(z)))


def plain(x: Any, first: Any, second: Any, third: Any) -> Any:
    """The same in float32."""
    y = op.nn.relu(op.nn.conv2d(x, first, padding=1))
    z = op.nn.conv2d(y, second)
    return op.add(op.nn.relu(op.nn.conv2d(z, third, padding=1)), z)


def operators(function: Any) -> list[str]:
    return [
        binding.value.op.name.removeprefix("relax.")
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def test_conversions_stay_where_data_enters_and_leaves() -> None:
    function = function_module(SHAPES, network, ["bfloat16"] * 4)["main"]
    found = operators(without_roundings(function))
    assert [name for name in found if name != "astype"] == operators(function_module(SHAPES, plain)["main"])
    assert found.count("astype") == 5, "four tensors enter and one leaves"
    assert operators(function).count("astype") == 16


def test_what_is_a_result_or_begins_short_is_rounded_still() -> None:
    def body(x: Any, y: Any) -> Any:
        total = half(op.add(x, x))
        return relax.Tuple([total, op.multiply(wide(total), x), wide(y)])

    module = function_module([(4, 4), (4, 4)], body, ["float32", "bfloat16"])
    found = without_roundings(module["main"])
    assert operators(found) == ["add", "astype", "multiply", "astype"]
    assert str(found.ret_ty) == str(module["main"].ret_ty)


def test_a_function_of_float32_stays_itself() -> None:
    function = function_module(SHAPES, plain)["main"]
    assert without_roundings(function) is function


def test_a_network_of_bfloat16_becomes_the_kernels_of_float32() -> None:
    target = resolve_target("cpu", num_threads=1)
    module = partition_module("nhwc", SHAPES, network, ["bfloat16"] * 4)
    assert Nhwc().refusal(part_of(module), target) is None

    def convolutions(written: IRModule) -> list[str]:
        kernels = Nhwc().lower(written, ["part"], target).get_global_vars()
        return sorted(each.name_hint for each in kernels if "convolution" in each.name_hint)

    assert convolutions(module)
    assert convolutions(module) == convolutions(partition_module("nhwc", SHAPES, plain))
    lowered = lower_module(module, [Nhwc()], target)
    assert lowered["main"].script().count("transpose") <= 2
    inputs = random_inputs(input_specs(module), seed=0)
    (found,) = run_module(build_module(lowered, target), inputs, target)
    (expected,) = run_module(build_reference(module, target), inputs, target)
    assert relative_error(found, expected) < 1e-2
