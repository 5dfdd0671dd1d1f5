"""Traces as records keep them say the same as TVM's own schedules; what cannot be read is left out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kernel_spaces import space_of
from tvm.s_tir import meta_schedule

from cost_model.draft.decision_space import (
    LocationDecision,
    ThreadsDecision,
    TileDecision,
    UnrollDecision,
)
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.traces import plain_json, read_trace, tiled_kernel

pytestmark = pytest.mark.tvm


def test_a_row_that_a_gpu_spreads_over_threads_is_read() -> None:
    trace = [
        ["GetSBlock", [], ["sum", "main"], ["b0"]],
        ["SampleCategorical", [], [[4, 8, 512], [0.3, 0.3, 0.4]], ["v1"]],
        ["GetLoops", ["b0"], [], ["l2", "l3"]],
        ["SampleCategorical", [], [[0, 16, 1024], [0.3, 0.3, 0.4]], ["v4"]],
    ]
    read = read_trace([trace, [[1, 2], [3, 0]]])
    assert read is not None
    assert (read.block, read.decisions) == ("sum", (2, 0))
    assert read.kinds == (ThreadsDecision((4, 8, 512)), UnrollDecision((0, 16, 1024)))
    # Without threads it is a processor's loop, which is not tiled.
    assert read_trace([[trace[0], *trace[2:]], [[2, 0]]]) is None


def test_a_convolution_is_read_with_its_strides() -> None:
    space = space_of("convolution:8x14x12x3x2")
    kernel = tiled_kernel(space.module, "conv2d_nchw")
    assert kernel is not None
    assert [loop.extent for loop in kernel.loops] == [1, 12, 7, 7, 8, 3, 3]
    assert [loop.is_reduction for loop in kernel.loops] == [False] * 4 + [True] * 3
    image, weights, result = kernel.accesses
    assert image.steps[2:] == ((0, 0, 2, 0, 0, 1, 0), (0, 0, 0, 2, 0, 0, 1))
    assert weights.steps[0] == (0, 1, 0, 0, 0, 0, 0)
    assert [each.is_written for each in kernel.accesses] == [False, False, True]
    assert result.element_bytes == 4
    assert kernel.num_operations == space_operations(12, 7, 8, 3)


def space_operations(outputs: int, extent: int, channels: int, size: int) -> float:
    return 2.0 * outputs * extent**2 * channels * size**2


@pytest.mark.parametrize("name", ["dense:13x48x64,relu", "convolution:8x14x12x3x2", "product:2x10x16x49"])
def test_a_measured_trace_says_its_decisions(name: str) -> None:
    space = space_of(name)
    candidates = candidates_of(space.module, space.tuned_for)
    ((decisions,)) = (candidates.spaces,)
    assert len(decisions) == 1
    rng = np.random.default_rng(0)
    for _ in range(5):
        drawn = candidates.sample(rng)
        assert drawn is not None
        assert drawn.row is not None
        entry = meta_schedule.database.TuningRecord(
            drawn.schedule.trace, meta_schedule.database.Workload(space.module), None, space.tuned_for, []
        )
        # As records keep it: postprocessors' instructions are in it, and are not read.
        read = read_trace(json.loads(json.dumps(plain_json(entry.as_json()[0]))))
        assert read is not None
        sketch, decided = decisions[0].decisions_of(drawn.row)
        assert read.decisions == decided
        assert read.kinds == decisions[0].kinds
        assert read.sketch_level == decisions[0].sketch_levels[sketch]


def test_kinds_of_decisions_are_told_apart() -> None:
    space = space_of("convolution:8x14x12x3x2")
    (found,) = candidates_of(space.module, space.tuned_for).spaces
    assert [type(kind) for kind in found.kinds] == [*[TileDecision] * 7, UnrollDecision, LocationDecision]
    assert found.kinds[-1] == LocationDecision(4 * 4 + 3 * 2)
    assert sorted(found.sketch_levels) == [0, 1, 2]


@pytest.mark.parametrize(
    "trace",
    [
        None,
        [],
        [[], []],
        [[["SamplePerfectTile", ["l0"], [4, 64], ["v0"]]], []],
        [[["Annotate", ["b0", '"SSRSR"'], ["meta_schedule.tiling_structure"], []]], []],
        [[["SampleFooBar", [], [], []]], [[0, 1]]],
        [[1, 2], "x"],
    ],
)
def test_what_is_not_tiled_in_levels_is_left_out(trace: object) -> None:
    assert read_trace(trace) is None
