"""What runs on a GPU is compared with what the processor computes, so that a fault of its schedules shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from tvm import relax, tirx

from records import Status
from tests.samples.partition_samples import partition_module
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import build_planned, lower_module
from tuner.measuring.messages import WRONG_NUMBERS, Build, Compare, Compared, Done, Failed, Reply, Start
from tuner.measuring.module_json import json_of
from tuner.measuring.worker import server
from tuner.measuring.worker.inputs import DrawnInputs
from tuner.measuring.worker.runtimes import LocalRuntime
from tuner.measuring.worker.server import Worker
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

CPU = resolve_target("cpu", num_threads=1)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Worker]:
    """Give a GPU's worker whose programs, right or wrong, run on the processor in the GPU's place."""

    def make(is_right: bool) -> Worker:
        def lower(module: IRModule, backends: Any, target: Target) -> IRModule:
            assert target.kind == "cuda"
            lowered = lower_module(module, backends, CPU)
            return lowered if is_right else faulty(lowered)

        monkeypatch.setattr(server, "lower_module", lower)
        monkeypatch.setattr(server, "build_planned", lambda module, target, **_: build_planned(module, CPU))
        target = resolve_target("nvidia/nvidia-h100")
        made = Worker(Start(target=target, backends=("tvm",), memory_limit_bytes=None, folder=str(tmp_path)))
        made.place = LocalRuntime(CPU)
        made.inputs = DrawnInputs(made.place.tensor)
        return made

    return make


def faulty(module: IRModule) -> IRModule:
    """Return a module whose kernels take the lesser of two values for the greater."""
    changed = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            wrong = tvm_ffi.structural_map(function, (tirx.Max, lambda each: tirx.Min(each.a, each.b)))
            changed.update_func(variable, wrong)
    return changed


def partition_text() -> str:
    def body(data: Any, weight: Any) -> Any:
        return relax.op.nn.relu(relax.op.matmul(data, weight))

    return json_of(partition_module("tvm", [(8, 16), (16, 12)], body))


@pytest.mark.parametrize("is_right", [True, False])
def test_a_partitions_results_are_compared_with_the_processors(
    worker: Callable[[bool], Worker], is_right: bool
) -> None:
    made = worker(is_right)
    assert made.reference_target.kind == "cpu"
    reply: Reply = made.build(Build(key=0, module_json=partition_text(), check=True, seed=0))
    if is_right:
        assert isinstance(reply, Done)
        assert reply.relative_error is not None
        assert reply.relative_error < 1e-5
    else:
        assert isinstance(reply, Failed)
        assert reply.status is Status.ERROR
        assert reply.message.startswith(WRONG_NUMBERS)


@pytest.mark.parametrize("unscheduled", [True, False])
def test_a_whole_program_is_compared_with_the_processors(
    worker: Callable[[bool], Worker], unscheduled: bool
) -> None:
    text = partition_text()
    request = Compare(module_json=text, reference_json=text, seed=0, unscheduled=unscheduled)
    right, wrong = worker(True).compare(request), worker(False).compare(request)
    assert isinstance(right, Compared)
    assert isinstance(wrong, Compared)
    assert right.worst.relative_error is not None
    assert right.worst.relative_error < 1e-5
    assert wrong.worst.relative_error is not None
    assert wrong.worst.relative_error > 1e-2
