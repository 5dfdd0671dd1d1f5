"""The farther a query is from the training set, the wider its interval, and the wider ones hold."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_physics import many_records, product, true_latency_us

from cost_model.dataset import load_dataset
from cost_model.evaluation import evaluate
from cost_model.features import Query, feature_matrix
from cost_model.kernel_model import KernelModel
from cost_model.kernel_training import train_kernel_model
from cost_model.training_range import QUANTITIES, extreme_parts, range_of

DATASET = load_dataset(many_records(60))
SPEED = DATASET.samples[0].query.speed


def query(m: int, n: int, k: int, *, threads: int = 2, backend: str = "blas") -> Query:
    return Query(workload=product(m, n, k), backend=backend, settings="", num_threads=threads, speed=SPEED)


@pytest.fixture(scope="module")
def model() -> KernelModel:
    return train_kernel_model(DATASET, seed=1, num_threads=1)


def test_distance_is_in_doublings_and_names_what_is_outside() -> None:
    features = feature_matrix(DATASET.queries)
    ranges = range_of(features)
    assert (ranges.distance(features) == 0).all()
    highest = 2 ** ranges.high[0][QUANTITIES.index("log_n")] - 1
    near, far = (feature_matrix([query(64, round(highest * factor), 64)]) for factor in (4, 256))
    assert ranges.distance(near)[0] == pytest.approx(1.75, abs=0.1)
    assert ranges.distance(far)[0] == pytest.approx(7.75, abs=0.1)
    assert ranges.names_outside(far)[0][0] == "n"
    assert ranges.names_outside(feature_matrix([query(64, 64, 64, threads=64)])) == [("threads",)]


def test_intervals_widen_with_the_distance_and_say_why(model: KernelModel) -> None:
    inside, near, far = model.predict([query(256, n, 256) for n in (512, 4096, 262_144)])
    widths = [np.log(each.high_us / each.low_us) for each in (inside, near, far)]
    assert widths[0] < 0.8 * widths[1] < 0.6 * widths[2]
    assert inside.out_of_range == ()
    assert "n" in near.out_of_range
    assert "n" in far.out_of_range
    arrays = model.predict_arrays([query(256, 262_144, 256)])
    assert [float(values[0]) for values in arrays] == [far.latency_us, far.low_us, far.high_us]


@pytest.mark.slow
def test_intervals_hold_for_programs_far_larger_than_any_seen() -> None:
    dataset = load_dataset(many_records(80, seed=3))
    features = feature_matrix(dataset.queries)
    small = ~np.logical_or(*extreme_parts(features, 0.4)[:2])
    model = train_kernel_model(dataset.subset(np.flatnonzero(small)), seed=1, num_threads=1)
    queries = [
        query(m, n, k, backend=backend)
        for m, n, k in [(2048, 512, 512), (4096, 4096, 64), (64, 100_000, 512), (3000, 3000, 3000)]
        for backend in ("blas", "tvm")
    ]
    truth = np.array([true_latency_us(each.workload, each.backend) for each in queries])
    _, low, high = model.predict_arrays(queries)
    assert ((low <= truth) & (truth <= high)).mean() >= 0.8


def test_coverage_on_the_largest_programs_is_a_split_of_its_own() -> None:
    figures = evaluate(DATASET, splits=["extrapolation"], min_latency_us=0.0, num_threads=1)
    assert list(figures) == ["extrapolation"]
    assert figures["extrapolation"].coverage_90 >= 0.8
