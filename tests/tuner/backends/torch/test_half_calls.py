"""Calls of torch in bfloat16: recognised, refused, and right."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module, part_of, partition_module
from tuner.backends.registry import make_backend
from tuner.backends.torch.half_calls import recognise_half_call
from tuner.graph import DataflowGraph
from tuner.graph.relax_types import WEIGHTS_ATTRIBUTE
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

op = relax.op


def wide(value: Any) -> Any:
    return op.astype(value, "float32")


def half(value: Any) -> Any:
    return op.astype(value, "bfloat16")


def linear(x: Any, w: Any, b: Any) -> Any:
    return half(op.add(op.matmul(wide(x), op.permute_dims(wide(w))), wide(b)))


def product(x: Any, y: Any) -> Any:
    return half(op.matmul(wide(x), wide(y)))


def convolution(x: Any, w: Any) -> Any:
    return half(op.nn.conv2d(wide(x), wide(w), padding=1, strides=2))


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = op.matmul(wide(q), op.permute_dims(wide(k), [0, 1, 3, 2]))
    scores = op.add(op.multiply(scores, relax.const(0.25)), mask)
    return half(op.matmul(op.nn.softmax(scores), wide(v)))


def plain_attention(q: Any, k: Any, v: Any) -> Any:
    return half(op.matmul(op.nn.softmax(op.matmul(wide(q), wide(k))), wide(v)))


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    return half(op.nn.layer_norm(wide(x), wide(gamma), wide(beta), axes=[-1]))


CASES = {
    "linear": (linear, [(2, 5, 24), (16, 24), (16,)]),
    "product": (product, [(3, 4, 8), (3, 8, 6)]),
    "convolution": (convolution, [(2, 3, 9, 9), (4, 3, 3, 3)]),
    "attention": (attention, [(1, 2, 7, 8), (1, 2, 5, 8), (1, 2, 5, 8), (7, 5)]),
    "plain attention": (plain_attention, [(2, 7, 8), (2, 8, 5), (2, 5, 8)]),
    "layer norm": (layer_norm, [(3, 5, 24), (24,), (24,)]),
    "softmax": (lambda x: half(op.nn.softmax(wide(x))), [(4, 9)]),
    "log softmax": (lambda x: half(op.nn.log_softmax(wide(x))), [(4, 9)]),
}

TYPES = {"attention": ["bfloat16"] * 3 + ["float32"]}
"""Of operands, where not all are of bfloat16: a mask may be wide."""

PACKED = ("linear", "convolution")

LABELS = {
    "linear": "half_linear_bias",
    "attention": "half_attention",
    "plain attention": "half_attention",
    "layer norm": "half_layer_norm",
    "softmax": "half_softmax",
    "log softmax": "half_log_softmax",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_call_of_bfloat16_computes_what_its_operators_do(case: str, packed: bool) -> None:
    body, shapes = CASES[case]
    torch_backend, target = make_backend("torch"), resolve_target("cpu", num_threads=1)
    module = partition_module("torch", shapes, body, TYPES.get(case, ["bfloat16"] * len(shapes)))
    if packed:
        weights = list(range(1, len(shapes)))
        variable = module.get_global_var("part")
        module.update_func(variable, module["part"].with_attr(WEIGHTS_ATTRIBUTE, weights))
    assert torch_backend.refusal(part_of(module), target) is None
    lowered = lower_module(module, [torch_backend], target)
    assert ("call_packed" in lowered["main"].script()) == (packed and case in PACKED)
    inputs = random_inputs(input_specs(module), seed=0)
    results = run_module(build_module(lowered, target), inputs, target)
    expected = run_module(build_reference(module, target), inputs, target)
    assert relative_error(results, expected) < 1e-2


def test_a_rule_proposes_the_call_with_its_conversions() -> None:
    for case, label in LABELS.items():
        body, shapes = CASES[case]
        types = TYPES.get(case, ["bfloat16"] * len(shapes))
        graph = DataflowGraph.from_function(function_module(shapes, body, types))
        rule = make_backend("torch").rule(resolve_target("cpu", num_threads=1))
        found = {each.label: tuple(each.inside) for each in rule.find_candidates(graph)}
        assert found[label] == tuple(range(len(graph)))


@pytest.mark.parametrize(
    ("body", "dtypes"),
    [
        (lambda x, w: half(op.nn.gelu(op.matmul(wide(x), wide(w)))), ["bfloat16"] * 2),  # rounded too early
        (lambda x, w: half(op.matmul(x, wide(w))), ["float32", "bfloat16"]),
        (lambda x, w: op.matmul(wide(x), wide(w)), ["bfloat16"] * 2),
        (lambda x, w: half(op.matmul(wide(x), wide(w))), ["float16"] * 2),
    ],
)
def test_other_types_and_activations_are_no_such_call(body: Any, dtypes: list[str]) -> None:
    assert recognise_half_call(part_of(partition_module("torch", [(4, 4), (4, 4)], body, dtypes))) is None
