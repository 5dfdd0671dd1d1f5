import msgspec
import numpy as np
import pytest
from kernel_physics import (
    BANDWIDTH_GB_S,
    CALL_US,
    PEAK_GFLOPS,
    many_records,
    measured,
    probes,
    product,
    true_latency_us,
)

from cost_model.dataset import load_dataset
from cost_model.errors import CostModelError
from cost_model.features import Query
from cost_model.kernel_training import train_kernel_model
from cost_model.roofline import contradictions, device_speed, reached_speed, roofline_us, supported_speed
from records import Operator, Tensor
from records.workload import describe


def slowed(records, factor, *, first_id=10_000):
    """Return probes as a busy machine gives them, newer than all others."""
    return [
        msgspec.structs.replace(
            record,
            record_id=first_id + index,
            measurement=msgspec.structs.replace(
                record.measurement,
                samples_us=tuple(us * factor for us in record.measurement.samples_us),
                measured_at=1e9,
            ),
        )
        for index, record in enumerate(records)
    ]


def test_device_speed_is_read_back_from_its_probes():
    speed = device_speed(record.measurement for record in probes())
    assert speed.peak_gflops == pytest.approx(PEAK_GFLOPS)
    assert speed.bandwidth_gb_s == pytest.approx(BANDWIDTH_GB_S)
    assert speed.call_us == pytest.approx(CALL_US)


def test_missing_probe_is_named():
    with pytest.raises(CostModelError, match="no call probe"):
        device_speed([record.measurement for record in probes()[:2]])


def test_large_product_is_bound_by_work_and_thin_one_by_traffic():
    speed = device_speed(record.measurement for record in probes())
    large, thin = product(1024, 1024, 1024), product(1, 4096, 4096)
    assert roofline_us(large, speed) == pytest.approx(large.flops / PEAK_GFLOPS / 1e3 + CALL_US)
    num_bytes = 4 * (4096 * 4096 + 2 * 4096)
    assert roofline_us(thin, speed) == pytest.approx(num_bytes / BANDWIDTH_GB_S / 1e3 + CALL_US)


def test_a_newer_probe_of_a_busy_machine_changes_nothing():
    sound = [record.measurement for record in probes()]
    slow = [record.measurement for record in slowed(probes(), 26)]
    assert device_speed([*sound, *slow]) == device_speed([*slow, *sound]) == device_speed(sound)


def test_kernels_contradict_a_slow_probe_and_stand_in_for_it():
    kernels = [measured(product(n, n, n), "blas", 2 * n**3 / 80e3, n) for n in (256, 320)]
    reached = reached_speed(kernels)
    assert reached.gflops == pytest.approx(80)
    sound = device_speed(record.measurement for record in probes())
    assert contradictions(sound, reached) == ()
    assert supported_speed(sound, reached) == sound
    slow = device_speed(record.measurement for record in slowed(probes(), 26))
    assert len(contradictions(slow, reached)) == 1
    assert "80 GFLOPS, its probe 3.85" in contradictions(slow, reached)[0]
    assert supported_speed(slow, reached).peak_gflops == pytest.approx(80)


def test_one_kernel_alone_or_one_that_skips_work_contradicts_nothing():
    (one,) = kernels = [measured(product(64, 64, 64), "blas", 1e-6, 1)]
    assert contradictions(device_speed(r.measurement for r in probes()), reached_speed(kernels)) == ()
    twice = [one, msgspec.structs.replace(one, record_id=2)]
    assert reached_speed(twice).gflops == 0.0
    assert reached_speed([*kernels, measured(product(32, 32, 32), "blas", 1.0, 3)]).gflops < 100


def test_only_kernels_that_read_all_their_inputs_tell_of_the_bandwidth():
    table, rows = Tensor((40_000_000,), "float32"), Tensor((64,), "float32")

    def reached_by(kind: int) -> float:
        """Return the bandwidth that two kernels of this kind prove, each of 160 MB in 20 us."""
        operators = [
            Operator(name="take", kind=kind, inputs=(0,), outputs=(rows,), flops=flops) for flops in (1, 2)
        ]
        kernels = [describe("kernel", [table], [operator], [1]) for operator in operators]
        return reached_speed(measured(k, "tvm", 20.0, i) for i, k in enumerate(kernels)).bandwidth_gb_s

    assert reached_by(kind=2) == 0.0  # a gather reads some rows of the table
    assert reached_by(kind=3) == pytest.approx(8000, rel=0.01)


@pytest.mark.parametrize("sound_probe_too", [True, False])
def test_predictions_stay_right_with_a_poisoned_probe_in_the_records(sound_probe_too):
    records = many_records(80)
    model = train_kernel_model(load_dataset(records), calibrated=False, num_threads=1)
    kept = records if sound_probe_too else records[3:]
    speed = load_dataset([*kept, *slowed(probes(), 26)]).samples[0].query.speed
    rng = np.random.default_rng(5)
    workloads = [product(*(int(2 ** rng.uniform(6, 9.5)) for _ in range(3))) for _ in range(60)]
    queries = [Query(workload=w, backend="blas", settings="", num_threads=2, speed=speed) for w in workloads]
    truth = np.array([true_latency_us(workload, "blas") for workload in workloads])
    latency, _, _ = model.predict_arrays(queries)
    # Kernels reached four fifths of the peak, so that without a sound probe a fifth is lost at most.
    assert np.median(np.abs(latency / truth - 1)) < (0.15 if sound_probe_too else 0.35)
