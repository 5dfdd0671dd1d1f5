"""All-reduces among real processes: samples of each size, and a failure that says what to do."""

from __future__ import annotations

import pytest

from records import Environment, Status
from tuner.errors import TunerError
from tuner.measuring.communication.all_reduce import all_reduce_workload, measure_all_reduces
from tuner.targets.target import Target

pytestmark = pytest.mark.torch

TARGET = Target(name="cpu", kind="cpu", tvm_json='{"kind":"llvm"}', num_threads=1)
ENVIRONMENT = Environment(
    device_kind="cpu", device_model="test", num_cores=1, num_threads=1, driver="test", versions=()
)


def test_each_size_is_measured_under_its_own_workload() -> None:
    measured = measure_all_reduces((4, 1 << 22), 2, target=TARGET, environment=ENVIRONMENT)
    assert [each.workload_fingerprint for each in measured] == [
        all_reduce_workload(size, 2).fingerprint for size in (4, 1 << 22)
    ]
    assert all(each.status is Status.OK for each in measured)
    small, large = measured
    assert min(large.samples_us) > min(small.samples_us) > 0
    assert all_reduce_workload(4, 2) != all_reduce_workload(4, 4)


def test_a_rank_that_fails_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.measuring.communication.all_reduce.sys.executable", "false")
    with pytest.raises(TunerError, match="give what the link between devices does with --link and --hop-us"):
        measure_all_reduces((4,), 2, target=TARGET, environment=ENVIRONMENT)
