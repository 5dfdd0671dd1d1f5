import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_physics import many_records, measured, probes, product

from cost_model import CostModelError, load_dataset
from cost_model.dataset import network_groups, split_folds


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


def test_workloads_of_several_networks_are_shared():
    dataset = load_dataset(many_records(3))
    first, second, third = dict.fromkeys(s.query.workload.fingerprint for s in dataset.samples)
    groups = network_groups(dataset, {"a": [first, second], "b": [second, third]})
    assert groups == ["a", "a", "shared", "shared", "b", "b"]
