"""How fast kernels get with so many trials: proposed by the language model, by evolution, or at random.

    python -m benchmarks.language_model --model out/language/model --folder out/language/runs --trials 64
    python -m benchmarks.language_model --folder out/language/runs --print-only

Proposers, each with the same builder and runner (trials compiled in memory and timed at once):

- `language`: the model's distinct schedules, the likeliest first. It learns nothing from the kernel at hand.
- `evolutionary`: MetaSchedule's search in batches of 16, ordered by its XGBoost model from 16 trials on.
- `random`: a sketch at random, with decisions as TVM draws them.

Kernels are of shapes that the model has not learnt from, of operators that it has (`SHAPES`) and of one that
it has not (`OPERATORS`). A finished run is a file under `--folder`, so that what was stopped goes on; no run
starts after `--time-limit` seconds. The table gives the best latency after so many trials as a multiple of
the best that anybody found for the kernel: the median over seeds, and the geometric mean over kernels.

    python -m benchmarks.language_model --model out/language/model --replay out/trials.db

measures nothing: of the trials of these kernels that records hold, it takes the likeliest first, by the
model, and compares that with the median of 200 random orders. With `--base` and the model before
fine-tuning, it takes first those that fine-tuning made likelier most.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.stats
import torch

from benchmarks.trials.in_process import builder_and_runner
from records import open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
from tuner.backends.metaschedule.trials import task_name
from tuner.language.evaluation import PROPOSERS, Measuring, Run, run_proposer, trial_counts
from tuner.language.examples import batch_of, examples_of, text_of
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.language.model_files import load_network
from tuner.language.network import Network
from tuner.language.sketches import KernelSpace, Proposal
from tuner.language.trials import recorded_trials
from tuner.targets.resolution import resolve_target

SHAPES = (
    "dense:196x192x192,gelu",
    "dense:32x512x512,relu",
    "product:12x128x32x128",
    "convolution:32x28x64x3x2",
    "convolution:160x14x160x1x1",
)
_REPLAYED = (1, 2, 4, 8, 16, 32)

OPERATORS = ("depthwise:120x28x5x1", "depthwise:96x28x3x1")

_GROUPS = {"unseen shapes of seen operators": SHAPES, "an operator never seen (depthwise)": OPERATORS}


def path_of(folder: Path, kernel: str, proposer: str, seed: int, trials: int) -> Path:
    plain = "".join(letter if letter.isalnum() else "_" for letter in kernel)
    return folder / f"{plain}-{proposer}-{trials}-{seed}.json"


def run_all(arguments: argparse.Namespace) -> bool:
    """Do what is not done yet; say whether everything is."""
    deadline = time.monotonic() + arguments.time_limit
    target = resolve_target("cpu", num_threads=1)
    network, manifest = load_network(arguments.model, target)
    spaces: dict[str, KernelSpace] = {}
    for seed in arguments.seeds:
        for kernel in arguments.kernels:
            for proposer in arguments.proposers:
                path = path_of(arguments.folder, kernel, proposer, seed, arguments.trials)
                if path.exists():
                    continue
                if time.monotonic() > deadline:
                    return False
                if kernel not in spaces:
                    module = kernel_module(parse_kernel(kernel))
                    spaces[kernel] = KernelSpace(kernel, module, tuning_target(target))
                builder, runner = builder_and_runner()
                started = time.monotonic()
                run = run_proposer(
                    proposer,
                    network,
                    spaces[kernel],
                    trials=arguments.trials,
                    seed=seed,
                    measuring=Measuring(builder=builder, runner=runner, work_dir=arguments.folder / "logs"),
                    temperature=arguments.temperature,
                )
                seconds = time.monotonic() - started
                save(path, run, seconds, manifest.digest)
                print(
                    f"{kernel}, {proposer}, {seed}: {run.best_us(10**6):.1f} us, {seconds:.0f} s", flush=True
                )
    return True


def save(path: Path, run: Run, seconds: float, digest: str) -> None:
    document = {
        "kernel": run.kernel,
        "proposer": run.proposer,
        "seed": run.seed,
        "latencies_us": [each if math.isfinite(each) else None for each in run.latencies_us],
        "num_legal": run.num_legal,
        "distinct_ratio": run.distinct_ratio,
        "seconds": seconds,
        "model": digest,
    }
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(document))
    whole.rename(path)


def load(folder: Path) -> tuple[list[Run], dict[str, list[float]]]:
    """Return every run, and the seconds of runs by proposer."""
    runs: list[Run] = []
    seconds: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        seconds.setdefault(found["proposer"], []).append(found["seconds"])
        runs.append(
            Run(
                kernel=found["kernel"],
                proposer=found["proposer"],
                seed=found["seed"],
                latencies_us=tuple(math.inf if each is None else each for each in found["latencies_us"]),
                num_legal=found["num_legal"],
                distinct_ratio=found["distinct_ratio"],
            )
        )
    return runs, seconds


def tables(runs: Sequence[Run], trials: int) -> str:
    counts = trial_counts(trials)
    best_us = {
        kernel: min(run.best_us(trials) for run in runs if run.kernel == kernel)
        for kernel in {run.kernel for run in runs}
    }
    parts = []
    for title, kernels in _GROUPS.items():
        present = [
            kernel
            for kernel in kernels
            if all(any(r.kernel == kernel and r.proposer == p for r in runs) for p in PROPOSERS)
        ]
        if present:
            parts.append(f"### {title}\n\n{table(runs, present, counts, best_us)}")
    return "\n\n".join(parts)


def table(
    runs: Sequence[Run], kernels: Sequence[str], counts: Sequence[int], best_us: dict[str, float]
) -> str:
    lines = [
        "| kernel | best of all | proposed by | " + " | ".join(map(str, counts)) + " | seeds |",
        "|---|---|---|" + "---|" * (len(counts) + 1),
    ]
    means: dict[str, list[list[float]]] = {proposer: [] for proposer in PROPOSERS}
    for kernel in kernels:
        for proposer in PROPOSERS:
            mine = [run for run in runs if run.kernel == kernel and run.proposer == proposer]
            row = [statistics.median(ratios(mine, count, best_us[kernel])) for count in counts]
            means[proposer].append(row)
            cells = " | ".join(f"{ratio:.2f}" for ratio in row)
            lines.append(f"| {kernel} | {best_us[kernel]:.1f} µs | {proposer} | {cells} | {len(mine)} |")
    for proposer in PROPOSERS:
        columns = zip(*means[proposer], strict=True)
        cells = " | ".join(f"**{statistics.geometric_mean(column):.2f}**" for column in columns)
        lines.append(f"| geometric mean of {len(kernels)} | | {proposer} | {cells} | |")
    return "\n".join(lines)


def ratios(runs: Iterable[Run], count: int, best_us: float) -> list[float]:
    return [run.best_us(count) / best_us for run in runs]


def replay_table(model: Path, url: str, base: Path | None) -> str:
    target = resolve_target("cpu", num_threads=1)
    network, _ = load_network(model, target)
    before = None if base is None else load_network(base, target)[0]
    environment = environment_of(target, MetaSchedule())
    with open_store(url) as store:
        found = recorded_trials(store, tuning_target(target), target, environment)
    names = {task_name(kernel_module(parse_kernel(name))): name for name in (*SHAPES, *OPERATORS)}
    lines = [
        "| kernel | trials | rank correlation | order | " + " | ".join(map(str, _REPLAYED)) + " |",
        "|---|---|---|---|" + "---|" * len(_REPLAYED),
    ]
    curves: dict[str, list[list[float]]] = {"likeliest first": [], "random": []}
    for task, (space, trials) in sorted(found.items(), key=lambda each: names.get(each[0], "")):
        known = [(proposal, latency) for proposal, latency in trials.items() if latency is not None]
        if task not in names or not known:
            continue
        latencies = np.array([latency for _, latency in known])
        unlikely = np.array([unlikelihood(network, space, proposal) for proposal, _ in known])
        if before is not None:
            unlikely -= [unlikelihood(before, space, proposal) for proposal, _ in known]
        correlation = float(scipy.stats.spearmanr(unlikely, latencies).statistic)
        rng = np.random.default_rng(0)
        shuffled = [falling(latencies[rng.permutation(len(latencies))]) for _ in range(200)]
        by_order = {
            "likeliest first": falling(latencies[np.argsort(unlikely)]),
            "random": list(np.median(shuffled, axis=0)),
        }
        for order, curve in by_order.items():
            curves[order].append(curve)
            cells = " | ".join(f"{ratio:.2f}" for ratio in curve)
            lines.append(f"| {names[task]} | {len(known)} | {correlation:.2f} | {order} | {cells} |")
    for order, found_curves in curves.items():
        means = (statistics.geometric_mean(column) for column in zip(*found_curves, strict=True))
        cells = " | ".join(f"**{mean:.2f}**" for mean in means)
        lines.append(f"| geometric mean of {len(found_curves)} | | | {order} | {cells} |")
    return "\n".join(lines)


def unlikelihood(network: Network, space: KernelSpace, proposal: Proposal) -> float:
    """Return minus the logarithm of the probability that the model writes a proposal."""
    with torch.inference_mode():
        total, _ = network.loss(batch_of(examples_of({text_of(space, proposal): 1.0})))
    return total.item()


def falling(latencies: npt.NDArray[np.float64]) -> list[float]:
    """Return the best of the first so many over the best of all."""
    return [float(latencies[:count].min() / latencies.min()) for count in _REPLAYED]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("out/language/model"))
    parser.add_argument("--folder", type=Path, default=Path("out/language/runs"))
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kernels", nargs="+", default=[*SHAPES, *OPERATORS])
    parser.add_argument("--proposers", nargs="+", default=PROPOSERS, choices=PROPOSERS)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds after which none starts")
    parser.add_argument("--replay", metavar="RECORDS", help="order the trials that these hold")
    parser.add_argument(
        "--base", type=Path, help="in a replay, order by how much likelier than by this model"
    )
    parser.add_argument("--print-only", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    if arguments.replay:
        print(replay_table(arguments.model, arguments.replay, arguments.base))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if not arguments.print_only and not run_all(arguments):
        print("not everything is done; run it again")
    runs, seconds = load(arguments.folder)
    print(tables(runs, arguments.trials))
    written = [run for run in runs if run.proposer == "language"]
    if written:
        legal = sum(run.num_legal for run in written)
        num_trials = sum(len(run.latencies_us) for run in written)
        distinct = statistics.mean(run.distinct_ratio for run in written)
        print(
            f"\n{legal} of the model's {num_trials} schedules legal; {distinct:.1%} of what it wrote distinct"
        )
    for proposer, found in seconds.items():
        print(f"{proposer}: {statistics.median(found):.0f} s a run in the median")


if __name__ == "__main__":
    main()
