"""Accuracy of the cost model on unseen programs, with the noise floor for comparison.

Held out in turn: workloads, shapes, combinations of operators, the largest programs, networks. Figures are
over kernels of at least `min_latency_us`; decision regret is over groups of backends that ran the same
workload. Checked in tests/cost_model/test_evaluation.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from cost_model.dataset import (
    Dataset,
    combination_groups,
    network_groups,
    shape_groups,
    split_folds,
    workload_groups,
)
from cost_model.errors import CostModelError
from cost_model.features import feature_matrix
from cost_model.kernel_model import TargetKind
from cost_model.kernel_training import train_kernel_model
from cost_model.training_range import extreme_parts

_NUM_FOLDS = 5
_EXTREME_SHARE = 0.15
"""Share of the programs of each kind, by work and working set, that stand for larger ones than any seen."""

_CLEAR_GAP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVariant:
    """How the models that are evaluated differ from those of `train_kernel_model`, for an ablation.

    Attributes:
        target: what the trees learn.
        columns: features that count; all if None.
        calibrated: whether intervals are learnt, which takes most of the time.
    """

    target: TargetKind = "roofline_ratio"
    columns: Sequence[int] | None = None
    calibrated: bool = True


AS_TRAINED = ModelVariant()
"""No difference."""


class SplitFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one split.

    Attributes:
        num_samples: held-out keys that count.
        median_ape: median absolute percentage error, as a share.
        mape: mean absolute percentage error, as a share.
        p90_ape: 90th percentile of the absolute percentage error.
        within_10: share of predictions within 10 %.
        within_20: share within 20 %.
        spearman: rank correlation of predicted and measured latency.
        num_choices: workloads that several backends ran.
        regret: latency(chosen backend) / latency(best backend) - 1, mean over these.
        choice_accuracy: share of workloads whose best backend was chosen, where the gap is over 10 %.
        coverage_90: share of measured latencies inside their interval.
        noise_floor: median relative interquartile range of the measurements themselves.
    """

    num_samples: int
    median_ape: float
    mape: float
    p90_ape: float
    within_10: float
    within_20: float
    spearman: float
    num_choices: int
    regret: float | None
    choice_accuracy: float | None
    coverage_90: float
    noise_floor: float


class HeldOut(NamedTuple):
    """Out-of-fold predictions, microseconds, each of shape (num_samples,); NaN where there is none."""

    latency: np.ndarray
    low: np.ndarray
    high: np.ndarray


def evaluate(
    dataset: Dataset,
    *,
    networks: Mapping[str, Sequence[str]] | None = None,
    splits: Sequence[str] | None = None,
    min_latency_us: float = 100.0,
    seed: int = 0,
    variant: ModelVariant = AS_TRAINED,
    num_threads: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, SplitFigures]:
    """Return figures by split: `workload`, `shape`, `combination`, `extrapolation`, and perhaps `network`.

    The last is there where networks are known.

    Args:
        networks: fingerprints of each network's workloads.
        splits: names of those that are wanted; all if None.
        min_latency_us: shorter kernels are predicted but not counted.
        variant: how the models differ from those that are used.
        num_threads: threads of the training; one for each idle core if None.
        on_progress: called after each fold with the number done and the total.

    Raises:
        CostModelError: too few samples, or none long enough to count.
    """
    folds = folds_by_split(dataset, networks=networks, seed=seed)
    folds = {name: fold for name, fold in folds.items() if splits is None or name in splits}
    total = sum(int(fold.max()) + 1 for fold in folds.values())
    ended = itertools.count(1)
    return {
        name: figures_of(
            dataset,
            predict_held_out(
                dataset,
                fold,
                seed=seed,
                variant=variant,
                num_threads=num_threads,
                on_fold=lambda: on_progress(next(ended), total),
            ),
            counted=(fold >= 0) & (dataset.latencies_us >= min_latency_us),
        )
        for name, fold in folds.items()
    }


def folds_by_split(
    dataset: Dataset, *, networks: Mapping[str, Sequence[str]] | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the fold of each sample in each split, shape (num_samples,); -1 is never held out.

    Args:
        networks: fingerprints of each network's workloads; without them there is no split `network`.
    """
    rng = np.random.default_rng(seed)
    groups = {
        "workload": workload_groups(dataset),
        "shape": shape_groups(dataset),
        "combination": combination_groups(dataset),
    }
    folds = {name: split_folds(group, num_folds=_NUM_FOLDS, rng=rng) for name, group in groups.items()}
    # Only the largest programs are held out: those that a model trained on what came before must widen for.
    largest = np.logical_or(*extreme_parts(feature_matrix(dataset.queries), _EXTREME_SHARE)[:2])
    if largest.any():
        folds["extrapolation"] = np.where(largest, 0, -1)
    if networks:
        names = network_groups(dataset, networks)
        order = {name: index for index, name in enumerate(sorted(set(names) - {"shared"}))}
        # What several networks share is never held out: it has been seen whichever network is new.
        folds["network"] = np.array([order.get(name, -1) for name in names])
    return folds


def predict_held_out(
    dataset: Dataset,
    folds: np.ndarray,
    *,
    seed: int,
    variant: ModelVariant = AS_TRAINED,
    num_threads: int | None = None,
    on_fold: Callable[[], None] = lambda: None,
) -> HeldOut:
    """Return predictions of each fold by a model trained on the others.

    Args:
        folds: fold of each sample, shape (num_samples,); samples of fold -1 are only trained on.
        variant: how the models differ from those that are used.
        num_threads: threads of the training; one for each idle core if None.
        on_fold: told after each fold.
    """
    held_out = HeldOut(*(np.full(len(folds), np.nan) for _ in range(3)))
    for fold in range(int(folds.max()) + 1):
        inside = np.flatnonzero(folds == fold)
        rest = np.flatnonzero(folds != fold)
        if not len(inside) or not len(rest):
            continue
        known = {dataset.samples[index].query.backend for index in rest}
        inside = np.array([i for i in inside if dataset.samples[i].query.backend in known], dtype=np.int64)
        model = train_kernel_model(
            dataset.subset(rest),
            seed=seed,
            target=variant.target,
            columns=variant.columns,
            calibrated=variant.calibrated,
            num_threads=num_threads,
        )
        latency, low, high = model.predict_arrays(dataset.subset(inside).queries)
        held_out.latency[inside], held_out.low[inside], held_out.high[inside] = latency, low, high
        on_fold()
    return held_out


def figures_of(dataset: Dataset, held_out: HeldOut, *, counted: np.ndarray) -> SplitFigures:
    """Return figures of the samples that count, a mask of shape (num_samples,).

    Raises:
        CostModelError: none counts.
    """
    counted = counted & ~np.isnan(held_out.latency)
    if not counted.any():
        raise CostModelError(
            "no held-out sample is long enough to count; gather more records or lower --min-latency-us"
        )
    truth, predicted = dataset.latencies_us[counted], held_out.latency[counted]
    errors = np.abs(predicted / truth - 1)
    inside = (held_out.low[counted] <= truth) & (truth <= held_out.high[counted])
    regrets, right = _decisions(dataset, held_out, counted)
    spread = np.array([sample.relative_spread for sample in dataset.samples])[counted]
    return SplitFigures(
        num_samples=int(counted.sum()),
        median_ape=float(np.median(errors)),
        mape=float(errors.mean()),
        p90_ape=float(np.quantile(errors, 0.9)),
        within_10=float((errors <= 0.1).mean()),
        within_20=float((errors <= 0.2).mean()),
        spearman=_spearman(truth, predicted),
        num_choices=len(regrets),
        regret=float(np.mean(regrets)) if regrets else None,
        choice_accuracy=float(np.mean(right)) if right else None,
        coverage_90=float(inside.mean()),
        noise_floor=float(np.median(spread)),
    )


def _decisions(dataset: Dataset, held_out: HeldOut, counted: np.ndarray) -> tuple[list[float], list[bool]]:
    groups: dict[tuple[str, int], list[int]] = {}
    for index in np.flatnonzero(counted):
        query = dataset.samples[index].query
        groups.setdefault((query.workload.fingerprint, query.num_threads), []).append(int(index))
    regrets, right = [], []
    for group in groups.values():
        if len(group) < 2:
            continue
        truth = dataset.latencies_us[group]
        chosen = int(np.argmin(held_out.latency[group]))
        best, second = np.sort(truth)[:2]
        regrets.append(float(truth[chosen] / best - 1))
        if second / best - 1 > _CLEAR_GAP:
            right.append(bool(truth[chosen] == best))
    return regrets, right


def _spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    from scipy.stats import spearmanr  # noqa: PLC0415 - more to import than all else in a measuring process

    return float(spearmanr(truth, predicted).statistic) if len(truth) > 2 else 1.0
