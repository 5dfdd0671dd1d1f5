"""Commands that measure behind TVM's tracker: a model's stages and its plan, each function timed there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from records import Status, open_store
from tests.tuner.fleet.rpc_devices import RpcDevices

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


@pytest.fixture(scope="module")
def devices() -> Iterator[RpcDevices]:
    with RpcDevices() as started:
        started.serve()
        started.wait_for(1)
        yield started


def test_a_model_is_tuned_and_cut_into_stages_behind_a_tracker(
    devices: RpcDevices, tessel: Callable[..., Any], tmp_path: Path
) -> None:
    """The plan's figures are those of the device; the stages that `stages` shows are measured already."""
    records = ("--records", f"sqlite:///{tmp_path}/records.db", "--target", devices.address())
    pipeline = ("--devices", "2", "--micro-batches", "4", "--hop-us", "20", "--work", "0.1")
    tuned = tessel("tune", "mlp:tiny", *pipeline, *records, "--out", str(tmp_path / "out"), "--json")
    assert tuned.status == 0, tuned.stderr
    found = json.loads(tuned.stdout)
    assert found["new_measurements"] > 0
    assert found["max_gradient_error"] < 1e-4
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["hop_source"] == "given"
    shown = tessel("stages", "mlp:tiny", "--devices", "2", *records, "--json")
    assert shown.status == 0, shown.stderr
    stages = json.loads(shown.stdout)["stages"]
    assert [each["forward_us"] for each in stages] == [
        each["forward"]["latency_us"] for each in plan["stages"]
    ]
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        kinds = {record.measurement.status for record in store.iterate()}
    assert kinds == {Status.OK}
