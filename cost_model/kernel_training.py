"""Train a kernel model: the two forests, and the calibration of its intervals.

Checked in tests/cost_model/test_kernel_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_model.calibration import Training, calibrated_widening, calibrated_widths, out_of_fold
from cost_model.dataset import MIN_SAMPLES, Dataset, combination_groups, shape_groups
from cost_model.errors import CostModelError
from cost_model.features import FEATURE_NAMES, FEATURES_VERSION, feature_matrix, roofline_vector
from cost_model.forests.boosting import num_idle_cores
from cost_model.forests.kernel_forests import QUICK_ROUNDS, train_mean, train_scale
from cost_model.forests.model_files import provenance_of
from cost_model.gaussian_process import MAX_PROCESS_SAMPLES, fit_kernel, table_of
from cost_model.intervals import NOVELTIES, Widths
from cost_model.kernel_model import KernelModel, Manifest, TargetKind, base_of, short_hash
from cost_model.training_range import range_of


def train_kernel_model(
    dataset: Dataset,
    *,
    seed: int = 0,
    coverage: float = 0.9,
    target: TargetKind = "roofline_ratio",
    columns: Sequence[int] | None = None,
    calibrated: bool = True,
    num_threads: int | None = None,
) -> KernelModel:
    """Return a model trained on the samples; equal samples and seed give equal models.

    Args:
        dataset: at least `MIN_SAMPLES` samples.
        coverage: share of intervals meant to hold the truth.
        target: what the trees learn; `log_latency` is there for the ablation.
        columns: features that count, the others are blanked; all if None. For the ablation.
        calibrated: whether intervals are learnt, which takes most of the time; they have no width if not.
        num_threads: threads of the training, on which the result does not depend; one for each core that is
            idle if None.

    Raises:
        CostModelError: there are too few samples.
    """
    if len(dataset.samples) < MIN_SAMPLES:
        raise CostModelError(
            f"the records hold {len(dataset.samples)} usable keys, a model needs at least {MIN_SAMPLES}; "
            "gather more with `tessel records collect` or by tuning models"
        )
    features = feature_matrix(dataset.queries)
    training_range = range_of(features)
    if columns is not None:
        blank = np.setdiff1d(np.arange(features.shape[1]), np.asarray(columns))
        features[:, blank] = 0
    base = base_of(roofline_vector(dataset.queries), target)
    labels = np.log(dataset.latencies_us) - base
    kernel = None
    if calibrated and len(labels) <= MAX_PROCESS_SAMPLES:
        kernel = fit_kernel(features, labels, rng=np.random.default_rng(seed))
    training = Training(
        dataset=dataset,
        features=features,
        labels=labels,
        base=base,
        kernel=kernel,
        seed=seed,
        num_threads=num_threads or num_idle_cores(),
    )
    settings = {"seed": seed, "num_threads": training.num_threads}
    held_out = out_of_fold(training, rounds=QUICK_ROUNDS if calibrated else 1)
    scale = train_scale(held_out.features, held_out.log_errors, **settings)
    widths, widening = Widths(((0.0, 0.0),) * len(NOVELTIES), 1.0), 0.0
    if calibrated:
        widths = calibrated_widths(training, held_out, coverage=coverage)
        widening = calibrated_widening(training, scale, widths, coverage=coverage)
    return KernelModel(
        mean=train_mean(features, labels, **settings),
        scale=scale,
        manifest=Manifest(
            features_version=FEATURES_VERSION,
            feature_names=FEATURE_NAMES,
            target=target,
            coverage=coverage,
            conformal_quantiles=widths.quantiles,
            sharpness=widths.sharpness,
            training_range=training_range,
            widening=widening,
            process=table_of(kernel, features, labels) if kernel else None,
            known_shapes=frozenset(map(short_hash, shape_groups(dataset))),
            known_combinations=frozenset(map(short_hash, combination_groups(dataset))),
            num_samples=len(dataset.samples),
            backends=tuple(sorted({query.backend for query in dataset.queries})),
            seed=seed,
            **provenance_of(number for sample in dataset.samples for number in sample.record_ids),
        ),
    )
