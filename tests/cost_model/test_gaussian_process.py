"""The process over few kernels: smooth, sure only near what was measured, and refused when it is damaged."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from kernel_physics import many_records

from cost_model.dataset import load_dataset
from cost_model.features import FEATURE_NAMES
from cost_model.gaussian_process import (
    MAX_PROCESS_SAMPLES,
    GaussianProcess,
    ProcessKernel,
    ProcessTable,
    _Posterior,
    fit_kernel,
    mean_answer,
    solved,
    table_of,
)
from cost_model.kernel_model import load_kernel_model
from cost_model.kernel_training import train_kernel_model

FLOPS, ROWS, PRODUCTS = (FEATURE_NAMES.index(name) for name in ("log_flops", "log_m", "operator_matmul"))


def kernels(count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features of kernels of which three vary, and labels that follow two of these."""
    rng = np.random.default_rng(seed)
    features = np.zeros((count, len(FEATURE_NAMES)), np.float32)
    features[:, FLOPS], features[:, ROWS] = rng.uniform(10, 30, count), rng.uniform(0, 10, count)
    features[:, PRODUCTS] = rng.integers(0, 3, count)
    return features, np.sin(features[:, FLOPS] / 5) + 0.1 * features[:, ROWS]


@pytest.fixture(scope="module")
def kernel() -> ProcessKernel:
    return fit_kernel(*kernels(150), rng=np.random.default_rng(0))


class Constant:
    """Answers as a forest that learnt one number."""

    def inplace_predict(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), 5.0)


def test_a_smooth_function_is_learnt_from_few_kernels(kernel: ProcessKernel) -> None:
    process = GaussianProcess(kernel, *kernels(150))
    asked, truth = kernels(200, seed=1)
    assert np.abs(process.predict(asked).labels - truth).mean() < 0.05
    assert process.predict(asked[:0]).labels.shape == (0,)


def test_an_answer_does_not_depend_on_the_other_queries(kernel: ProcessKernel) -> None:
    process = GaussianProcess(kernel, *kernels(150))
    asked, _ = kernels(150, seed=1)
    together = process.predict(asked)
    for number in range(len(asked)):
        alone = process.predict(asked[number : number + 1])
        assert (alone.labels[0], alone.log_deviations[0]) == (
            together.labels[number],
            together.log_deviations[number],
        )


def test_the_process_is_less_sure_of_what_is_far_from_all_kernels(kernel: ProcessKernel) -> None:
    known, labels = kernels(150)
    process = GaussianProcess(kernel, known, labels)
    far = known.copy()
    far[:, FLOPS] += 20
    near, outside = (np.exp(process.predict(asked).log_deviations).mean() for asked in (known, far))
    assert outside > 2 * near


def test_a_rare_operator_is_not_infinitely_far(kernel: ProcessKernel) -> None:
    features, _ = kernels(2)
    features[:, PRODUCTS] = 50, 5000
    rare, rarest = kernel.coordinates(features)[:, PRODUCTS]
    assert rare == rarest


def test_the_gradient_is_that_of_the_posterior() -> None:
    features, labels = (each.astype(np.float64) for each in kernels(40))
    spread = features.std(axis=0)
    scales = np.where(spread > 0, 1 / np.maximum(spread, 1e-6), 0.0)
    posterior = _Posterior.of_samples(
        features, labels, features.mean(axis=0), scales, np.random.default_rng(0)
    )
    parameters = posterior.prior + 0.1
    _, gradient = posterior.negative_log(parameters)
    for index, expected in enumerate(gradient):
        step = np.zeros_like(parameters)
        step[index] = 1e-5
        up, down = (posterior.negative_log(parameters + sign * step)[0] for sign in (1, -1))
        assert (up - down) / 2e-5 == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_an_answer_is_the_mean_of_forest_and_process(kernel: ProcessKernel) -> None:
    features, labels = kernels(20)
    process = GaussianProcess(kernel, features, labels)
    found = mean_answer(Constant(), process, features)
    assert found.labels == pytest.approx((5.0 + process.predict(features).labels) / 2)
    assert found.log_deviations is not None
    alone = mean_answer(Constant(), None, features)
    assert alone.labels.tolist() == [5.0] * 20
    assert alone.log_deviations is None


def test_a_saved_process_answers_the_same_and_damaged_ones_are_refused(kernel: ProcessKernel) -> None:
    features, labels = kernels(20)
    table = table_of(kernel, features, labels)
    again = msgspec.json.decode(msgspec.json.encode(table), type=ProcessTable)
    first, second = (solved(each) for each in (table, again))
    assert first is not None
    assert second is not None
    assert first.predict(features).labels.tolist() == second.predict(features).labels.tolist()
    assert solved(None) is None
    damaged: tuple[dict[str, Any], ...] = (
        {"features": b""},
        {"labels": b""},
        {"labels": np.full(20, np.nan, np.float32).tobytes()},
        {"labels": np.full(20, 1e9, np.float32).tobytes()},
        {"labels": bytes(4 * (MAX_PROCESS_SAMPLES + 1))},
        {"kernel": {"scales": b"abc"}},
        {"kernel": {"noise": 0.0}},
        {"kernel": {"lengths": (1.0,)}},
        {"kernel": {"amplitude": 1e9}},
    )
    document = msgspec.json.decode(msgspec.json.encode(table))
    for change in damaged:
        plain = msgspec.to_builtins(change)
        if "kernel" in plain:
            plain = {"kernel": document["kernel"] | plain["kernel"]}
        with pytest.raises(msgspec.ValidationError, match="its process"):
            msgspec.json.decode(msgspec.json.encode(document | plain), type=ProcessTable)


def test_few_kernels_have_a_process_and_a_model_without_intervals_none(tmp_path: Path) -> None:
    dataset = load_dataset(many_records(60))
    model = train_kernel_model(dataset, num_threads=1)
    assert model.process is not None
    model.save(tmp_path)
    assert load_kernel_model(tmp_path).predict(dataset.queries) == model.predict(dataset.queries)
    assert train_kernel_model(dataset, calibrated=False, num_threads=1).process is None
