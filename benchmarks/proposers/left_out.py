"""How fast the first trials of training kernels are that a proposer is made to do without; they are measured.

    taskset -c 0 python -m benchmarks.proposers.left_out --records out/proposers/training.db

Kernels are dealt to folds; for each fold, a proposer that knows only the trials of other kernels proposes a
batch for each of its kernels, which is built and timed. Printed is the best of the first 1, 2 and 4 over the
best that the records or anybody here has, the geometric mean over kernels and the worst. Unlike `ranking`,
this sees candidates that a model favours by mistake: what ranks stored trials better may propose worse. The
held-out kernels of `benchmarks.proposers` take no part, so that what is chosen here can be stated there.
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.proposers.__main__ import KERNELS
from benchmarks.trials.in_process import builder_and_runner
from cost_model.draft.draft_model import DraftModel, train_draft_model
from records import open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine, load_draft_trials
from tuner.backends.metaschedule.proposers import BATCH, DRAFT, NEIGHBOUR, Knowledge, new_proposer
from tuner.backends.metaschedule.trials import task_name
from tuner.language.collecting import collection_kernels
from tuner.language.trials import measure_schedules
from tuner.targets.resolution import resolve_target

COUNTS = (1, 2, 4)


def first_batches(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the latencies of a batch in µs, infinite for failures, by proposer and kernel."""
    target = resolve_target("cpu", num_threads=1)
    tuned_for = tuning_target(target)
    environment = environment_of(target, MetaSchedule())
    caches = caches_of_this_machine(1)
    with open_store(arguments.records) as store:
        trials = load_draft_trials(store, target, environment)
    recorded = {each.task: each.best_us for each in trials}
    kernels = [
        (name, module, task_name(module))
        for name, module in collection_kernels(arguments.count, arguments.seed)
        if name not in KERNELS and task_name(module) in recorded
    ]
    if len(kernels) < arguments.folds:
        raise SystemExit(
            f"{arguments.records} holds trials of {len(kernels)} of these kernels here, {arguments.folds} "
            "folds need one each; collect them with `tessel language collect --kernels`, or give the --count "
            "and --seed that were collected"
        )
    builder, runner = builder_and_runner(arguments.clock, arguments.samples)
    found: dict[str, dict[str, list[float]]] = {
        "recorded": {name: [recorded[task]] for name, _, task in kernels}
    }
    for fold in range(arguments.folds):
        own = kernels[fold :: arguments.folds]
        left_out = {task for _, _, task in own}
        known = tuple(each for each in trials if each.task not in left_out)
        model = train_draft_model(known, caches=caches, seed=arguments.seed)
        knowledge = Knowledge(known, caches, draft=partial(_the_same, model))
        for proposer in arguments.proposers:
            for name, module, task in own:
                candidates = candidates_of(module, tuned_for)
                proposed = new_proposer(proposer, task, candidates, knowledge, seed=arguments.seed).propose(
                    BATCH
                )
                latencies = measure_schedules(
                    module, tuned_for, [each.schedule for each in proposed], builder=builder, runner=runner
                )
                found.setdefault(proposer, {})[name] = [math.inf if us is None else us for us in latencies]
    return found


def _the_same(model: DraftModel) -> DraftModel:
    return model


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return the table as Markdown; kernels of which all trials failed make a mean infinite."""
    best = {
        name: min(min(latencies[name]) for latencies in found.values() if name in latencies)
        for name in found["recorded"]
    }
    lines = [
        "| proposer | kernels | " + " | ".join(map(str, COUNTS)) + " | worst after 4 |",
        "|---|--:|" + "--:|" * 4,
    ]
    for proposer, latencies in found.items():
        if proposer == "recorded":
            continue
        ratios = [[min(us[:count]) / best[name] for name, us in latencies.items()] for count in COUNTS]
        means = " | ".join(f"{statistics.geometric_mean(each):.2f}" for each in ratios)
        lines.append(f"| {proposer} | {len(latencies)} | {means} | {np.max(ratios[-1]):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", default="out/proposers/training.db")
    parser.add_argument(
        "--count", type=int, default=28, help="kernels, drawn as `tessel language collect` does"
    )
    parser.add_argument("--seed", type=int, default=5, help="of the kernels and the proposers")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--proposers", nargs="+", default=(DRAFT, NEIGHBOUR), choices=(DRAFT, NEIGHBOUR))
    parser.add_argument("--clock", default="wall", choices=("wall", "thread"))
    parser.add_argument("--samples", type=Path, default=None, help="file that keeps samples for another run")
    print(table(first_batches(parser.parse_args())))


if __name__ == "__main__":
    main()
