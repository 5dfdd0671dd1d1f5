"""A measuring worker whose GPU fails under it: the program at fault fails, and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import nvrtc
from msgspec.structs import replace
from tvm import relax

from records import Status
from tests.harness.software_gpu.cuda_calls import DeviceArray, Kernel, counts
from tests.samples.partition_samples import partition_module
from tests.software_gpu.device_faults import Reports, source
from tests.tuner.misbehaving_backends import Misbehaving
from tuner.backends.registry import backends_for
from tuner.measuring.messages import WRONG_NUMBERS, Build, Done, Failed, Race, Raced, Start, Time, Timing
from tuner.measuring.module_json import json_of
from tuner.measuring.worker.server import Worker
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.resolution import resolve_target

MODULE = "tests.software_gpu.device_worker"


def launch_beyond_the_end(*tensors: object) -> None:
    """Do what a kernel with a wrong index does, at the first call."""
    array = DeviceArray(np.zeros(64, np.float32))
    Kernel.compiled(source("  out[threadIdx.x + 1] = 0;")).launch(array, array, block=(64,))


breaking = Misbehaving("breaking", launch_beyond_the_end)
breaking.reference = f"{MODULE}:breaking"


@pytest.mark.slow
def test_whole_programs_race_as_graphs() -> None:
    """Each is captured once with its own memory; a round launches graphs alone."""
    target = resolve_target("cuda")
    text = json_of(partition_module("tvm", [(4, 8)], relax.op.nn.softmax))
    worker = Worker(Start(target=target, backends=("tvm",), memory_limit_bytes=None, folder="/tmp"))
    for key in (1, 2):
        assert isinstance(
            worker.build(Build(key=key, module_json=text, check=True, seed=0, as_graph=True)), Done
        )
    race = Race(keys=(1, 2), seed=0, first_round=0, num_rounds=1, sample_s=0.0)
    assert isinstance(worker.race(race), Raced)
    before = counts()
    assert isinstance(worker.race(replace(race, first_round=1)), Raced)
    done = {what: n - before[what] for what, n in counts().items()}
    assert done["graph_launches"] >= 2
    assert done["launches"] == done["allocations"] == 0


@pytest.mark.slow
def test_a_kernel_that_computes_something_else_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first real GPU the check ran the same kernels for both sides."""
    compiled = nvrtc._compiled

    def wrong(source: str) -> Path:
        assert "tanhf(" in source
        return compiled(source.replace("tanhf(", "sinf("))

    monkeypatch.setattr(nvrtc, "_compiled", wrong)
    target = resolve_target("cuda")
    worker = Worker(Start(target=target, backends=("tvm",), memory_limit_bytes=None, folder="/tmp"))
    text = json_of(partition_module("tvm", [(4, 8)], relax.op.tanh))
    failed = worker.build(Build(key=1, module_json=text, check=True, seed=0))
    assert isinstance(failed, Failed)
    assert failed.message.startswith(WRONG_NUMBERS)


def test_a_kernel_that_breaks_the_device_fails_alone(reports: Reports) -> None:
    target = resolve_target("cuda")
    good = json_of(partition_module("tvm", [(4, 8)], relax.op.nn.relu))
    bad = json_of(partition_module("breaking", [(4, 8)], relax.op.nn.relu))
    backends = backends_for(("tvm", f"{MODULE}:breaking"), target)
    with WorkerProcess(target, backends) as worker:
        assert worker.ask(Build(key=1, module_json=good, check=True, seed=0), 120) == Done(0.0)
        assert worker.ask(Build(key=2, module_json=bad, check=False, seed=0), 120) == Done()
        failed = worker.ask(Time(key=2, seed=0, timing=Timing()), 120)
        assert isinstance(failed, Failed)
        assert failed.status is Status.ERROR
        assert "IllegalAddress" in failed.message or "illegal memory access" in failed.message
        assert worker.ask(Build(key=3, module_json=good, check=True, seed=0), 120) == Done(0.0)
        assert worker.num_starts == 2
    assert "not allocated" in reports()
