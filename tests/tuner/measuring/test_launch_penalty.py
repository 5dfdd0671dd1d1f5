"""The launch penalty is measured once, and is a small number of microseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from records import Status, open_store
from tuner.backends.registry import backends_for
from tuner.errors import TunerError
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.measuring.measurer import Measurer
from tuner.measuring.request import DEFAULT_LIMITS, Limits
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def test_penalty_is_measured_once(tmp_path: Path) -> None:
    target = resolve_target("cpu", num_threads=1)
    backends = backends_for(("tvm",), target)
    with (
        open_store(f"sqlite:///{tmp_path}/records.db") as store,
        Measurer(store, target, backends) as measurer,
    ):
        first = measure_launch_penalty(measurer)
        assert measurer.new_measurements == 2
        assert measure_launch_penalty(measurer) == first
        assert measurer.new_measurements == 2
    assert first.latency_us >= 0
    assert len(first.record_ids) == 2


@pytest.mark.parametrize(
    "limits",
    [Limits(build_timeout_s=0.001), Limits(run_timeout_s=1e-6)],
    ids=["build", "run"],
)
@pytest.mark.slow  # as any failure of the machine (test_measurer.py)
def test_a_probe_that_failed_is_measured_again(limits: Limits, tmp_path: Path) -> None:
    """Nothing of a program that runs wherever anything does can be the cause."""
    target = resolve_target("cpu", num_threads=1)
    backends = backends_for(("tvm",), target)
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        with Measurer(store, target, backends, limits=limits) as measurer:
            with pytest.raises(TunerError, match="the launch probe failed"):
                measure_launch_penalty(measurer)
            assert measurer.new_measurements == 2
        statuses = [record.measurement.status for record in store.iterate()]
        assert Status.TIMEOUT in statuses
        for num_new in (2 if Status.OK not in statuses else 1, 0):
            with Measurer(store, target, backends, limits=DEFAULT_LIMITS) as measurer:
                assert measure_launch_penalty(measurer).latency_us >= 0
                assert measurer.new_measurements == num_new
