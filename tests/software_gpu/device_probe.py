"""The GPU's rates are probed by TVM's kernels, where torch has no CUDA."""

from __future__ import annotations

import math

from tuner.measuring.kernel_probe import kernel_probes
from tuner.targets import device_probe
from tuner.targets.resolution import resolve_target


def test_kernels_probe_the_device_and_torch_says_that_it_cannot() -> None:
    target = resolve_target("cuda")
    samples = {
        name: sample() for name, sample in kernel_probes(target, extent=32, copied_elements=1024).items()
    }
    assert set(samples) == set(device_probe.probe_workloads())
    assert all(0 < us < math.inf for us in samples.values())
    assert samples["call"] < samples["peak"]  # one of a chain of small kernels, without the host's first call
    assert device_probe._samples(target, "torch") is None
