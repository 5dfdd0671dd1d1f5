"""A Gaussian process over measured kernels, and its mean with a forest: what few records allow.

A forest needs thousands of kernels. Of a few hundred, a smooth function of the same features predicts new
shapes better, and a forest new combinations of operators; their mean is about as good as the better one on
either. The process also knows how far a query is from all that was measured: its standard deviation is one
more feature of the forest that predicts the size of errors. The kernel is Matérn's with ν = 3/2 and one
length scale for each group of features; length scales, amplitude and noise maximise the posterior of a part
of the samples. A coordinate counts up to three standard deviations, since a rare operator would otherwise be
infinitely far from everything. Checked in tests/cost_model/test_gaussian_process.py;
`python -m benchmarks.cost_model --few-only` shows what it gives.

Source: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, algorithm 2.1 and section
5.4. Equal weights are Bates and Granger's, "The combination of forecasts", 1969: of few samples, weights
chosen on out-of-fold predictions were no better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cost_model.features import FEATURE_GROUPS, FEATURE_NAMES

MAX_PROCESS_SAMPLES = 2000
"""Of larger training sets the forest alone is used: the process takes the cube of their number."""

_FIT_SAMPLES = 500
"""Samples that hyperparameters are fitted to, which takes some two seconds; a fit takes the cube of their
number."""

_FARTHEST = 3.0
"""Standard deviations that a coordinate counts at most."""

_LEAST_SPREAD = 1e-6
_MAX_LABEL = 100.0
_NOISE, _LENGTH = 0.3, 1.5
"""Centres of the priors of the noise's and the length scales' logarithms, whose standard deviation is one; in
units of the spread of labels, and of features."""

_LIMIT = 3.0
"""Logarithms of parameters are kept within this."""

_LEAST_NOISE = math.exp(-_LIMIT)
_MAX_ITERATIONS = 40
_BLOCK = 64
"""Queries that are computed at once, always so many: the order in which a library adds up depends on the
shapes of matrices, and no answer may depend on how many other queries there are."""

Array = npt.NDArray[np.float64]


def _group_of(name: str) -> str:
    if name.startswith("backend_"):
        return "backend"
    if name.startswith(("operator_", "kind_")):
        return "operators"
    if "_mod_" in name or name.startswith(("twos_", "tile_")) or name.endswith("_lanes"):
        return "tiles"
    group = next(group for group, names in FEATURE_GROUPS.items() if name in names)
    return "anchor" if group == "layout" else group


_GROUPS = tuple(dict.fromkeys(map(_group_of, FEATURE_NAMES)))
_GROUP_OF = np.array([_GROUPS.index(_group_of(name)) for name in FEATURE_NAMES])
_IS_COUNT = np.array([name.startswith(("operator_", "kind_", "num_", "depth")) for name in FEATURE_NAMES])


class ProcessKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hyperparameters of a process.

    Attributes:
        centres: what is subtracted from each feature, float32, shape (num_features,).
        scales: what each feature is multiplied by, to have a standard deviation of 1; float32, same shape.
        lengths: length scale of each group of features.
        amplitude: standard deviation of the function, in units of the spread of labels.
        noise: standard deviation of a measurement, likewise.
    """

    centres: bytes
    scales: bytes
    lengths: tuple[float, ...]
    amplitude: float
    noise: float

    def __post_init__(self) -> None:
        width = len(FEATURE_NAMES)
        if len(self.centres) != 4 * width or len(self.scales) != 4 * width:
            raise ValueError("its process is not of the features that are made here")
        arrays = [np.frombuffer(part, np.float32) for part in (self.centres, self.scales)]
        parameters = (*self.lengths, self.amplitude, self.noise)
        least, most = 0.99 * _LEAST_NOISE, 1.01 / _LEAST_NOISE
        is_sound = all(np.isfinite(part).all() for part in arrays) and len(self.lengths) == len(_GROUPS)
        if not (is_sound and all(least <= value <= most for value in parameters)):
            raise ValueError("its process has parameters that no training gives")

    def coordinates(self, features: np.ndarray) -> Array:
        """Return points whose distances the covariance depends on, shape (num_queries, num_features)."""
        scales = np.frombuffer(self.scales, np.float32).astype(np.float64)
        standard = (_transformed(features) - np.frombuffer(self.centres, np.float32)) * scales
        weights = 1 / (np.asarray(self.lengths)[_GROUP_OF] * np.sqrt(_group_sizes(scales))[_GROUP_OF])
        clipped: Array = np.clip(standard, -_FARTHEST, _FARTHEST) * weights
        return clipped

    def covariance(self, left: Array, right: Array) -> Array:
        """Return the covariance of the function at two sets of coordinates, shape (num_left, num_right)."""
        return np.asarray(self.amplitude**2 * _matern(_squares(left, right))[0])


class ProcessTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a process rests on, as it is saved.

    Attributes:
        kernel: its hyperparameters.
        features: of the samples, float32, shape (num_samples, num_features).
        labels: logarithms of their latencies over their bounds, float32, shape (num_samples,).
    """

    kernel: ProcessKernel
    features: bytes
    labels: bytes

    def __post_init__(self) -> None:
        count = len(self.labels) // 4
        fits = len(self.labels) == 4 * count and 0 < count <= MAX_PROCESS_SAMPLES
        if not (fits and len(self.features) == 4 * count * len(FEATURE_NAMES)):
            raise ValueError("its process has no table of kernels and features")
        values = [np.frombuffer(part, np.float32) for part in (self.features, self.labels)]
        if not all(np.isfinite(part).all() for part in values) or (np.abs(values[1]) > _MAX_LABEL).any():
            raise ValueError("its process rests on what is no number, or no ratio of a latency")


class ProcessAnswer(NamedTuple):
    """Labels that a process predicts, and logarithms of their standard deviations; shape (num_queries,)."""

    labels: Array
    log_deviations: Array


class GaussianProcess:
    """A process that was solved for its samples; O(num_samples³) to make, O(num_samples²) a query."""

    def __init__(self, kernel: ProcessKernel, features: np.ndarray, labels: np.ndarray) -> None:
        """Solve for samples.

        Args:
            kernel: hyperparameters.
            features: float32, shape (num_samples, num_features).
            labels: shape (num_samples,).
        """
        self._kernel = kernel
        self._points = kernel.coordinates(features)
        self._level, self._spread = _level_and_spread(labels)
        covariance = kernel.covariance(self._points, self._points)
        covariance[np.diag_indices_from(covariance)] += kernel.noise**2
        self._whitener = np.linalg.inv(np.linalg.cholesky(covariance))
        self._weights = self._whitener.T @ (self._whitener @ ((labels - self._level) / self._spread))

    def predict(self, features: np.ndarray) -> ProcessAnswer:
        """Return what the process says of each query.

        Args:
            features: float32, shape (num_queries, num_features).
        """
        count = len(features)
        blocks = -(-count // _BLOCK)
        padded = np.zeros((blocks * _BLOCK, len(FEATURE_NAMES)), np.float32)
        padded[:count] = features
        answers = [self._predict(block) for block in np.split(padded, blocks)] if blocks else []
        labels, log_deviations = (
            np.concatenate([np.zeros(0), *(answer[part] for answer in answers)])[:count] for part in (0, 1)
        )
        return ProcessAnswer(labels, log_deviations)

    def _predict(self, features: np.ndarray) -> tuple[Array, Array]:
        covariance = self._kernel.covariance(self._kernel.coordinates(features), self._points)
        labels = self._level + self._spread * (covariance @ self._weights)
        explained = ((covariance @ self._whitener.T) ** 2).sum(axis=1)
        variance = np.maximum(self._kernel.amplitude**2 - explained, 0.0) + self._kernel.noise**2
        return labels, np.log(self._spread * np.sqrt(variance))


def solved(table: ProcessTable | None) -> GaussianProcess | None:
    """Return the process of a table; None of none."""
    if table is None:
        return None
    features = np.frombuffer(table.features, np.float32).reshape(-1, len(FEATURE_NAMES))
    return GaussianProcess(table.kernel, features, np.frombuffer(table.labels, np.float32).astype(np.float64))


def table_of(kernel: ProcessKernel, features: np.ndarray, labels: np.ndarray) -> ProcessTable:
    """Return what is saved of a process; see `ProcessTable`."""
    return ProcessTable(
        kernel=kernel,
        features=np.ascontiguousarray(features, np.float32).tobytes(),
        labels=labels.astype(np.float32).tobytes(),
    )


class MeanAnswer(NamedTuple):
    """Labels, and what a process says of their errors if it counts in them; each of shape (num_queries,)."""

    labels: Array
    log_deviations: Array | None


def mean_answer(forest: Any, process: GaussianProcess | None, features: np.ndarray) -> MeanAnswer:
    """Return the mean of the labels that a forest and a process predict, or the forest's alone.

    Args:
        forest: `xgboost.Booster`.
        process: None where the forest is alone.
        features: float32, shape (num_queries, num_features).
    """
    labels = forest.inplace_predict(features).astype(np.float64)
    if process is None:
        return MeanAnswer(labels, None)
    answer = process.predict(features)
    return MeanAnswer((labels + answer.labels) / 2, answer.log_deviations)


def fit_kernel(features: np.ndarray, labels: np.ndarray, *, rng: np.random.Generator) -> ProcessKernel:
    """Return the hyperparameters that are most probable, rounded to hundredths of their logarithms.

    Args:
        features: float32, shape (num_samples, num_features).
        labels: shape (num_samples,).
        rng: of the part of the samples that they are fitted to.
    """
    # More to import than all else in a measuring process.
    from scipy.optimize import minimize  # noqa: PLC0415

    transformed = _transformed(features)
    centres, spread = transformed.mean(axis=0), transformed.std(axis=0)
    scales = np.where(spread > _LEAST_SPREAD, 1 / np.maximum(spread, _LEAST_SPREAD), 0.0)
    posterior = _Posterior.of_samples(transformed, labels, centres, scales, rng)
    found = minimize(
        posterior.negative_log,
        posterior.prior,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _MAX_ITERATIONS},
        bounds=[(-_LIMIT, _LIMIT)] * len(posterior.prior),
    )
    # Processors round differently in the last digits, which must not reach a model.
    amplitude, noise, *lengths = map(float, np.exp(np.round(found.x, 2)))
    return ProcessKernel(
        centres=centres.astype(np.float32).tobytes(),
        scales=scales.astype(np.float32).tobytes(),
        lengths=tuple(lengths),
        amplitude=amplitude,
        noise=noise,
    )


@dataclass(frozen=True, slots=True)
class _Posterior:
    """Posterior of the logarithms of amplitude, noise and length scales.

    Attributes:
        squares: of distances in each group of features, over their number; each (num_samples, num_samples).
        labels: standardised, shape (num_samples,).
        prior: centres of the parameters' priors.
    """

    squares: tuple[Array, ...]
    labels: Array
    prior: Array

    @classmethod
    def of_samples(
        cls,
        transformed: Array,
        labels: np.ndarray,
        centres: Array,
        scales: Array,
        rng: np.random.Generator,
    ) -> _Posterior:
        chosen = np.sort(rng.permutation(len(labels))[:_FIT_SAMPLES])
        points = np.clip((transformed[chosen] - centres) * scales, -_FARTHEST, _FARTHEST)
        sizes = _group_sizes(scales)
        groups = [points[:, group == _GROUP_OF] for group in range(len(_GROUPS))]
        level, spread = _level_and_spread(labels)
        return cls(
            squares=tuple(_squares(group, group) / size for group, size in zip(groups, sizes, strict=True)),
            labels=(labels[chosen] - level) / spread,
            prior=np.log([1.0, _NOISE, *[_LENGTH] * len(_GROUPS)]),
        )

    def negative_log(self, parameters: Array) -> tuple[float, Array]:
        """Return the negative logarithm of the posterior, less a constant, and its gradient."""
        amplitude, noise, *lengths = np.exp(2 * parameters)
        squares = sum(each / length for each, length in zip(self.squares, lengths, strict=True))
        shape, slope = _matern(np.asarray(squares))
        covariance = amplitude * shape
        covariance[np.diag_indices_from(covariance)] += noise
        factor = np.linalg.cholesky(covariance)
        inverse = np.linalg.inv(factor)
        inverse = inverse.T @ inverse
        weights = inverse @ self.labels
        # The likelihood's derivative is half the trace of this times the covariance's.
        outer = inverse - np.outer(weights, weights)
        deviation = parameters - self.prior
        value = 0.5 * self.labels @ weights + np.log(np.diag(factor)).sum() + 0.5 * (deviation**2).sum()
        by_square = outer * slope * amplitude
        gradient = [
            (outer * shape).sum() * amplitude,
            np.trace(outer) * noise,
            *(-(by_square * each).sum() / length for each, length in zip(self.squares, lengths, strict=True)),
        ]
        return float(value), np.asarray(gradient) + deviation


def _transformed(features: np.ndarray) -> Array:
    """Return the features with logarithms of counts, as extents have them already."""
    found = features.astype(np.float64)
    found[:, _IS_COUNT] = np.log1p(np.maximum(found[:, _IS_COUNT], 0.0))
    return found


def _group_sizes(scales: Array) -> Array:
    """Return how many features of each group vary at all, at least one."""
    return np.maximum(np.bincount(_GROUP_OF[scales > 0], minlength=len(_GROUPS)), 1.0)


def _level_and_spread(labels: np.ndarray) -> tuple[float, float]:
    level = float(np.median(labels))
    return level, max(float(np.std(labels)), _LEAST_SPREAD)


def _squares(left: Array, right: Array) -> Array:
    """Return squares of distances, shape (num_left, num_right)."""
    sums = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :]
    return np.asarray(np.maximum(sums - 2 * (left @ right.T), 0.0))


def _matern(squares: Array) -> tuple[Array, Array]:
    """Return Matérn's function with ν = 3/2 of squares of distances, and its derivative by them."""
    distances = np.sqrt(3 * squares)
    decay = np.exp(-distances)
    return (1 + distances) * decay, -1.5 * decay
