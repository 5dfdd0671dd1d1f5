"""Read the kernels that NeuSight's authors measured, as samples to train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cost_model.errors import CostModelError
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.kernel_model import GpuQuery
from cost_model.gpu.kernels import kernel_of
from cost_model.gpu.training import GpuSample
from records.files.neusight import read_table


def read_samples(paths: Sequence[Path]) -> Iterator[GpuSample]:
    """Yield the kernels of tables that the model knows; convolutions are passed over."""
    number = 0
    for path in paths:
        for workload, measurement in read_table(path):
            number += 1
            try:
                query = GpuQuery(kernel_of(workload), find_gpu(measurement.environment.device_model))
            except CostModelError:
                continue
            yield GpuSample(query, measurement.latency_us, number)
