"""The published measurements of a GPU can be read, and are set beside predictions for that GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu_cost_model.measured import compared, print_table
from cost_model.gpu.kernel_model import GpuKernelModel
from records.files.exchange import read_records
from tests.oracles.gpu_model import trained_gpu_model

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GpuKernelModel:
    return trained_gpu_model(tmp_path_factory)


@pytest.mark.slow
def test_measurements_of_a_gpu_are_set_beside_predictions_for_it(
    model: GpuKernelModel, capsys: pytest.CaptureFixture[str]
) -> None:
    records = list(read_records(DATA / "gpu" / "kernels_nvidia-h200.jsonl.gz"))
    assert len(records) == 285
    assert {measurement.environment.device_model for _, measurement in records} == {"NVIDIA H200"}
    found, num_left_out = compared(records, model)
    assert (len(found), num_left_out) == (142, 100)
    # The whole program of each network, by backends in turn, torch alone and TVM alone.
    assert sum(each.family == "whole network" for each in found) == 6
    assert all(0 < each.low_us <= each.predicted_us <= each.high_us for each in found)
    products = [each for each in found if each.backend == "torch" and each.family == "linear"]
    assert len(products) == 34
    # Trained on the few kernels of the sample alone, on other devices: of the right size all the same.
    assert sum(0.2 < each.predicted_us / each.measured_us < 5 for each in products) >= 30
    print_table(found, num_left_out)
    assert "| torch | linear | 34 |" in capsys.readouterr().out
