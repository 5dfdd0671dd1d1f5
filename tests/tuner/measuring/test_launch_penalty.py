"""The launch penalty is measured once, and is a small number of microseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from records import open_store
from tuner.backends.registry import backends_for
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.measuring.measurer import Measurer
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
    assert 0 <= first.latency_us < 1000
    assert len(first.record_ids) == 2
