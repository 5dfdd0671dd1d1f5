"""Attention from rows to rows equals NumPy's, however its operands lie, and is proposed as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module, part_of, partition_module
from tuner.backends.cpu.attention import Attention
from tuner.graph.dataflow import DataflowGraph
from tuner.lowering.lower import build_module, lower_module
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op

BATCH, HEADS, DEPTH = 2, 3, 32


def _heads(rows: Any, length: int) -> Any:
    return op.permute_dims(op.reshape(rows, (BATCH, length, HEADS, DEPTH)), [0, 2, 1, 3])


def _mixed(rows: Sequence[Any], mask: Any, queries: int, keys: int) -> Any:
    query, key, value = (
        _heads(each, length) for each, length in zip(rows, (queries, keys, keys), strict=True)
    )
    scores = op.multiply(op.matmul(query, op.permute_dims(key, [0, 1, 3, 2])), relax.const(0.25, "float32"))
    scores = scores if mask is None else op.add(scores, mask)
    mixed = op.permute_dims(op.matmul(op.nn.softmax(scores), value), [0, 2, 1, 3])
    return op.reshape(mixed, (BATCH, queries, HEADS * DEPTH))


def _expected(rows: Sequence[np.ndarray], mask: np.ndarray | float) -> np.ndarray:
    query, key, value = (
        each.astype("float64").reshape(BATCH, -1, HEADS, DEPTH).transpose(0, 2, 1, 3) for each in rows
    )
    mixed = softmax(query @ key.swapaxes(2, 3) / 4 + mask, -1) @ value
    return mixed.transpose(0, 2, 1, 3).reshape(BATCH, -1, HEADS * DEPTH)


def _run(module: Any, inputs: Sequence[np.ndarray], threads: int = 1) -> np.ndarray:
    target = resolve_target("cpu", num_threads=threads)
    assert Attention().refusal(part_of(module), target) is None
    return run_module(build_module(lower_module(module, [Attention()], target), target), inputs, target)[0]


def _arrays(shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def _close(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-6) -> bool:
    return bool(np.abs(found - expected).max() <= tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("queries", "keys", "mask"),
    [
        (12, 32, None),
        (7, 45, (1, 1, 1, 1)),
        (1, 16, (1, 0, 0, 1)),
        (3, 130, (0, 0)),
        (5, 17, None),
        (16, 16, (1, 0, 1, 1)),
    ],
)
def test_it_equals_numpys_attention(queries: int, keys: int, mask: Sequence[int] | None) -> None:
    full = (BATCH, HEADS, queries, keys)
    shapes = [(BATCH, queries, HEADS * DEPTH), *[(BATCH, keys, HEADS * DEPTH)] * 2]
    if mask is not None:
        # 1 for an axis that the mask has, 0 for one along which it is the same.
        extents = full[-len(mask) :] if len(mask) == 4 else full[2:]
        shapes.append(tuple(e if has or len(mask) == 2 else 1 for e, has in zip(extents, mask, strict=True)))
    inputs = _arrays(shapes)
    module = partition_module(
        "attention", shapes, lambda *given: _mixed(given[:3], given[3] if mask else None, queries, keys)
    )
    found = _run(module, inputs, threads=1 + keys % 2)
    assert _close(found, _expected(inputs[:3], inputs[3] if mask else 0.0))


def _split(packed: Any) -> Any:
    parts = op.split(packed, 3, axis=-1)
    return _mixed([parts[index] for index in range(3)], None, 20, 20)


def test_one_tensor_may_hold_queries_keys_and_values() -> None:
    shapes = [(BATCH, 20, 3 * HEADS * DEPTH)]
    inputs = _arrays(shapes)
    found = _run(partition_module("attention", shapes, _split), inputs)
    assert _close(found, _expected(np.split(inputs[0], 3, -1), 0.0))


def test_it_is_proposed_from_the_split_to_the_row() -> None:
    graph = DataflowGraph.from_function(function_module([(BATCH, 20, 3 * HEADS * DEPTH)], _split))
    rule = Attention().rule(resolve_target("cpu", num_threads=1))
    assert graph.all_indices in {candidate.inside for candidate in rule.find_candidates(graph)}


def test_scores_that_are_left_out_count_for_nothing_and_large_ones_do_not_overflow() -> None:
    shapes = [(BATCH, 18, HEADS * DEPTH)] * 3 + [(18, 18)]
    inputs = _arrays(shapes)
    inputs[0] *= 100
    inputs[3][:] = np.triu(np.full((18, 18), -np.inf, "float32"), 1)
    module = partition_module("attention", shapes, lambda *given: _mixed(given[:3], given[3], 18, 18))
    # Scores of some hundred have four digits behind the point in single precision.
    assert _close(_run(module, inputs), _expected(inputs[:3], inputs[3]), tolerance=2e-4)


@pytest.mark.parametrize("fault", ["no row", "few keys"])
def test_it_refuses_what_it_cannot_run(fault: str) -> None:
    keys = 8 if fault == "few keys" else 16
    shapes = [(BATCH, keys, HEADS * DEPTH)] * 3

    def body(*rows: Any) -> Any:
        mixed = _mixed(rows, None, keys, keys)
        return op.nn.relu(mixed) if fault == "no row" else mixed

    part = part_of(partition_module("attention", shapes, body))
    assert Attention().refusal(part, resolve_target("cpu", num_threads=1))
