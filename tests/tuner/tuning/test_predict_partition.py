"""Partitions for GPUs that are not here: exact covers whose every figure is a prediction."""

from __future__ import annotations

import pytest

from cost_model.gpu.devices import find_gpu
from cost_model.gpu.kernel_model import GpuKernelModel
from cost_model.gpu.programs import predict_programs
from tests.oracles.gpu_model import trained_gpu_model
from tuner.errors import TunerError, UnpriceableError
from tuner.frontend import load_model
from tuner.partition.candidate import FREE
from tuner.pricing.measured import workload_of_candidate
from tuner.targets.resolution import resolve_target
from tuner.tuning.partition_model import PartitionedModel
from tuner.tuning.predict_partition import predict_partition

TARGET = "nvidia/nvidia-a100"

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def kernel_model(tmp_path_factory: pytest.TempPathFactory) -> GpuKernelModel:
    return trained_gpu_model(tmp_path_factory)


def partitioned(
    kernel_model: GpuKernelModel, model: str, target: str = TARGET, batch: int = 1, **settings: object
) -> PartitionedModel:
    loaded = load_model(model, shapes={}, batch=batch, training=False)
    return predict_partition(loaded, kernel_model, find_gpu(target), resolve_target(target), **settings)


@pytest.fixture(scope="module")
def gpt2(kernel_model: GpuKernelModel) -> PartitionedModel:
    return partitioned(kernel_model, "gpt2:tiny")


def test_the_partition_covers_the_model_once_and_adds_up_its_predictions(
    gpt2: PartitionedModel, kernel_model: GpuKernelModel
) -> None:
    graph, partition = gpt2.function.priced.graph, gpt2.function.partition
    covered = [index for part in partition.chosen for index in part.sub_graph.inside]
    assert sorted(covered) == list(range(len(graph)))
    programs = [workload_of_candidate(graph, part) for part in partition.chosen if part.backend != FREE]
    predictions = predict_programs(kernel_model, programs, find_gpu(TARGET))
    assert gpt2.sum_of_parts.latency_us == pytest.approx(sum(each.latency_us for each in predictions))


def test_every_figure_says_that_it_is_predicted(gpt2: PartitionedModel) -> None:
    assert {figure.source for figure in gpt2.end_to_end.values()} == {"predicted"}
    for part in gpt2.partition:
        assert part.figure.source == "predicted"
        low, high = part.figure.interval_us
        is_view = set(part.operators) <= {"permute_dims", "reshape", "expand_dims", "split"}
        assert (
            (low == part.figure.latency_us == high == 0) if is_view else low < part.figure.latency_us < high
        )
    assert gpt2.new_measurements == gpt2.reused_measurements == 0
    assert gpt2.max_relative_error is None


def test_products_go_to_the_library_and_the_mix_is_the_cheapest(gpt2: PartitionedModel) -> None:
    backends = {part.backend for part in gpt2.partition if "matmul" in part.operators}
    assert backends == {"torch"}
    assert all(
        gpt2.end_to_end["mix"].latency_us <= figure.latency_us * (1 + 1e-9)
        for figure in gpt2.end_to_end.values()
    )


def test_a_faster_device_is_predicted_to_be_faster(kernel_model: GpuKernelModel) -> None:
    def latency_us(target: str) -> float:
        return partitioned(kernel_model, "gpt2:tiny", target, batch=1024).sum_of_parts.latency_us

    assert latency_us("nvidia/nvidia-a100") < latency_us("nvidia/nvidia-t4") < latency_us("nvidia/tesla-p4")


def test_what_nobody_measured_is_refused_by_name(kernel_model: GpuKernelModel) -> None:
    with pytest.raises(UnpriceableError, match=r"conv2d"):
        partitioned(kernel_model, "resnet:tiny")
    with pytest.raises(UnpriceableError, match=r"matmul"):
        partitioned(kernel_model, "mlp:tiny", backend_names=("tvm",))
    with pytest.raises(TunerError, match="'metaschedule' cannot be predicted"):
        partitioned(kernel_model, "mlp:tiny", backend_names=("metaschedule",))
