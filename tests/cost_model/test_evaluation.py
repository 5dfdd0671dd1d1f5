import pytest
from kernel_physics import many_records

from cost_model.dataset import load_dataset
from cost_model.evaluation import evaluate


def figures_of(splits=None):
    dataset = load_dataset(many_records(80))
    fingerprints = list(dict.fromkeys(sample.query.workload.fingerprint for sample in dataset.samples))
    networks = {"first": fingerprints[:35], "second": fingerprints[25:60], "third": fingerprints[60:]}
    return evaluate(dataset, networks=networks, splits=splits, min_latency_us=1.0, num_threads=1)


def check(figures):
    for split in figures.values():
        assert 0 <= split.median_ape <= split.p90_ape
        assert 0 <= split.within_10 <= split.within_20 <= 1
        assert 0 <= split.coverage_90 <= 1
        assert split.regret is not None
        assert split.regret >= 0
    assert figures["network"].num_samples == 2 * (80 - 10), "workloads of two networks are not held out"


@pytest.mark.slow  # test_training_range.py evaluates another split
def test_a_split_has_figures_in_range():
    figures = figures_of(["network"])
    assert list(figures) == ["network"]
    check(figures)


@pytest.mark.slow
def test_every_split_has_figures_in_range_and_known_combinations_are_easier_than_new_ones():
    figures = figures_of()
    assert list(figures) == ["workload", "shape", "combination", "extrapolation", "network"]
    check(figures)
    assert figures["shape"].median_ape < 0.15
    assert figures["shape"].spearman > 0.95
    assert figures["combination"].median_ape >= figures["shape"].median_ape * 0.5
