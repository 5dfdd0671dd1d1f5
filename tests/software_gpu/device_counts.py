"""What a call of a built program costs a GPU, counted: launches, waits of the host, copies, allocations.

A speed needs a device; these do not, and a regression of one is one on every device. A call after the first
few has to allocate nothing and copy nothing, and the host waits for nothing but the end.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.harness.software_gpu.cuda_calls import counts
from tuner.frontend import load_model
from tuner.lowering.lower import build_module
from tuner.lowering.machine import load_machine
from tuner.lowering.weight_binding import bound_arguments
from tuner.measuring.worker.inputs import input_specs
from tuner.targets.resolution import resolve_target, tvm_device

MOST_LAUNCHES = {"mlp:tiny": 4, "gpt2:tiny": 70, "resnet:tiny": 25, "mobilenet:tiny": 28}
"""Kernels of a forward pass; fewer is better."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "mlp:tiny" else pytest.mark.slow) for name in MOST_LAUNCHES],
)
def test_a_call_launches_kernels_and_nothing_else(name: str) -> None:
    target = resolve_target("cuda")
    device = tvm_device(target)
    module = load_model(name).module
    machine = load_machine(build_module(module, target), device)
    rng = np.random.default_rng(0)
    arrays = [
        (rng.integers(0, 2, shape) if "int" in dtype else rng.standard_normal(shape)).astype(dtype)
        for shape, dtype in input_specs(module)
    ]
    arguments = bound_arguments(machine, [tvm.runtime.tensor(each, device) for each in arrays])
    for _ in range(3):
        results = machine["main"](*arguments)
    device.sync()
    before = counts()
    results = machine["main"](*arguments)
    device.sync()
    done = {what: count - before[what] for what, count in counts().items()}
    assert results is not None
    assert 0 < done.pop("launches") <= MOST_LAUNCHES[name]
    assert done.pop("synchronisations") == 1  # the test's own
    assert not any(done.values()), done
