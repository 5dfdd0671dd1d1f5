from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
from shared_modules import PYTHONPATH

from tessel.engine.actions import RankActions, actions_of, rank_by_stage
from tessel.engine.devices import CPUS, Devices
from tessel.engine.job import JobSpec, RankResult, RunSpec, actions_as_lines
from tessel.engine.ranks.launch import launch
from tessel.schedule import Schedule

Ran = tuple[tuple[RankResult, ...], dict[str, dict[str, np.ndarray]]]
"""What each rank reported, and gradients by run and by `stage/weight`."""


@pytest.fixture
def run_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Return a function that runs schedules of one placement on real ranks."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(
        schedules: Mapping[str, Schedule],
        *,
        provider: str,
        spec: msgspec.Struct,
        timeout_s: float = 240.0,
        devices: Devices = CPUS,
    ) -> Ran:
        gradients: dict[str, dict[str, np.ndarray]] = {name: {} for name in schedules}

        def read(folder: Path) -> None:
            for path in sorted(folder.glob("gradients-*.npz")):
                name = path.stem.removeprefix("gradients-").rpartition("-")[0]
                with np.load(path, allow_pickle=False) as arrays:
                    gradients[name].update({key: arrays[key] for key in arrays.files})

        job = make_job(schedules, provider=provider, spec=spec, devices=devices)
        results = launch(job, timeout_s=timeout_s, read=read)
        return results, gradients

    return run


def make_job(
    schedules: Mapping[str, Schedule], *, provider: str, spec: msgspec.Struct, devices: Devices
) -> JobSpec:
    """Return the job of some schedules of one placement."""
    first = next(iter(schedules.values()))
    orders: dict[str, RankActions] = {name: actions_of(schedule) for name, schedule in schedules.items()}
    return JobSpec(
        num_ranks=first.placement.devices,
        ranks_by_stage=rank_by_stage(first),
        micro_batches=first.micro_batches,
        provider=provider,
        provider_spec=msgspec.json.encode(spec).decode(),
        runs=tuple(RunSpec(name=name, actions=actions_as_lines(own)) for name, own in orders.items()),
        repeats=1,
        num_threads=1,
        devices=devices,
    )
