"""A collection measures what its plan wants, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_spaces import cpu

from benchmarks.trials.in_process import builder_and_runner
from records import Measurement, Operator, Status, Tensor, open_store
from records.workload import describe
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
from tuner.graph.relax_types import IRModule
from tuner.language.collecting import (
    Collected,
    CollectionPlan,
    collect_schedules,
    collection_kernels,
)
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.language.knowledge import draft_model_of, ignored_trials, knowledge_of
from tuner.language.machine import Machine

pytestmark = pytest.mark.tvm

PLAN = CollectionPlan(random=10, rounds=1, batch=3)


def machine() -> Machine:
    return Machine(cpu(), tuning_target(cpu()), environment_of(cpu(), MetaSchedule()))


def kernels() -> list[tuple[str, IRModule]]:
    names = ("dense:8x16x32", "product:2x8x12x20", "dense:5x12x24,relu", "convolution:3x6x4x3x1")
    return [(name, kernel_module(parse_kernel(name))) for name in names]


def collect(url: str, plan: CollectionPlan, told: list[tuple[str, int, int]]) -> Collected:
    builder, runner = builder_and_runner()
    return collect_schedules(
        kernels(),
        plan,
        machine=machine(),
        records_url=url,
        builder=builder,
        runner=runner,
        on_progress=lambda *each: told.append(each),
    )


def test_trials_of_kernels_that_are_not_tuned_any_more_are_ignored_and_counted(tmp_path: Path) -> None:
    url, here = str(tmp_path / "records.db"), machine()
    result = Tensor((32,), "float32")
    operator = Operator(
        name="own_kernel.task",
        kind=8,
        inputs=(0,),
        outputs=(result,),
        attributes=(("kernel", "product:32x512x384"),),
        flops=1,
    )
    workload = describe("task", [result], [operator], [1])
    trial = Measurement(
        workload_fingerprint=workload.fingerprint,
        backend="packed_matmul",
        target=here.target.text,
        environment=here.environment,
        status=Status.OK,
        samples_us=(1.0, 2.0),
        settings='{"lanes":8,"rows":4,"vectors":3}',
        measured_at=1.0,
    )
    with open_store(url) as store:
        store.append_many([(workload, trial)])
    assert not knowledge_of(url, here).trials
    assert ignored_trials(url, here) == 1


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_is_not_measured_twice(tmp_path: Path) -> None:
    url = str(tmp_path / "records.db")

    class Stopped(Exception):
        pass

    class StopsAfter(list[tuple[str, int, int]]):
        def append(self, each: tuple[str, int, int]) -> None:
            super().append(each)
            if each[1] >= 20:
                raise Stopped

    with pytest.raises(Stopped):
        collect(url, PLAN, StopsAfter())
    told: list[tuple[str, int, int]] = []
    found = collect(url, PLAN, told)
    assert (found.num_kernels, found.num_trials, found.num_new) == (4, 52, 32)
    assert told[0][1:] == (20, 52)
    assert told[-1] == ("done", 52, 52)
    assert any("guided round 1 of 1" in text for text, _, _ in told)
    assert all(quality is not None and 0 < quality <= 1 for quality in found.mean_quality)
    assert draft_model_of(knowledge_of(url, machine()), seed=0) is not None
    again = collect(url, PLAN, [])
    assert (again.num_trials, again.num_new) == (52, 0)


def test_random_kernels_are_distinct_and_of_all_families() -> None:
    names = [name for name, _ in collection_kernels(8, 0)]
    assert len(set(names)) == 8
    assert {name.partition(":")[0] for name in names} == {"dense", "product", "convolution", "depthwise"}
    assert names == [name for name, _ in collection_kernels(8, 0)]
    with pytest.raises(ValueError, match="no plan"):
        CollectionPlan(random=-1)
