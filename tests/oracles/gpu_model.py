"""The cost model of GPU kernels, trained once for all tests that only ask it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from benchmarks.gpu_cost_model.samples import read_samples
from cost_model.gpu.kernel_model import GpuKernelModel, load_gpu_model
from cost_model.gpu.training import train_gpu_model

TABLES = sorted((Path(__file__).parents[2] / "benchmarks/data/neusight/dataset/test").glob("*.csv"))

UNSEEN = ("H100 SXM", "L4")
"""Devices whose measurements the model is not given."""


def trained_gpu_model(paths: pytest.TempPathFactory) -> GpuKernelModel:
    """Return the model of the published measurements that are kept here; processes of a session share it."""
    base = paths.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "gpu-model"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "trained").exists():
            seen = [sample for sample in read_samples(TABLES) if sample.query.device.name not in UNSEEN]
            train_gpu_model(seen, num_threads=1).save(folder / "model")
            (folder / "trained").touch()
    return load_gpu_model(folder / "model")
