"""A GPU's candidates are those that TVM takes, without a device; what is beyond its limits, TVM refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm

from cost_model.draft.decision_space import DecisionSpace, Rows
from cost_model.draft.draft_model import DraftTrials
from cost_model.draft.gpu_blocks import gpu_blocks, is_launchable, sample_launchable
from tuner.backends.metaschedule.backend import build_trial, tuning_target
from tuner.backends.metaschedule.candidates import KernelCandidates, candidates_of
from tuner.backends.metaschedule.proposers import (
    DRAFT,
    LANGUAGE,
    NEIGHBOUR,
    RANDOM,
    Knowledge,
    new_proposer,
)
from tuner.backends.metaschedule.traces import plain_json, read_trace
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.lowering.gpu_code import build_with_launches, compile_built
from tuner.targets.cuda_compiler import compiler_obstacle
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

TARGETS = ("nvidia/nvidia-a100", "nvidia/nvidia-h200")
"""Of sm_80 and sm_90a."""

KERNELS = (
    "dense:64x60x256,relu",
    "product:8x49x64x49",
    "convolution:16x28x32x3x1",
    "depthwise:96x28x3x2",
)


@cache
def on_gpu(kernel: str, target: str) -> KernelCandidates:
    return candidates_of(kernel_module(parse_kernel(kernel)), tuning_target(resolve_target(target)))


@cache
def only_space(kernel: str, target: str) -> DecisionSpace:
    (space,) = on_gpu(kernel, target).spaces
    return space


def accepted(kernel: str, target: str, rows: Rows) -> list[bool]:
    return [on_gpu(kernel, target).make(0, row) is not None for row in rows]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_launchable_tvm_verifies(kernel: str, target: str) -> None:
    space = only_space(kernel, target)
    assert space.limits is not None
    assert space.limits.multiprocessors > 100
    assert sorted(space.sketch_levels) == [0, 2, 3]
    rows = sample_launchable(space, 3, np.random.default_rng(KERNELS.index(kernel)))
    assert len(rows) == 3
    assert all(accepted(kernel, target, rows))
    made = on_gpu(kernel, target).make(0, rows[0])
    assert made is not None
    assert made.row is not None
    assert (made.row == rows[0]).all()
    read = read_trace(plain_json(made.schedule.trace.as_json()))
    assert read is not None
    assert (read.kinds, read.is_gpu) == (space.kinds, True)
    assert (space.sketch_levels.index(read.sketch_level), read.decisions) == space.decisions_of(rows[0])


@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[2]])
def test_what_is_beyond_one_limit_tvm_refuses(kernel: str) -> None:
    """Each limit is wrong by itself: were it missing here, TVM would refuse candidates that we call legal."""
    target = TARGETS[0]
    space = only_space(kernel, target)
    limits = space.limits
    assert limits is not None
    drawn = space.sample(60_000, np.random.default_rng(0))
    beyond = {
        "fewer threads": replace(limits, min_threads=1),
        "more threads": replace(limits, max_threads=8192),
        "more shared memory": replace(limits, shared_bytes=limits.shared_bytes * 9 // 8),
    }
    for name, larger in beyond.items():
        extra = drawn[is_launchable(replace(space, limits=larger), drawn) & ~is_launchable(space, drawn)]
        assert len(extra) >= 2, name
        assert not any(accepted(kernel, target, extra[:2])), name


def test_what_is_fetched_once_is_not_fetched_ahead() -> None:
    kernel, target = KERNELS[3], TARGETS[0]
    space = only_space(kernel, target)
    assert space.limits is not None
    drawn = space.sample(60_000, np.random.default_rng(0))
    blocks = gpu_blocks(space, drawn)
    is_within = (blocks.threads >= 32) & (blocks.threads <= 1024) & (blocks.shared_bytes <= 48 * 1024)
    once = drawn[is_within & (blocks.fetches == 1) & (blocks.virtual_threads <= 8)]
    assert not any(accepted(kernel, target, once[once[:, 0] > 0][:2]))
    assert all(accepted(kernel, target, once[once[:, 0] == 0][:2]))


def trials_of(kernel: str, target: str, count: int) -> DraftTrials:
    """Return launchable candidates that are the faster, the nearer they are to 256 threads."""
    space = only_space(kernel, target)
    rows = np.unique(sample_launchable(space, count, np.random.default_rng(1)), axis=0)
    away = np.abs(np.log2(gpu_blocks(space, rows).threads) - 8)
    return DraftTrials(kernel, space, rows, tuple(float(each) for each in 10 * np.exp(away)))


@pytest.mark.parametrize("proposer", [DRAFT, NEIGHBOUR, RANDOM])
def test_every_proposal_for_a_gpu_is_legal(proposer: str) -> None:
    target = TARGETS[1]
    known = trials_of("dense:128x64x256,relu", target, 60)
    candidates = on_gpu(KERNELS[0], target)
    found = new_proposer(proposer, "here", candidates, Knowledge((known,)), seed=0)
    first = found.propose(4)
    found.learn(first, [12.0, 11.0, 13.0, 14.0][: len(first)])
    proposed = [*first, *found.propose(4)]
    assert len(proposed) == 8
    rows = np.stack([each.row for each in proposed if each.row is not None])
    assert len(np.unique(rows, axis=0)) == 8
    assert is_launchable(only_space(KERNELS[0], target), rows).all()
    if proposer == DRAFT:
        threads = gpu_blocks(only_space(KERNELS[0], target), rows).threads
        assert np.median(np.abs(np.log2(threads) - 8)) <= 1


def test_the_language_model_says_that_it_knows_no_gpu() -> None:
    with pytest.raises(ValueError, match="processors alone"):
        new_proposer(LANGUAGE, "here", on_gpu(KERNELS[0], TARGETS[0]), Knowledge(), seed=0)


@pytest.mark.slow
@pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle()))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_proposals_compile_to_kernels_that_the_device_can_launch(kernel: str, target: str) -> None:
    known = trials_of(kernel, target, 60)
    proposer = new_proposer(DRAFT, "here", on_gpu(kernel, target), Knowledge((known,)), seed=0)
    tuned_for: Any = tuning_target(resolve_target(target))
    num_built = 0
    for candidate in proposer.propose(6):
        try:
            built = build_with_launches(
                lambda module=candidate.schedule.mod: build_trial(module, tuned_for, None)
            )
        except tvm.error.InternalError as error:
            # TVM cannot bound some vectors of uneven extents; while tuning, that is a failed trial.
            if "eval_vec_" not in str(error):
                raise
            continue
        code = compile_built(built, resolve_target(target))
        assert code.excesses == ()
        assert code.kernels
        assert candidate.row is not None
        (threads,) = gpu_blocks(only_space(kernel, target), candidate.row[None]).threads
        assert max(each.threads for each in code.kernels) == threads
        num_built += 1
        if num_built == 2:
            return
    pytest.fail(f"{num_built} of 6 proposals can be built")
