"""Stages priced for a GPU that is not here: the same stages as measured ones, each figure a prediction."""

import pytest

from cost_model.gpu.devices import find_gpu
from cost_model.gpu.kernel_model import GpuKernelModel
from tessel.profiles.tuned_plan import profile_of_stages
from tests.oracles.gpu_model import trained_gpu_model
from tuner.errors import UnpriceableError
from tuner.frontend import load_model
from tuner.stages import cut_between, layers_of
from tuner.tuning.stage_costs.predict_stages import predict_stages

SEEN, UNSEEN = "T4", "H200"

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def kernel_model(tmp_path_factory: pytest.TempPathFactory) -> GpuKernelModel:
    return trained_gpu_model(tmp_path_factory)


def predicted(kernel_model: GpuKernelModel, name: str, device: str, batch: int = 1):
    model = load_model(name, shapes={}, batch=batch, training=True)
    layers = layers_of(model)
    return predict_stages(model, cut_between(layers, range(1, len(layers))), kernel_model, find_gpu(device))


def test_every_function_is_predicted_and_equal_layers_alike(kernel_model) -> None:
    found = predicted(kernel_model, "gpt2:tiny", SEEN)
    first, *blocks, last = found.stages
    assert found.is_known_device
    assert len({stage.forward for stage in blocks}) == 1
    for stage in found.stages:
        halves = () if stage is first else (stage.backward_input, stage.backward_weight)
        for figure in (stage.forward, stage.backward, *halves):
            assert figure is not None
            assert figure.source == "predicted"
        assert stage.forward.interval_us[0] < stage.forward.latency_us < stage.forward.interval_us[1]
    assert first.backward_input is None
    assert last.backward_input is not None
    assert {member.stage for member in found.tied[0]} == {0, len(found.stages) - 1}


def test_more_work_takes_longer_and_an_unknown_gpu_is_less_certain(kernel_model) -> None:
    def block(device: str, batch: int):
        return predicted(kernel_model, "gpt2:tiny", device, batch).stages[1].forward

    assert block(SEEN, 64).latency_us > block(SEEN, 1).latency_us
    low_us, high_us = block(SEEN, 4).interval_us
    far_low_us, far_high_us = block(UNSEEN, 4).interval_us
    assert far_high_us / far_low_us > high_us / low_us
    assert not predicted(kernel_model, "gpt2:tiny", UNSEEN).is_known_device


def test_a_profile_of_predicted_stages_keeps_their_intervals(kernel_model) -> None:
    found = predicted(kernel_model, "gpt2:tiny", SEEN)
    profile = profile_of_stages(found.stages, found.tied, name="gpt2", device=SEEN, micro_batch=1)
    assert profile.is_predicted
    assert len(profile.tables[0].intervals) == len(found.stages)
    first = found.stages[1]
    low_us = sum(figure.interval_us[0] for figure in (first.forward, first.backward))
    whole_us = first.forward.latency_us + first.backward.latency_us
    assert profile.tables[0].intervals[1][0] == pytest.approx(low_us / whole_us)


def test_a_model_of_other_operators_is_refused_by_stage_and_operator(kernel_model) -> None:
    with pytest.raises(UnpriceableError, match=r"stage0 cannot be predicted: .*conv2d"):
        predicted(kernel_model, "mobilenet:tiny", SEEN)
