"""Products of bfloat16 equal those of float32, whatever follows them, but for one rounding at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from scipy.special import erf
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module, part_of, partition_module
from tuner.backends.cpu.packed_matmul import PackedMatmul
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE
from tuner.lowering.lower import build_module, lower_module
from tuner.targets.resolution import resolve_target
from tuner.targets.vector_registers import multiplies_bfloat16

pytestmark = pytest.mark.tvm

op = relax.op
Body = Callable[..., Any]
HALF = ml_dtypes.bfloat16
HERE = resolve_target("cpu").text
OTHER = resolve_target(f"llvm -mcpu={'sapphirerapids' if 'znver4' in HERE else 'znver4'}", num_threads=1)
"""A processor with instructions for bfloat16."""

needs_units = pytest.mark.skipif(
    not multiplies_bfloat16(resolve_target("cpu", num_threads=1)),
    reason="this processor has no instructions for bfloat16 (avx512_bf16)",
)


def wide(value: Any) -> Any:
    return op.astype(value, "float32")


def half(value: Any) -> Any:
    return op.astype(value, "bfloat16")


def product(x: Any, w: Any) -> Any:
    return half(op.matmul(wide(x), wide(w)))


ACTIVATIONS: dict[str, tuple[Body | None, Callable[[np.ndarray], np.ndarray]]] = {
    "none": (None, lambda x: x),
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "gelu": (op.nn.gelu, lambda x: x * (1 + erf(x / np.sqrt(2))) / 2),
    "silu": (op.nn.silu, lambda x: x / (1 + np.exp(-x))),
    "tanh": (op.tanh, np.tanh),
}
JOINS: dict[str, tuple[Body | None, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "none": (None, lambda x, _: x),
    "sum": (op.add, np.add),
    "product on the left": (lambda x, y: op.multiply(y, x), np.multiply),
}
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "rows and columns that tiles divide": ((1, 16, 24), 64),
    "neither": ((13, 8), 40),
    "few rows, one vector of columns": ((2, 3, 6), 16),
    "one row": ((1, 14), 1000),
    "more data than a block": ((1, 1100, 1200), 32),
}


def arrays(shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(HALF) for shape in shapes]


def run(
    shapes: Sequence[Sequence[int]], body: Body, inputs: Sequence[np.ndarray], threads: int
) -> np.ndarray:
    target = resolve_target("cpu", num_threads=threads)
    module = partition_module("packed_matmul", shapes, body, ["bfloat16"] * len(shapes))
    assert PackedMatmul().refusal(part_of(module), target) is None
    lowered = lower_module(module, [PackedMatmul()], target)
    assert "tessel_dot_bfloat16" in lowered.script()
    (found,) = run_module(build_module(lowered, target), inputs, target)
    return np.asarray(found).astype("float64")


def rounded(values: np.ndarray) -> np.ndarray:
    return values.astype("float32").astype(HALF).astype("float64")


def is_close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Say whether each number is within two units of its last place, or a little of the largest."""
    unit = np.maximum(np.abs(expected) * 2**-7, np.abs(expected).max() * 2**-10)
    return bool((np.abs(found - expected) <= unit).all())


@needs_units
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transposed", [False, True], ids=["as it lies", "transposed"])
def test_it_equals_the_product_that_is_rounded_once(shape: str, transposed: bool) -> None:
    data, columns = SHAPES[shape]
    shapes = [data, (columns, data[-1]) if transposed else (data[-1], columns)]
    inputs = arrays(shapes)

    def body(x: Any, w: Any) -> Any:
        return half(op.matmul(wide(x), op.permute_dims(wide(w)) if transposed else wide(w)))

    x, w = (each.astype("float64") for each in inputs)
    assert is_close(run(shapes, body, inputs, 1 + transposed), rounded(x @ (w.T if transposed else w)))


@needs_units
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("join", JOINS)
def test_what_follows_is_done_as_results_leave_the_registers(activation: str, join: str) -> None:
    if activation != "none" and join == "sum":
        return  # recognised, but no rule proposes it
    shapes = [(2, 9, 20), (48, 20), (48,), (2, 9, 48)][: 3 + (join != "none")]
    (activate, activated), (connect, connected) = ACTIVATIONS[activation], JOINS[join]
    inputs = arrays(shapes)

    def body(x: Any, w: Any, b: Any, *others: Any) -> Any:
        y = half(op.add(op.matmul(wide(x), op.permute_dims(wide(w))), wide(b)))
        y = y if activate is None else half(activate(wide(y)))
        return y if connect is None else half(connect(wide(y), wide(others[0])))

    x, w, b, *others = (each.astype("float64") for each in inputs)
    expected = activated(x @ w.T + b)
    assert is_close(run(shapes, body, inputs, 1), connected(expected, others[0]) if others else expected)


@needs_units
def test_nothing_is_rounded_before_the_end() -> None:
    shapes = [(1, 16), (16, 16), (1, 16)]
    x, w, y = arrays(shapes)
    x[:], w[:], y[:] = 0, 0, -256
    x[0, :2], w[0], w[1] = 1, 256, 0.75  # the sum is 256.75, which in bfloat16 is 256

    def body(x: Any, w: Any, y: Any) -> Any:
        return half(op.add(wide(half(op.matmul(wide(x), wide(w)))), wide(y)))

    assert np.array_equal(run(shapes, body, [x, w, y], 1), np.full((1, 16), 0.75))


@needs_units
def test_numbers_that_are_none_or_infinite_pass() -> None:
    shapes = [(4, 16), (16, 32)]
    x, w = arrays(shapes)
    x[0, 3], x[1, 5], x[2, 7] = np.nan, np.inf, -np.inf
    found = run(shapes, product, [x, w], 1)
    assert np.isnan(found[0]).all()
    assert np.isinf(found[1:3]).all()
    assert np.isfinite(found[3]).all()


REFUSED: dict[str, tuple[Sequence[Sequence[int]], str, Body, str]] = {
    "terms": ([(8, 7), (7, 32)], "bfloat16", product, "odd number"),
    "columns": ([(8, 8), (8, 9)], "bfloat16", product, "fewer than"),
    "matrices": ([(2, 8, 8), (2, 8, 32)], "bfloat16", product, "not one matrix"),
    "data": (
        [(8, 8), (8, 32)],
        "bfloat16",
        lambda x, w: half(op.matmul(op.permute_dims(wide(x)), wide(w))),
        "transposed",
    ),
    "type": ([(8, 8), (8, 32)], "float16", product, "not one product"),
    "an operator that does not round": (
        [(8, 8), (8, 32)],
        "bfloat16",
        lambda x, w: half(op.nn.relu(op.matmul(wide(x), wide(w)))),
        "not one product",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_kernel_is_refused(name: str) -> None:
    shapes, dtype, body, said = REFUSED[name]
    part = part_of(partition_module("packed_matmul", shapes, body, [dtype] * 2))
    assert said in str(PackedMatmul().refusal(part, OTHER))


def test_a_processor_without_the_instructions_is_proposed_nothing() -> None:
    shapes = [(8, 8), (8, 32)]
    narrow = resolve_target("llvm -mcpu=skylake-avx512", num_threads=1)
    part = part_of(partition_module("packed_matmul", shapes, product, ["bfloat16"] * 2))
    assert "does not multiply bfloat16" in str(PackedMatmul().refusal(part, narrow))
    main = function_module(shapes, product, ["bfloat16"] * 2)["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    graph = DataflowGraph.from_function(tvm.IRModule({"main": main}))
    proposed = {each.label: tuple(each.inside) for each in PackedMatmul().rule(OTHER).find_candidates(graph)}
    assert proposed["half_product"] == tuple(range(len(graph)))
    assert {each.label for each in PackedMatmul().rule(narrow).find_candidates(graph)} == {"product"}


def test_the_instruction_stands_in_the_loop_of_every_kernel_of_a_module() -> None:
    shapes = [(6, 32), (32, 32)]
    lowered = lower_module(
        partition_module("packed_matmul", shapes, product, ["bfloat16"] * 2), [PackedMatmul()], OTHER
    )
    assembly = _assembly(build_module(lowered, OTHER))
    assert assembly.count("vdpbf16ps") >= 6 * 2
    assert "callq\ttessel_dot" not in assembly


def _assembly(built: Any) -> str:
    modules = [built.mod if hasattr(built, "mod") else built]
    texts = []
    while modules:
        module = modules.pop()
        modules += list(module.imports)
        if module.kind == "llvm":
            texts.append(module.inspect_source("asm"))
    return "\n".join(texts)
