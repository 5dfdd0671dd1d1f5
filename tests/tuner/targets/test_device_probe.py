from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest
from kernel_physics import measured, probes, product

from cost_model.roofline import device_speed
from records import Environment, Measurement, Workload, open_store
from tuner.targets import device_probe
from tuner.targets.device_probe import (
    SETTINGS_BY_KIND,
    agree,
    calmest,
    ensure_probed,
    known_speed,
    probe_contradictions,
    sample_us,
    settle_probes,
)
from tuner.targets.target import Target

TARGET = Target(name="cpu", kind="cpu", tvm_json='{"kind":"llvm"}', num_threads=1)
ENVIRONMENT = Environment(
    device_kind="cpu", device_model="test", num_cores=1, num_threads=1, driver="test", versions=()
)
PLACE = {"target": TARGET, "environment": ENVIRONMENT}


def here(record, *, factor: float = 1.0, settings: str = "", **fields) -> tuple[Workload, Measurement]:
    """Return a made-up record as one of this device's, so many times as slow."""
    changes = {
        "target": TARGET.text,
        "environment": ENVIRONMENT,
        "settings": settings,
        "samples_us": tuple(us * factor for us in record.measurement.samples_us),
    }
    return record.workload, msgspec.structs.replace(record.measurement, **{**changes, **fields})


def probes_here(factor: float, settings: str = SETTINGS_BY_KIND["cpu"]) -> list[tuple[Workload, Measurement]]:
    return [here(record, factor=factor, settings=settings, backend="numpy") for record in probes()]


def kernels_here() -> list[tuple[Workload, Measurement]]:
    return [here(measured(product(n, n, n), "blas", 2 * n**3 / 80e3, n)) for n in (256, 320)]


def test_probes_are_measured_once_and_give_a_speed(tmp_path) -> None:
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        assert ensure_probed(store, **PLACE) == 3
        assert ensure_probed(store, **PLACE) == 0

        speed = device_speed(record.measurement for record in store.iterate(role="device"))

    # Any processor of the last decade lies within these.
    assert 1 < speed.peak_gflops < 10_000
    assert 0.5 < speed.bandwidth_gb_s < 5_000
    assert 0 < speed.call_us < 100


def test_a_probe_of_a_busy_machine_is_found_and_superseded(tmp_path) -> None:
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        store.append_many([*probes_here(26), *kernels_here()])
        (sentence,) = probe_contradictions(store, **PLACE)
        assert "kernels reached 80 GFLOPS, its probe 3.85" in sentence
        assert known_speed(store, **PLACE).peak_gflops == pytest.approx(80)
        assert ensure_probed(store, **PLACE, measure=lambda: probes_here(1)) == 3
        assert known_speed(store, **PLACE).peak_gflops == pytest.approx(100)
        assert ensure_probed(store, **PLACE, measure=lambda: probes_here(50)) == 0


def test_a_probe_by_the_clock_on_the_wall_is_taken_again_by_the_processors(tmp_path) -> None:
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        store.append_many(probes_here(26, settings=""))
        assert ensure_probed(store, **PLACE, measure=lambda: probes_here(1)) == 3
        assert known_speed(store, **PLACE).peak_gflops == pytest.approx(100)


def test_probes_that_stay_contradicted_are_not_taken_for_ever(tmp_path) -> None:
    takes = []

    def measure() -> list[tuple[Workload, Measurement]]:
        takes.append(1)
        return probes_here(26 + len(takes))

    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        store.append_many(kernels_here())
        assert [ensure_probed(store, **PLACE, measure=measure) for _ in range(5)] == [9, 0, 0, 0, 0]
        assert known_speed(store, **PLACE).peak_gflops == pytest.approx(80)


def test_kernels_that_come_after_a_probe_are_heard_at_the_end(tmp_path) -> None:
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        assert ensure_probed(store, **PLACE, measure=lambda: probes_here(26)) == 3
        store.append_many(kernels_here())
        assert settle_probes(store, **PLACE, measure=lambda: probes_here(1)) == 3
        assert settle_probes(store, **PLACE, measure=lambda: probes_here(1)) == 0
        assert ensure_probed(store, **PLACE, measure=lambda: probes_here(1)) == 0


def test_time_that_others_have_the_processor_does_not_count() -> None:
    wall, busy = iter([0.0, 1.0]), iter([0.0, 0.02])
    assert sample_us(lambda: None, wall=wall.__next__, processor=busy.__next__) == pytest.approx(20_000)
    wall, busy = iter([0.0, 1.0]), iter([0.0, 0.08])
    found = sample_us(lambda: None, threads=4, calls=10, wall=wall.__next__, processor=busy.__next__)
    assert found == pytest.approx(2_000)
    wall, busy = iter([0.0, 1.0]), iter([0.0, 0.02])
    on_gpu = sample_us(lambda: None, threads=None, wall=wall.__next__, processor=busy.__next__)
    assert on_gpu == pytest.approx(1e6)


class MadeUpGpu:
    """A GPU as torch shows it, whose kernels take 1.7 us, and the host 10 us for each call."""

    def __init__(self) -> None:
        self.host_us = self.device_us = 0.0
        self.in_graph, self.is_capturing = 0, False
        cuda = SimpleNamespace(is_available=lambda: True, synchronize=self.synchronize)
        cuda.CUDAGraph, cuda.graph = lambda: SimpleNamespace(replay=self.replay), self.capture
        tensor = MagicMock(copy_=lambda source: self.run(1))
        tensor.__getitem__.return_value = tensor
        made = dict.fromkeys(("rand", "ones", "empty_like"), lambda *_, **__: tensor)
        self.torch = SimpleNamespace(cuda=cuda, matmul=lambda left, right: self.run(1), **made)

    def run(self, num_kernels: int) -> None:
        if self.is_capturing:
            self.in_graph += num_kernels
            return
        self.host_us += 10
        self.device_us = max(self.device_us, self.host_us) + 1.7 * num_kernels

    def replay(self) -> None:
        self.run(self.in_graph)

    @contextmanager
    def capture(self, graph: object) -> Iterator[None]:
        self.is_capturing = True
        yield
        self.is_capturing = False

    def synchronize(self) -> None:
        self.host_us = max(self.host_us, self.device_us)


def test_the_empty_call_of_a_gpu_is_a_kernel_among_others_and_no_call_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = MadeUpGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    monkeypatch.setattr(device_probe, "sample_us", partial(sample_us, wall=lambda: gpu.host_us / 1e6))
    assert device_probe._probe_cuda()["call"]() == pytest.approx(1.7, rel=0.01)


def test_rounds_go_on_until_two_agree_and_the_calmest_is_kept() -> None:
    rounds = [{"peak": [30.0, 31.0], "call": [1.0, 1.0]}, {"peak": [20.0, 22.0], "call": [1.5, 1.5]}]
    assert not agree(rounds[:1])
    assert not agree(rounds)
    rounds.append({"peak": [21.0, 21.5], "call": [1.02, 1.0]})
    assert agree(rounds)
    assert calmest(rounds) == {"peak": [20.0, 22.0], "call": [1.0, 1.0]}
