"""Average pools go before 1 x 1 convolutions, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import Body, function_module
from tuner.backends.cpu.hoist_pooling import with_pooling_hoisted
from tuner.lowering.lower import build_reference
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op

SHAPES = [(2, 6, 7, 8), (5, 6, 1, 1), (1, 5, 1, 1)]

MOVED: dict[str, Body] = {
    "alone": lambda x, w, b: op.nn.avg_pool2d(op.nn.conv2d(x, w), (2, 2), (2, 2)),
    "padding": lambda x, w, b: op.nn.avg_pool2d(op.nn.conv2d(x, w), (3, 3), (2, 2), (1, 1)),
    "bias": lambda x, w, b: op.nn.avg_pool2d(op.add(op.nn.conv2d(x, w), b), (3, 2), (2, 2)),
    "bias first": lambda x, w, b: op.nn.avg_pool2d(op.add(b, op.nn.conv2d(x, w)), (2, 2), (2, 2)),
    "a part of what is split": lambda x, w, b: op.nn.avg_pool2d(
        op.nn.conv2d(op.split(x, 2, axis=3)[1], w), (2, 2), (2, 2)
    ),
    "within": lambda x, w, b: op.nn.relu(
        op.add(op.nn.avg_pool2d(op.nn.conv2d(op.nn.relu(x), w), (2, 2), (2, 2), ceil_mode=True), b)
    ),
}
STAY: dict[str, Body] = {
    "bias and padding": lambda x, w, b: op.nn.avg_pool2d(
        op.add(op.nn.conv2d(x, w), b), (2, 2), (2, 2), (1, 1), count_include_pad=True
    ),
    "ReLU between": lambda x, w, b: op.nn.avg_pool2d(op.nn.relu(op.nn.conv2d(x, w)), (2, 2), (2, 2)),
    "no product in the sum": lambda x, w, b: op.nn.avg_pool2d(op.add(x, op.nn.relu(x)), (2, 2), (2, 2)),
    "another pool": lambda x, w, b: op.nn.max_pool2d(op.nn.conv2d(x, w), (2, 2), (2, 2)),
    "as many pixels": lambda x, w, b: op.nn.avg_pool2d(op.nn.conv2d(x, w), (3, 3), (1, 1), (1, 1)),
    "read twice": lambda x, w, b: (
        lambda y: op.add(op.nn.avg_pool2d(y, (2, 2), (2, 2)), op.nn.max_pool2d(y, (2, 2), (2, 2)))
    )(op.nn.conv2d(x, w)),
    "added to itself": lambda x, w, b: (lambda y: op.nn.avg_pool2d(op.add(y, y), (2, 2), (2, 2)))(
        op.nn.conv2d(x, w)
    ),
}


@pytest.mark.parametrize("body", MOVED.values(), ids=MOVED)
def test_a_pool_goes_first_and_results_stay(body: Body) -> None:
    module = function_module(SHAPES, body)
    moved = module.clone()
    moved.update_func(module.get_global_var("main"), with_pooling_hoisted(module["main"]))
    names = _operators(moved["main"])
    assert names.index("relax.nn.avg_pool2d") < names.index("relax.nn.conv2d")
    assert sorted(names) == sorted(_operators(module["main"]))
    target = resolve_target("cpu", num_threads=1)
    inputs = random_inputs(input_specs(module), seed=2)
    found, expected = (run_module(build_reference(each, target), inputs, target) for each in (moved, module))
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("body", STAY.values(), ids=STAY)
def test_what_would_change_or_cost_more_stays(body: Body) -> None:
    main = function_module(SHAPES, body)["main"]
    assert with_pooling_hoisted(main) is main


def _operators(function: Any) -> Sequence[str]:
    calls = [binding.value for block in function.body.blocks for binding in block.bindings]
    return [call.op.name for call in calls if isinstance(call, relax.Call)]
