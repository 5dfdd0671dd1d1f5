"""Products that were measured in another state are told from the others."""

import logging
import math
from pathlib import Path

import pytest

from benchmarks.gpu_cost_model.samples import read_samples
from cost_model.gpu.consistency import MOST_APART, devices_in_another_state, width_between_tables
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.features import bound_us
from cost_model.gpu.kernel_model import GpuQuery
from cost_model.gpu.kernels import Family, kernel_of
from cost_model.gpu.training import GpuSample, train_gpu_model
from records.files.neusight import kernel_workload

TABLES = sorted((Path(__file__).parents[3] / "benchmarks/data/neusight/dataset/test").glob("*.csv"))
DEVICES = ("P4", "T4", "V100 PCIe", "A100 PCIe 40GB")


def products(slower: dict[tuple[str, str], float]) -> list[tuple[GpuQuery, float]]:
    """Return large products of four devices at half their peaks, slower by factors by name and device."""
    found = []
    for count in range(8, 28):
        for name, extents in (("bmm", (count, 512, 512, 1024)), ("linear", (1, 512 * count, 512, 1024))):
            kernel = kernel_of(kernel_workload(name, extents))
            for device in map(find_gpu, DEVICES):
                factor = slower.get((name, device.name), 1.0)
                found.append((GpuQuery(kernel, device), 2 * factor * bound_us(kernel, device)))
    return found


@pytest.mark.parametrize("name", ["bmm", "linear"])
@pytest.mark.parametrize("factor", [1.2 * MOST_APART, 0.8 / MOST_APART])
def test_the_table_that_differs_is_named_whichever_it_is(
    name: str, factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    family = Family.LINEAR if name == "linear" else Family.BATCHED_PRODUCT
    with caplog.at_level(logging.WARNING):
        assert devices_in_another_state(products({(name, "T4"): factor})) == {(family, "T4")}
    assert f"{family} kernels of T4 are left out" in caplog.text


def test_what_all_devices_do_or_one_does_in_both_families_is_believed() -> None:
    everywhere = {("linear", device): 3.0 for device in DEVICES}
    assert not devices_in_another_state(products(everywhere))
    assert not devices_in_another_state(products({("linear", "P4"): 3.0, ("bmm", "P4"): 3.0}))
    assert not devices_in_another_state(products({("linear", "P4"): 0.9 * MOST_APART}))
    two = [each for each in products({("linear", "P4"): 3.0}) if each[0].device.name in ("P4", "T4")]
    assert not devices_in_another_state(two)


def test_the_width_between_tables_is_what_a_table_of_two_is_off_by() -> None:
    """One device of four is apart by a factor: that of its two tables, by the root of the mean square."""
    assert width_between_tables(products({}), 0.9) == pytest.approx(0, abs=1e-9)
    apart = math.log(1.5)
    expected = 1.6449 * apart / math.sqrt(4) / math.sqrt(2)
    assert width_between_tables(products({("linear", "T4"): 1.5}), 0.9) == pytest.approx(expected, rel=1e-3)
    assert width_between_tables(products({("bmm", "T4"): 1.5}), 0.9) == pytest.approx(expected, rel=1e-3)
    two = [each for each in products({("linear", "T4"): 1.5}) if each[0].device.name in ("P4", "T4")]
    assert width_between_tables(two, 0.9) == 0


def test_measured_devices_are_believed() -> None:
    assert not devices_in_another_state((each.query, each.latency_us) for each in read_samples(TABLES))


def test_a_table_in_another_state_is_not_learnt_from() -> None:
    samples = [
        GpuSample(query, latency_us, number)
        for number, (query, latency_us) in enumerate(products({("linear", "T4"): 3.0}))
    ]
    families = train_gpu_model(samples, num_threads=1).manifest.families
    assert sorted(families[Family.LINEAR].overheads_us) == sorted(set(DEVICES) - {"T4"})
    assert sorted(families[Family.BATCHED_PRODUCT].overheads_us) == sorted(DEVICES)


def test_known_devices_products_have_at_least_the_width_between_tables() -> None:
    """Kernels that all follow one law are predicted almost exactly; another table of theirs is not."""
    measured = products({("linear", "T4"): 1.5})
    samples = [GpuSample(query, latency_us, number) for number, (query, latency_us) in enumerate(measured)]
    families = train_gpu_model(samples, num_threads=1).manifest.families
    between = width_between_tables(measured, 0.9)
    widths = [width for found in families.values() for width in found.known_widths.values()]
    assert len(widths) == 2 * len(DEVICES)
    assert min(widths) >= between
    assert min(widths) == pytest.approx(between, rel=0.2)
