"""Collecting is budgeted and resumable, and says which kernels belong to which network."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_model import load_dataset
from cost_model.dataset import network_groups
from records import open_store
from tuner.collect import collect
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
    with open_store(url) as store:
        dataset = load_dataset(store.iterate())
    groups = network_groups(dataset, second.networks)
    assert groups.count("mlp:tiny") >= second.num_found / 2
