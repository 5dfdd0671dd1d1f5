import pytest
from kernel_physics import BANDWIDTH_GB_S, CALL_US, PEAK_GFLOPS, probes, product

from cost_model import CostModelError, device_speed, roofline_us


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
