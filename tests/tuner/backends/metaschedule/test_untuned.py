"""Tuning never ends with a schedule that is slower than the one that a kernel has without tuning."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from kernel_spaces import cpu, space_of
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, meta_schedule
from tvm_ffi import structural_equal

from benchmarks.trials.in_process import builder_and_runner
from tuner.backends.metaschedule.backend import TrialSettings, build_trial, proposed_trials, tune_kernel
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.backends.metaschedule.trials import task_name
from tuner.backends.metaschedule.untuned import keep_untuned, untuned_schedule
from tuner.backends.tvm.cpu_schedule import schedule_for_cpu
from tuner.targets.vector_registers import registers_of

pytestmark = pytest.mark.tvm

KERNELS = ("dense:13x48x64,relu", "product:2x10x16x49", "convolution:8x14x12x3x2", "depthwise:16x14x3x1")


@derived_object
class MadeUpRunner(meta_schedule.runner.PyRunner):
    """Says that the untuned schedule takes 1 ms, and any other so many."""

    def __init__(self, untuned: Any, others_ms: float) -> None:
        super().__init__()
        self.untuned = str(untuned)
        self.others_ms = others_ms
        self.modules: dict[str, str] = {}

    def run(self, runner_inputs: Any) -> list[Any]:
        found = []
        for each in runner_inputs:
            is_untuned = self.modules.pop(str(each.artifact_path)) == self.untuned
            seconds = 1e-3 if is_untuned else self.others_ms * 1e-3
            found.append(meta_schedule.runner.local_runner.LocalRunnerFuture([seconds], None))
        return found


@derived_object
class NamingBuilder(meta_schedule.builder.PyBuilder):
    """Builds nothing, and tells the runner what it was given."""

    def __init__(self, modules: dict[str, str], folder: Path) -> None:
        super().__init__()
        self.modules = modules
        self.folder = folder

    def build(self, build_inputs: Any) -> list[Any]:
        found = []
        for each in build_inputs:
            number = len(list(self.folder.iterdir()))
            (self.folder / str(number)).mkdir()
            path = str(self.folder / str(number) / "none")
            self.modules[path] = str(each.mod)
            found.append(meta_schedule.builder.BuilderResult(path, None))
        return found


@pytest.mark.parametrize("others_ms", [0.5, 3.0])
def test_the_database_has_the_faster_of_tuned_and_untuned(tmp_path: Path, others_ms: float) -> None:
    space = space_of("dense:13x48x64,relu")
    untuned = untuned_schedule(space.module, registers_of(space.tuned_for))
    assert untuned is not None
    runner = MadeUpRunner(untuned.mod, others_ms)
    (tmp_path / "built").mkdir()
    database = meta_schedule.database.MemoryDatabase()
    for is_beside in (False, True):
        tune_kernel(
            space.module,
            space.tuned_for,
            TrialSettings(
                trials=2,
                work_dir=tmp_path / "logs",
                builder=NamingBuilder(runner.modules, tmp_path / "built"),
                runner=runner,
                strategy=proposed_trials("random", task_name(space.module), Knowledge(), seed=1),
                is_beside_untuned=is_beside,
            ),
            database=database,
        )
        best = database.query_schedule(space.module, space.tuned_for, "main")
        is_untuned = structural_equal(best.mod["main"], untuned.mod["main"])
        assert is_untuned == (is_beside and others_ms > 1)  # without it, the slower one stays: the fault


def test_a_real_measurement_of_both_is_in_turn(tmp_path: Path) -> None:
    space = space_of("dense:13x48x64,relu")
    builder, runner = builder_and_runner()
    database = meta_schedule.database.MemoryDatabase()
    assert keep_untuned(space.module, space.tuned_for, database, builder=builder, runner=runner) is None
    settings = TrialSettings(
        trials=2,
        work_dir=tmp_path / "logs",
        builder=builder,
        runner=runner,
        strategy=proposed_trials("random", task_name(space.module), Knowledge(), seed=1),
    )
    tune_kernel(space.module, space.tuned_for, settings, database=database)
    before = database.query_tuning_record(space.module, space.tuned_for, "main")
    ratio = keep_untuned(space.module, space.tuned_for, database, builder=builder, runner=runner)
    assert ratio is not None
    assert 0 < ratio < math.inf
    after = database.query_tuning_record(space.module, space.tuned_for, "main")
    assert (_mean_s(after) < _mean_s(before)) == (ratio < 1)


def _mean_s(record: meta_schedule.database.TuningRecord) -> float:
    """Return what a database ranks a trial by: its first run alone is noise."""
    return statistics.fmean(map(float, record.run_secs))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_untuned_schedule_is_the_rules_own_and_right(kernel: str) -> None:
    space = space_of(kernel)
    registers = registers_of(space.tuned_for)
    found = untuned_schedule(space.module, registers)
    assert found is not None
    assert structural_equal(found.mod["main"].body, schedule_for_cpu(space.module["main"], registers).body)
    replayed = Schedule(space.module)
    found.trace.apply_to_schedule(replayed, remove_postproc=False)
    arrays = [
        np.random.default_rng(0).normal(size=tuple(map(int, each.shape))).astype(str(each.dtype))
        for each in meta_schedule.arg_info.ArgInfo.from_entry_func(space.module)
    ]
    results = []
    for module in (replayed.mod, space.module):
        tensors = [tvm.runtime.tensor(each) for each in arrays]
        built = build_trial(module, space.tuned_for, None)
        built["main"](*tensors)
        results.append(tensors[-1].numpy())
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
    assert cpu().kind == "cpu"
