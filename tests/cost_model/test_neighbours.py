"""The nearest measured kernel: found within its backend, and blended as far as it helps."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kernel_physics import many_records

from cost_model import load_dataset, load_kernel_model, train_kernel_model
from cost_model.features import FEATURE_NAMES, feature_matrix, roofline_vector
from cost_model.kernel_model import base_of
from cost_model.neighbours import (
    MAX_NEIGHBOURS,
    Blend,
    Neighbours,
    best_share,
    neighbours_of,
)

BLAS, TVM = (FEATURE_NAMES.index(f"backend_{name}") for name in ("blas", "tvm"))
FLOPS = FEATURE_NAMES.index("log_flops")


def rows(*pairs: tuple[int, float]) -> np.ndarray:
    """Return features of kernels, each of a backend's column and a logarithm of operations."""
    features = np.zeros((len(pairs), len(FEATURE_NAMES)), np.float32)
    for row, (backend, flops) in zip(features, pairs, strict=True):
        row[backend], row[FLOPS] = 1, flops
    return features


class Constant:
    """Answers as a forest that learnt one number."""

    def inplace_predict(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), 5.0)


def test_the_nearest_kernel_is_of_the_same_backend() -> None:
    known = neighbours_of(rows((BLAS, 10.0), (TVM, 14.0), (TVM, 20.0)), np.array([1.0, 2.0, 3.0]))
    assert known is not None
    assert known.predict(rows((TVM, 10.0), (TVM, 18.0), (BLAS, 20.0))).tolist() == [2.0, 3.0, 1.0]


def test_a_blend_lies_between_forest_and_neighbour() -> None:
    features = rows((TVM, 10.0), (TVM, 20.0))
    for share, expected in ((0.0, [5.0, 5.0]), (0.25, [4.0, 4.5]), (1.0, [1.0, 3.0])):
        known = neighbours_of(features, np.array([1.0, 3.0]), share=share)
        assert Blend(Constant(), known).inplace_predict(features).tolist() == expected
    assert Blend(Constant(), None).inplace_predict(features).tolist() == [5.0, 5.0]


def test_the_share_is_the_one_that_errs_least() -> None:
    labels = np.linspace(0, 1, 20)
    wrong = labels + np.tile([0.4, -0.4], 10)
    assert best_share(labels, wrong, labels) == 0.0
    assert best_share(wrong, labels, labels) == 1.0
    assert best_share(labels - 0.3, labels + 0.3, labels) == 0.5


def test_many_kernels_have_no_neighbours_and_bad_tables_are_refused() -> None:
    features = rows((TVM, 10.0))
    many = np.repeat(features, MAX_NEIGHBOURS + 1, axis=0)
    assert neighbours_of(many, np.zeros(len(many))) is None
    sound = neighbours_of(features, np.zeros(1))
    for change in (
        {"share": 1.5},
        {"features": b""},
        {"labels": np.array([np.nan], np.float32).tobytes()},
        {"labels": np.array([1e9], np.float32).tobytes()},
        {"scales": b"abc"},
    ):
        document = msgspec.json.decode(msgspec.json.encode(sound))
        changed = document | msgspec.to_builtins(change)
        with pytest.raises(msgspec.ValidationError, match="its neighbours"):
            msgspec.json.decode(msgspec.json.encode(changed), type=Neighbours)


def test_a_model_of_its_neighbours_alone_repeats_what_was_measured(tmp_path: Path) -> None:
    dataset = load_dataset(many_records(30))
    forest = train_kernel_model(dataset, calibrated=False, num_threads=1)
    labels = np.log(dataset.latencies_us) - base_of(roofline_vector(dataset.queries), "roofline_ratio")
    neighbours = neighbours_of(feature_matrix(dataset.queries), labels)
    manifest = msgspec.structs.replace(forest.manifest, neighbours=neighbours)
    replace(forest, manifest=manifest).save(tmp_path)
    found = load_kernel_model(tmp_path).predict_arrays(dataset.queries)[0]
    # Equal features stand for several kernels here and there: the first of them answers.
    repeated = np.isclose(found, dataset.latencies_us, rtol=1e-4)
    assert repeated.mean() > 0.9
    alone = forest.predict_arrays(dataset.queries)[0]
    assert np.isclose(alone, dataset.latencies_us, rtol=1e-4).mean() < 0.3
