"""What MetaSchedule may propose for a GPU, drawn at random, computes what NumPy does, operator by type.

Candidates are built as trials are, and run with their accesses checked: a race, a word that nobody wrote, or
an index out of bounds fails the test, whatever the numbers are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from cuda.bindings import nvrtc
from tvm import relax
from tvm.s_tir import meta_schedule

from cost_model.draft.gpu_decision_features import within_limits
from tests.software_gpu.device_kernels import CASES, TOLERANCES, Array, drawn
from tuner.backends.metaschedule import candidates as candidate_rows
from tuner.backends.metaschedule.backend import build_trial, tuning_target, tuning_tasks
from tuner.backends.metaschedule.candidates import Candidate, candidates_of
from tuner.backends.metaschedule.traces import plain_json, read_trace
from tuner.backends.tvm.native import fuse_as_tvm_does
from tuner.graph.legalization import legalize_operators
from tuner.targets.resolution import resolve_target

TRACES = 2
"""Candidates of each operator in each type that run."""

_DRAWN = 8
"""Candidates that are drawn for those: TVM refuses to compile some, as it would a trial's."""

NOT_DRAWN = {
    "product of a transposed": "two kernels, each of which another case has",
    "attention": "TVM's rules fail on it: an index out of bounds",
    "variance": "TVM's rules fail on it: loops that are no chain",
}


def task_of(name: str, arrays: list[Array], dtype: str) -> Any:
    """Return the one kernel that an operator becomes."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"input{number}", relax.TensorType(each.shape, dtype)) for number, each in enumerate(arrays)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(CASES[name].make(*inputs)))
        builder.emit_func_output(result)
    tasks = tuning_tasks(fuse_as_tvm_does(legalize_operators()(builder.get())))
    assert len(tasks) == 1
    return tasks[0]


def candidates(task: Any, count: int, seed: int) -> list[Candidate]:
    """Return random candidates that a trial could be."""
    space, rng = candidates_of(task, tuning_target(resolve_target("cuda"))), np.random.default_rng(seed)
    found = (space.sample(rng) for _ in range(64 * count))
    return [each for each, _ in zip(filter(None, found), range(count), strict=False)]


def run(candidate: Candidate, arrays: list[Array], like: Array) -> Array:
    """Return what a candidate computes."""
    built = build_trial(candidate.schedule.mod, tuning_target(resolve_target("cuda")), None)
    device = tvm.cuda(0)
    tensors = [tvm.runtime.tensor(each, device) for each in (*arrays, np.zeros_like(like))]
    built[built.entry_name](*tensors)
    return np.asarray(tensors[-1].numpy())


def error_of(found: Array, expected: Array) -> float:
    scale = max(1e-6, float(np.abs(expected).max()))
    return float(np.abs(found.astype(np.float64) - expected).max()) / scale


def case_of(name: str, dtype: str) -> tuple[list[Array], Array, Array]:
    """Return inputs, what NumPy computes of them, and an array like the result."""
    arrays = drawn(CASES[name], name, dtype)
    expected = CASES[name].expected(*(each.astype(np.float64) for each in arrays))
    result = CASES[name].result or dtype
    return arrays, expected, np.zeros(expected.shape, ml_dtypes.bfloat16 if result == "bfloat16" else result)


def parameters() -> Iterator[tuple[str, str]]:
    for name, case in CASES.items():
        for dtype in case.types:
            if name not in NOT_DRAWN:
                yield name, dtype


def test_there_are_200_operators_and_types() -> None:
    assert len(list(parameters())) >= 200


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), sorted(parameters()))
def test_candidates_compute_what_numpy_does(name: str, dtype: str) -> None:
    arrays, expected, like = case_of(name, dtype)
    drawn_ones = candidates(task_of(name, arrays, dtype), _DRAWN, zlib.crc32(f"{name} {dtype}".encode()))
    ran = 0
    for each in drawn_ones:
        try:
            found = run(each, arrays, like)
        except tvm.error.InternalError:  # of TVM's own passes
            continue
        assert error_of(found, expected) <= TOLERANCES[dtype], each.schedule.trace
        ran += 1
        if ran == TRACES:
            return
    assert ran


@pytest.mark.slow
def test_rows_say_what_tvm_measures_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate's record reads back as its row; beyond the limits TVM takes none, within them most."""
    arrays, _, _ = case_of("product", "float32")
    task, tuned_for = task_of("product", arrays, "float32"), tuning_target(resolve_target("cuda"))
    found, rng = candidates_of(task, tuned_for), np.random.default_rng(0)
    (space,) = found.spaces
    for each in candidates(task, 4, 0):
        assert each.row is not None
        workload = meta_schedule.database.Workload(task)
        entry = meta_schedule.database.TuningRecord(each.schedule.trace, workload, None, tuned_for, [])
        read = read_trace(json.loads(json.dumps(plain_json(entry.as_json()[0]))))
        sketch, decisions = space.decisions_of(each.row)
        assert read is not None
        assert (read.kinds, read.decisions) == (space.kinds, decisions)
        assert read.sketch_level == space.sketch_levels[sketch]
    rows = space.sample(400, rng)
    allowed = within_limits(space, rows)
    monkeypatch.setattr(candidate_rows, "_are_allowed", lambda space, rows: np.ones(len(rows), dtype=bool))
    assert not any(found.make(0, row) for row in rows[~allowed][:20])
    assert sum(found.make(0, row) is not None for row in rows[allowed][:20]) >= 10


def test_a_candidate_computes_a_product_and_is_caught_without_its_barriers(
    monkeypatch: pytest.MonkeyPatch, reports: Callable[[], str]
) -> None:
    arrays, expected, like = case_of("product", "float32")
    (candidate,) = candidates(task_of("product", arrays, "float32"), 1, 3)
    assert error_of(run(candidate, arrays, like), expected) <= TOLERANCES["float32"]
    compiled = nvrtc._compiled

    def without_barriers(source: str) -> Any:
        assert "__syncthreads();" in source
        return compiled(source.replace("__syncthreads();", ""))

    monkeypatch.setattr(nvrtc, "_compiled", without_barriers)
    run(candidate, arrays, like)
    assert "shared memory" in (found := reports())
    assert "kernel main_kernel" in found
