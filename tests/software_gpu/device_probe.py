"""The GPU's rates are probed by TVM's kernels, where torch has no CUDA."""

from __future__ import annotations

import pytest

from tests.harness.software_gpu.cuda_calls import counts, timed_kernels
from tuner.measuring.kernel_probe import kernel_probes
from tuner.targets import device_probe
from tuner.targets.resolution import resolve_target


def test_kernels_probe_the_device_and_torch_says_that_it_cannot() -> None:
    """Each is what one kernel takes by the device's clock; the host's share of a launch is none of it."""
    target = resolve_target("cuda")
    probes = kernel_probes(target, extent=32, copied_elements=1024)
    assert set(probes) == set(device_probe.probe_workloads())
    before = counts()["launches"]
    with timed_kernels(1.7):
        samples = {name: sample() for name, sample in probes.items()}
    assert samples == pytest.approx(dict.fromkeys(probes, 1.7), rel=1e-3)
    chains = 8 + 136  # no two of whose kernels became one
    assert counts()["launches"] - before == 11 * (1 + 1 + chains)
    assert device_probe._samples(target, "torch") is None
