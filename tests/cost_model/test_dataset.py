from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_physics import many_records, measured, probes, product

from cost_model.dataset import (
    extent_groups,
    load_dataset,
    network_groups,
    shape_groups,
    split_folds,
    workload_groups,
)
from cost_model.errors import CostModelError
from cost_model.features import anchor_key, roofline_vector
from records import Record
from records.files.exchange import read_records

SAMPLE = Path(__file__).parent / "kernels_amd-epyc.jsonl"


def test_repeated_measurements_of_a_key_are_one_sample():
    workload = product(64, 64, 64)
    found = [*probes(), measured(workload, "blas", 10.0, 4), measured(workload, "blas", 30.0, 5)]
    (sample,) = load_dataset(found).samples
    assert sample.latency_us == pytest.approx(20.0)
    assert sample.record_ids == (4, 5)


def test_device_without_probe_is_refused():
    with pytest.raises(CostModelError, match="no device probe"):
        load_dataset([measured(product(8, 8, 8), "blas", 10.0, 1)])


@given(groups=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60), folds=st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_no_group_is_in_two_folds(groups, folds):
    found = split_folds(groups, num_folds=folds, rng=np.random.default_rng(0))
    assert len(found) == len(groups)
    fold_by_group = dict(zip(groups, found.tolist(), strict=True))
    assert all(fold_by_group[group] == fold for group, fold in zip(groups, found, strict=True))


def test_kernels_of_one_width_are_one_group():
    latency_us = 10.0
    found = [
        measured(product(*extents), "blas", latency_us, 4 + number)
        for number, extents in enumerate([(8, 64, 16), (32, 16, 64), (8, 48, 16)])
    ]
    assert extent_groups(load_dataset([*probes(), *found])) == ["matmul:64", "matmul:64", "matmul:48"]


def test_workloads_of_several_networks_are_shared():
    dataset = load_dataset(many_records(3))
    first, second, third = dict.fromkeys(s.query.workload.fingerprint for s in dataset.samples)
    groups = network_groups(dataset, {"a": [first, second], "b": [second, third]})
    assert groups == ["a", "a", "shared", "shared", "b", "b"]


def test_what_a_generic_collection_holds_too_stays_held_out_with_its_network():
    dataset = load_dataset(many_records(3))
    first, second, third = dict.fromkeys(s.query.workload.fingerprint for s in dataset.samples)
    groups = network_groups(dataset, {"a": [first], "generic:x": [first, second], "b": [third]})
    assert groups == ["a", "a", "shared", "shared", "b", "b"]


def test_the_fixed_sample_is_a_training_set():
    found = [
        Record(record_id=number, workload=workload, measurement=measurement)
        for number, (workload, measurement) in enumerate(read_records(SAMPLE), start=1)
    ]
    dataset = load_dataset(found)
    assert len(dataset.samples) >= 150
    assert {query.backend for query in dataset.queries} == {"tvm", "blas", "torch"}
    assert len(set(shape_groups(dataset))) >= 40
    # Every kernel takes longer than a tenth of its bound: speeds of caches beat that of the memory.
    assert (dataset.latencies_us > 0.1 * roofline_vector(dataset.queries)).all()


def test_a_shape_is_held_out_with_everything_around_it():
    shape = product(64, 32, 16)
    dataset = load_dataset(
        [*probes(), *(measured(product(64, 32, 16, epilogue=n), "blas", 10.0, 4 + n) for n in range(3))]
    )
    assert len(set(shape_groups(dataset))) == 1
    assert len(set(workload_groups(dataset))) == 3
    assert shape_groups(dataset)[0] == anchor_key(shape) != anchor_key(product(64, 32, 8))
