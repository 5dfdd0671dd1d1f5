"""XGBoost, loaded so that waiting threads sleep, and the number of threads used for training.

Training consists of thousands of short parallel loops. By default a thread that has finished its share spins
until the others have; under background load the others then wait for a core occupied by a spinning thread,
and training that takes a minute takes a quarter of an hour. OpenMP reads its wait policy once, when its
library is loaded: that happens in the import below, and the setting is reverted immediately, so that
measuring processes do not inherit it. Sleeping threads still wait for each other, so training uses only as
many as there are idle cores. The trees do not depend on it. Checked in
tests/cost_model/forests/test_boosting.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from records.cores import num_usable_cores

__all__ = ["idle_cores", "num_idle_cores", "pseudo_huber", "train_forest", "waiting_passively", "xgboost"]

PASSIVE_WAITING = {"OMP_WAIT_POLICY": "passive"}
"""For OpenMP; what a user has set already stays."""

_NUM_LOOKS = 3
_BETWEEN_LOOKS_S = 0.02


@contextlib.contextmanager
def waiting_passively() -> Iterator[None]:
    """Have OpenMP libraries that are loaded meanwhile wait without spinning, unless the user says how."""
    added = {name: value for name, value in PASSIVE_WAITING.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


if TYPE_CHECKING:
    import xgboost
else:

    class _Imported:
        """XGBoost, imported when something of it is first asked for.

        Processes that measure have it among what they import and never use it. Where scikit-learn is
        installed, XGBoost imports that, for seconds.
        """

        def __getattr__(self, name: str) -> Any:
            with waiting_passively():
                return getattr(importlib.import_module("xgboost"), name)

    if importlib.util.find_spec("xgboost") is None:  # whoever asks for this module needs it, and hears so now
        raise ModuleNotFoundError("No module named 'xgboost'", name="xgboost")
    xgboost = _Imported()


def pseudo_huber(slope: float) -> dict[str, Any]:
    """Return parameters of a loss that is quadratic up to errors of about the slope, and linear beyond.

    Where errors are many times the slope its second derivative is next to nothing, and XGBoost's Newton step,
    the sum of the first over that of the second, is a multiple of the error itself: leaves would hold any
    number, and no later tree may split what is that far off. So a step is at most 1.
    """
    return {"objective": "reg:pseudohubererror", "huber_slope": slope, "max_delta_step": 1.0}


def train_forest(
    parameters: dict[str, Any],  # XGBoost's own mixture of numbers and names
    rounds: int,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    num_threads: int,
) -> Any:  # xgboost.Booster: the distribution ships no types
    """Return a forest that starts from the median label; equal whatever the number of threads.

    Args:
        rounds: trees.
        features: float32, shape (num_samples, num_features).
        labels: float64, shape (num_samples,).
        seed: seed of the trees.
    """
    settings = {**parameters, "seed": seed, "nthread": num_threads, "base_score": float(np.median(labels))}
    return xgboost.train(settings, xgboost.DMatrix(features, labels), num_boost_round=rounds)


def num_idle_cores() -> int:
    """Return how many cores this process may use that nobody else does at the moment; at least one."""
    usable = num_usable_cores()
    if usable == 1:
        return 1
    others = []
    for _ in range(_NUM_LOOKS):
        others.append(_num_running() - 1)  # this process is one of them
        time.sleep(_BETWEEN_LOOKS_S)
    return idle_cores(usable, others)


def idle_cores(usable: int, others: Sequence[int]) -> int:
    """Return the cores that are left, at least one.

    Args:
        usable: cores that this process may use.
        others: how many other threads ran, at several looks; the busiest counts, since what runs now and then
            runs during training too.
    """
    return max(1, usable - max(0, *others, 0))


def _num_running() -> int:
    """Return how many threads of the machine run or wait for a core; 1 where that is not to be known."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 1
