"""The model of GPU kernels, on a sample of NeuSight's measurements: five devices to learn, two to predict.

`python -m benchmarks.gpu_cost_model` does the same on all of them.
"""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.gpu_cost_model.samples import read_samples
from cost_model.errors import CostModelError, CostModelFileError
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.features import bound_us, feature_matrix, feature_names, memory_us
from cost_model.gpu.kernel_model import MANIFEST, NUM_FORESTS, GpuKernelModel, GpuQuery, load_gpu_model
from cost_model.gpu.kernels import Family, kernel_of
from cost_model.gpu.training import GpuSample, mixture_quantile, train_gpu_model
from records.files.neusight import kernel_workload
from tests.oracles.gpu_model import TABLES, UNSEEN, trained_gpu_model


@pytest.fixture(scope="module")
def samples() -> list[GpuSample]:
    return list(read_samples(TABLES))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GpuKernelModel:
    return trained_gpu_model(tmp_path_factory)


def test_unseen_devices_are_predicted_better_than_by_their_bound(samples, model) -> None:
    unseen = [sample for sample in samples if sample.query.device.name in UNSEEN]
    truth = np.array([sample.latency_us for sample in unseen])
    predictions = model.predict([sample.query for sample in unseen])
    errors = np.abs(np.log([each.latency_us for each in predictions] / truth))
    of_bound = np.abs(np.log([bound_us(*sample.query) for sample in unseen] / truth))
    assert np.median(errors) < 0.6 * np.median(of_bound)
    covered = [each.low_us <= us <= each.high_us for each, us in zip(predictions, truth, strict=True)]
    assert np.mean(covered) > 0.8


def test_intervals_widen_on_unknown_devices_and_out_of_range(model) -> None:
    def ratio(device: str, extents: tuple[int, ...]) -> float:
        query = GpuQuery(kernel_of(kernel_workload("bmm", extents)), find_gpu(device))
        (each,) = model.predict([query])
        assert each.low_us < each.latency_us < each.high_us
        assert each.is_known_device == (device == "T4")
        return each.high_us / each.low_us

    usual, huge = (64, 512, 512, 64), (4096, 4096, 4096, 4096)
    assert ratio("T4", usual) <= ratio("H200", usual)
    assert 1.5 * ratio("T4", usual) < ratio("T4", huge)


def test_what_is_out_of_range_is_told_by_extents_not_by_the_bound_of_some_slower_device(model) -> None:
    # As fast on H200 as what was trained on is on P4, and eight times larger than all of it.
    family = model.manifest.families[Family.ELEMENTWISE]
    rows, volume = (round(2 ** family.most[index]) for index in (1, 4))
    columns = volume // rows
    (near, far) = (kernel_of(kernel_workload("add", (count, columns))) for count in (rows, 8 * rows))
    assert bound_us(far, find_gpu("H200")) < bound_us(near, find_gpu("P4"))
    assert family.doublings([near, far]).max(axis=1).tolist() == pytest.approx([0, 3], abs=0.01)
    (first, second) = model.predict([GpuQuery(kernel, find_gpu("H200")) for kernel in (near, far)])
    assert first.high_us / first.low_us < second.high_us / second.low_us
    assert np.log(second.high_us / second.latency_us) == pytest.approx(
        np.hypot(family.unknown_width, max(family.doublings([far])[0] ** family.growth * family.widening))
    )
    # Rows and volume are both three doublings too large; whichever asks for more counts.
    assert len(set(family.widening)) > 1


def test_widths_are_of_latencies_and_a_mixture_of_devices() -> None:
    # A device of a thousand kernels counts as much as one of ten.
    parts = [np.full(1000, 0.1), np.full(10, 0.5), np.full(10, 0.2)]
    assert mixture_quantile(parts, 0.6) == 0.2
    assert mixture_quantile(parts, 0.9) == 0.5


def test_families_that_memory_bounds_share_a_width_on_unknown_devices(model) -> None:
    widths = {name: found.unknown_width for name, found in model.manifest.families.items()}
    shared = {widths[name] for name in (Family.ELEMENTWISE, Family.LAYER_NORM, Family.SOFTMAX)}
    assert len(shared) == 1
    assert not shared & {widths[Family.LINEAR], widths[Family.BATCHED_PRODUCT]}


def test_row_wise_families_share_their_widening_and_element_wise_errors_level_off(model) -> None:
    families = model.manifest.families
    assert families[Family.SOFTMAX].widening == families[Family.LAYER_NORM].widening
    assert families[Family.SOFTMAX].widening != families[Family.LINEAR].widening
    growth = {name: found.growth for name, found in families.items()}
    assert growth.pop(Family.ELEMENTWISE) == 0.5
    assert set(growth.values()) == {1.0}


def test_the_mean_of_the_forests_counts(samples, model) -> None:
    kernels = [s.query for s in samples if s.query.kernel.family is Family.LINEAR][:5]
    assert {len(several) for several in model.forests.values()} == {NUM_FORESTS}
    known = [GpuQuery(query.kernel, find_gpu("V100 PCIe")) for query in kernels]
    each = [
        [
            prediction.latency_us
            for prediction in replace(model, forests={**model.forests, Family.LINEAR: one}).predict(known)
        ]
        for one in zip(model.forests[Family.LINEAR])
    ]
    overhead = model.manifest.families[Family.LINEAR].overheads_us["V100 PCIe"]
    found = np.log(np.array([prediction.latency_us for prediction in model.predict(known)]) - overhead)
    assert found == pytest.approx(np.log(np.array(each) - overhead).mean(axis=0), rel=1e-5)
    assert np.ptp(each, axis=0).max() > 0


def test_a_saved_model_predicts_the_same_and_a_changed_one_is_refused(samples, model, tmp_path: Path) -> None:
    queries = [sample.query for sample in samples[::20]]
    model.save(tmp_path)
    assert load_gpu_model(tmp_path).predict(queries) == model.predict(queries)
    manifest = msgspec.json.decode((tmp_path / MANIFEST).read_bytes())
    manifest["families"]["linear"]["least"] = manifest["families"]["linear"]["most"][::-1]
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(CostModelFileError, match="not a cost model's manifest"):
        load_gpu_model(tmp_path)
    forest = tmp_path / "linear_1.json"
    model.save(tmp_path)
    forest.write_bytes(forest.read_bytes().replace(b"1", b"2", 5))
    with pytest.raises(CostModelFileError, match="not the forest that its manifest names"):
        load_gpu_model(tmp_path)


def test_equal_samples_give_equal_models_and_few_give_none(samples) -> None:
    some = [sample for sample in samples if sample.query.kernel.family is Family.SOFTMAX]
    first, second = (train_gpu_model(some, num_threads=1) for _ in range(2))
    assert first.manifest == second.manifest
    queries = [sample.query for sample in some[:20]]
    assert first.predict(queries) == second.predict(queries)
    with pytest.raises(CostModelError, match="was not trained on linear kernels"):
        first.predict([GpuQuery(kernel_of(kernel_workload("linear", (1, 8, 8, 8))), find_gpu("T4"))])
    with pytest.raises(CostModelError, match="a family needs 50"):
        train_gpu_model(some[:10])


def test_features_are_ratios_and_bounds_know_the_cache() -> None:
    kernel, device = kernel_of(kernel_workload("bmm", (8, 128, 64, 128))), find_gpu("A100")
    row = dict(zip(feature_names(kernel.family), feature_matrix([kernel], [device])[0], strict=True))
    # 8 tiles of 128 x 128 on 108 multiprocessors: one wave, of which 8 of 108 places are used.
    assert row["log_waves_128x128"] == pytest.approx(np.log2(8 / 108), rel=1e-5)
    assert row["last_wave_128x128"] == pytest.approx(8 / 108, rel=1e-5)
    assert row["padding_256x128"] == pytest.approx(0.5)
    inside, outside = device.l2_mib * 2**18, device.l2_mib * 2**22
    assert memory_us(inside, device) == pytest.approx(inside / device.l2_bandwidth_gb_s / 1e3)
    assert memory_us(outside, device) == pytest.approx(outside * 7 / 8 / device.bandwidth_gb_s / 1e3)
