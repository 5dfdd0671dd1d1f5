"""Collecting is budgeted and resumable, and says which kernels belong to which network."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import pytest
from kernel_physics import many_records

from cost_model.dataset import load_dataset, network_groups
from cost_model.kernel_training import train_kernel_model
from cost_model.stage_model import load_stages
from records import open_store
from tests.samples.known_speed import keep_made_up_speed
from tuner.collecting.kernels import CollectionSettings, _lengths_of, _round_robin, collect
from tuner.collecting.stages import collect_stages
from tuner.pricing.protocol import Pricing
from tuner.tuning.session import SessionSettings, start_session

pytestmark = pytest.mark.tvm

MAX_GFLOPS = 20e-9
"""A third of the programs of the two batches: enough to stop among, and fewer to build."""


def test_collecting_goes_on_where_it_stopped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/records.db"
    keep_made_up_speed(url)
    # Stages are cut into parts by predictions, whoever's.
    pricing = Pricing(model=train_kernel_model(load_dataset(many_records(40)), calibrated=False))
    with start_session(
        "cpu", SessionSettings(backend_names=("tvm", "blas"), num_threads=1), records_url=url, pricing=pricing
    ) as session:
        gather = functools.partial(
            collect,
            session,
            CollectionSettings(networks=("mlp:tiny",), batches=(1, 2), max_gflops=MAX_GFLOPS),
        )
        first = gather(max_samples=1)
        assert 0 < first.num_new < first.num_found
        second = gather()
        assert first.num_new + second.num_new == second.num_found == second.num_done
        assert gather().num_new == 0
        assert all(
            record.workload.flops <= 1e9 * MAX_GFLOPS for record in session.store.iterate(role="kernel")
        )

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


def test_a_length_beyond_the_positions_of_a_network_is_left_out() -> None:
    assert _lengths_of("flava:tiny", (32, 128)) == (32,)
    assert _lengths_of("flava:tiny", (128,)) == (None,)
    assert _lengths_of("mlp:tiny", (32,)) == (None,)
