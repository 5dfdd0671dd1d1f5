"""Collecting is budgeted and resumable, and says which kernels belong to which network."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cost_model import load_dataset
from cost_model.dataset import network_groups
from cost_model.stage_model import load_stages
from records import open_store
from tuner.collect import _round_robin, collect
from tuner.collect_stages import collect_stages
from tuner.session import start_session

pytestmark = pytest.mark.tvm


def test_collecting_goes_on_where_it_stopped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/records.db"
    with start_session("cpu", records_url=url, backend_names=("tvm", "blas"), num_threads=1) as session:
        first = collect(session, networks=("mlp:tiny",), batches=(1, 2), max_samples=1)
        assert 0 < first.num_new < first.num_found
        second = collect(session, networks=("mlp:tiny",), batches=(1, 2))
        assert first.num_new + second.num_new == second.num_found == second.num_done
        assert collect(session, networks=("mlp:tiny",), batches=(1, 2)).num_new == 0

        # Stages of the kernels' network: two ticks of the clock are two functions.
        ticks = itertools.count()
        num_stages = collect_stages(
            session, networks=("mlp:tiny",), batches=(1,), time_limit_s=3, clock=lambda: next(ticks)
        )
        stages = load_stages(session.store.iterate())
        assert num_stages >= len(stages) >= 1
        assert {name for stage in stages for name, _, _ in stage.query.part_latencies_us} <= {"tvm", "blas"}
    with open_store(url) as store:
        dataset = load_dataset(store.iterate())
    groups = network_groups(dataset, second.networks)
    assert groups.count("mlp") >= second.num_found / 2


def test_rows_take_turns() -> None:
    assert _round_robin([[1, 2, 3], [], [4], [5, 6]]) == [1, 4, 5, 2, 6, 3]
