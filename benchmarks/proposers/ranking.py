"""How well a draft model ranks the stored trials of kernels that it was not trained on; nothing is measured.

    python -m benchmarks.proposers.ranking --records out/proposers/training.db

Kernels are dealt to folds; each fold's trials are ranked by a model of all others. Printed is the best of
the first 1, 2, 4 and 8 over the best of the kernel's trials, the geometric mean over kernels and the ninth
decile.
Most stored trials were proposed by an earlier draft model, so that this says which of two models ranks
better, not how fast its own proposals are: a model that weighed trials by their speed ranked better here, and
proposed worse (`benchmarks.proposers.left_out` measures that).
"""

from __future__ import annotations

import argparse
import math
import statistics

import numpy as np

from cost_model.draft.draft_model import train_draft_model
from records import open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine, load_draft_trials
from tuner.targets.resolution import resolve_target

COUNTS = (1, 2, 4, 8)


def first_over_best(records: str, folds: int, threads: int) -> dict[int, list[float]]:
    """Return, for each count, the best of so many first trials over the best of all, for each kernel."""
    target = resolve_target("cpu", num_threads=threads)
    environment = environment_of(target, MetaSchedule())
    with open_store(records) as store:
        trials = load_draft_trials(store, target, environment)
    tasks = sorted({each.task for each in trials})
    if len(tasks) < 2 * folds:
        raise SystemExit(
            f"{records} holds trials of {len(tasks)} kernels here, {folds} folds need {2 * folds}; collect "
            "more with `tessel language collect`, or give fewer --folds"
        )
    dealt = dict(zip(tasks, np.random.default_rng(7).permutation(len(tasks)) % folds, strict=True))
    found: dict[int, list[float]] = {count: [] for count in COUNTS}
    for fold in range(folds):
        known = [each for each in trials if dealt[each.task] != fold]
        model = train_draft_model(known, caches=caches_of_this_machine(threads))
        for task in tasks:
            own = [each for each in trials if each.task == task and dealt[task] == fold]
            if not own:
                continue
            scores = np.concatenate([model.predict(each.space, each.rows).mean for each in own])
            latencies = np.concatenate([each.latencies_us for each in own])
            ranked = latencies[np.argsort(-scores, kind="stable")]
            for count in COUNTS:
                found[count].append(float(ranked[:count].min() / latencies.min()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", default="out/proposers/training.db")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    found = first_over_best(arguments.records, arguments.folds, arguments.threads)
    print("| first | geometric mean | ninth decile |\n|--:|--:|--:|")
    for count, ratios in found.items():
        finite = [each for each in ratios if math.isfinite(each)]
        mean = statistics.geometric_mean(finite)
        print(f"| {count} | {mean:.3f} | {np.quantile(finite, 0.9):.2f} |")


if __name__ == "__main__":
    main()
