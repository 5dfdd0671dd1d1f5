"""LLVM is told what it compiles wrongly without, on the processors where it does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import partition_module
from tuner.backends.registry import make_backend
from tuner.lowering.lower import build_module, lower_module
from tuner.targets.resolution import code_options, measuring_obstacle, resolve_target, tvm_target

pytestmark = pytest.mark.tvm

op = relax.op


@pytest.mark.parametrize(
    ("processor", "is_told"),
    [("znver4", True), ("znver5", True), ("znver3", False), ("x86-64-v4", False), ("haswell", False)],
)
def test_only_newer_zen_processors_are_told(processor: str, is_told: bool) -> None:
    target = resolve_target(f"llvm -mcpu={processor}", num_threads=1)
    assert bool(code_options(json.loads(target.tvm_json))) == is_told
    assert ("cl-opt" in dict(tvm_target(target).export())) == is_told


CASES = [(6, 24, 1, 5), (6, 24, 2, 5), (7, 24, 1, 5), (3, 40, 1, 2), (5, 24, 3, 2)]


@pytest.mark.parametrize(("pieces", "width", "rows", "first"), CASES)
@pytest.mark.parametrize("processor", ["znver4", "x86-64-v4", "haswell"])
def test_joined_pieces_of_products_and_tensors_stay_what_they_are(
    pieces: int, width: int, rows: int, first: int, processor: str
) -> None:
    target = resolve_target(f"llvm -mcpu={processor}", num_threads=1)
    if measuring_obstacle(target) is not None:
        pytest.skip(f"this machine's processor does not run code for {processor}")
    shapes = [(rows, 2, width)] * (2 * pieces)

    def body(*parts: Any) -> Any:
        left, right = parts[:pieces], parts[pieces:]
        halves = (
            [op.multiply(each, parts[0]) if place >= first else each for place, each in enumerate(left)],
            [op.multiply(each, parts[1]) if place <= first else each for place, each in enumerate(right)],
        )
        return op.concat([op.concat(half, axis=0) for half in halves], axis=2)

    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    module = lower_module(partition_module("tvm", shapes, body), [make_backend("tvm")], target)
    (found,) = run_module(build_module(module, target), inputs, target)
    factors = [place >= first for place in range(pieces)], [place <= first for place in range(pieces)]
    halves = []
    for number, parts in enumerate((inputs[:pieces], inputs[pieces:])):
        scaled = [
            each * inputs[number] if by else each for each, by in zip(parts, factors[number], strict=True)
        ]
        halves.append(np.concatenate(scaled))
    expected = np.concatenate(halves, axis=2)
    assert np.array_equal(found, expected)
