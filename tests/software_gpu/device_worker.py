"""A measuring worker whose GPU fails under it: the program at fault fails, and no other."""

from __future__ import annotations

import numpy as np
from tvm import relax

from records import Status
from tests.harness.software_gpu.cuda_calls import DeviceArray, Kernel
from tests.samples.partition_samples import partition_module
from tests.software_gpu.device_faults import Reports, source
from tests.tuner.misbehaving_backends import Misbehaving
from tuner.backends.registry import backends_for
from tuner.measuring.messages import Build, Done, Failed, Time, Timing
from tuner.measuring.module_json import json_of
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.resolution import resolve_target

MODULE = "tests.software_gpu.device_worker"


def launch_beyond_the_end(*tensors: object) -> None:
    """Do what a kernel with a wrong index does, at the first call."""
    array = DeviceArray(np.zeros(64, np.float32))
    Kernel.compiled(source("  out[threadIdx.x + 1] = 0;")).launch(array, array, block=(64,))


breaking = Misbehaving("breaking", launch_beyond_the_end)
breaking.reference = f"{MODULE}:breaking"


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
