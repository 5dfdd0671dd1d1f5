"""A model's word on a new device after a short sweep: parameters fitted again, and a smooth correction.

Some 200 kernels fit the few parameters of `analytic_us`; what the forests leave over is a Gaussian process
of the kernels' extents, which is smooth because tiles and waves are in what it corrects. Which kernels to
measure is chosen before any is: one amid each of as many clusters of alike kernels. Checked in
tests/benchmarks/typed_kernels/test_adaptation.py.

Source: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, algorithm 2.1; clusters are
those of k-means++ (Arthur and Vassilvitskii, SODA 2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.vq import kmeans2

from cost_model.gpu.typed.analytic import analytic_us, fit, start_of
from cost_model.gpu.typed.features import feature_table
from cost_model.gpu.typed.kernels import Kernels
from cost_model.gpu.typed.model import TypedModel, cells_of, corrected
from cost_model.gpu.typed.sheets import GpuSheet
from cost_model.gpu.typed.work import work_of

_AMPLITUDE = 0.15
_NOISE = 0.05
"""Logarithms: what forests leave over on a new device, and what repeated tables differ by."""
_LENGTH = 1.5
"""Of the process, in standard deviations of the extents' logarithms."""
_SPREAD = 0.7
"""Of a fitted parameter about what other devices let expect."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AdaptedModel:
    """A model of one kind and cell on one device.

    Attributes:
        model: of all devices, whose blind forest is corrected.
        sheet: of the device.
        parameters: logarithms, of `analytic_us`.
        scale: of the kernels measured: means and deviations of coordinates.
        points, weights: of the process.
        level: its mean.
    """

    model: TypedModel
    sheet: GpuSheet
    parameters: Array
    scale: tuple[Array, Array]
    points: Array
    weights: Array
    level: float

    def predict_us(self, kernels: Kernels) -> Array:
        """Return microseconds of kernels of the cell."""
        points = (_coordinates(kernels) - self.scale[0]) / self.scale[1]
        smooth = self.level + _covariance(points, self.points) @ self.weights
        return np.asarray(np.exp(_corrected(self.model, kernels, self.sheet, self.parameters) + smooth))


def adapt(model: TypedModel, kernels: Kernels, sheet: GpuSheet, latency_us: Array) -> AdaptedModel:
    """Return what a model says of a device after kernels of one kind and cell were measured on it."""
    cell = str(cells_of(kernels)[0])
    start = model.manifest.kinds[kernels.kind].expected(cell, sheet)
    parameters = fit(kernels, sheet, latency_us, start, spread=_SPREAD)
    left = np.log(latency_us) - _corrected(model, kernels, sheet, parameters)
    coordinates = _coordinates(kernels)
    scale = _scale(coordinates)
    points, level = (coordinates - scale[0]) / scale[1], float(np.median(left))
    covariance = _covariance(points, points) + _NOISE**2 * np.eye(len(points))
    weights = np.asarray(np.linalg.solve(covariance, left - level), np.float64)
    return AdaptedModel(model, sheet, parameters, scale, points, weights, level)


def choose_kernels(
    candidates: Kernels, count: int, sheet: GpuSheet, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return indices of the kernels to measure: of each cluster the one nearest to its centre.

    Alike are kernels of like extents, latency and share of traffic in it, as far as the law tells beforehand.

    Args:
        candidates: kernels that could be measured, of one kind.
        count: how many are, of as many candidates at least.
        sheet: of the GPU.
        rng: draws the first centres.
    """
    work = work_of(candidates, sheet)
    latency = analytic_us(candidates, sheet, start_of(candidates.kind))
    traffic = work.num_bytes / np.maximum(work.flops, 1)
    coordinates = np.column_stack([_coordinates(candidates), np.log2(latency), np.log2(traffic)])
    mean, deviation = _scale(coordinates)
    points = (coordinates - mean) / deviation
    centres, cluster = kmeans2(points, min(count, len(points)), iter=20, minit="++", rng=rng)
    distances = ((points - centres[cluster]) ** 2).sum(axis=1)
    order = np.lexsort((distances, cluster))
    chosen = order[np.flatnonzero(np.diff(cluster[order], prepend=-1))]
    others = rng.permutation(np.setdiff1d(np.arange(len(points)), chosen))
    return np.concatenate([chosen, others[: count - len(chosen)]])  # a cluster may have lost all


def _corrected(model: TypedModel, kernels: Kernels, sheet: GpuSheet, parameters: Array) -> Array:
    base = analytic_us(kernels, sheet, parameters)
    features = feature_table(kernels, sheet, base)
    return corrected(base, model.forests[kernels.kind].blind, features, sees_device=False)


def _coordinates(kernels: Kernels) -> Array:
    return np.stack(
        [np.log2(np.maximum(values.astype(np.float64), 1)) for values in kernels.numbers.values()], axis=1
    )


def _scale(coordinates: Array) -> tuple[Array, Array]:
    deviation = coordinates.std(axis=0)
    return coordinates.mean(axis=0), np.where(deviation > 0, deviation, 1.0)


def _covariance(left: Array, right: Array) -> Array:
    """Return Matérn's function with ν = 3/2 of the distances."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    distances = np.sqrt(3 * np.maximum(squares, 0.0)) / _LENGTH
    return np.asarray(_AMPLITUDE**2 * (1 + distances) * np.exp(-distances))
