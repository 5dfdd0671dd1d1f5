"""How fast a kernel gets with so many trials of MetaSchedule, by who orders the schedules.

    python -m benchmarks.schedule_cost_model --folder out/schedules --seeds 1 2 3
    python -m benchmarks.schedule_cost_model --folder out/schedules --print-only
    python -m benchmarks.schedule_cost_model --folder out/schedules --replay

Contestants, each with the same builder, runner, batches of 16 and evolutionary search:

- `random`: every candidate gets a random score.
- `tvm`: TVM's model as it ships, which answers at random until it has 100 trials.
- `tvm-16`: TVM's model, told to begin with the first 16.
- `records`: the model of the records' trials. It has learnt from what `random` measured with one seed on
  kernels of its own, on which its form was chosen too, and learns on as trials of the kernel at hand arrive.

They are compared on other kernels, of which nobody has seen a trial. Every trial is kept in a store of its
run under `--folder`, so that a run that was stopped goes on (`--time-limit` seconds at most). At the end the
best schedules of all runs after so many trials are measured again in turn, so that no slower hour decides;
the better of both figures counts. The table gives medians over seeds, with the range over seeds, as a
multiple of the best that anybody found for the kernel.

`--replay` measures nothing: see `benchmarks.trials.replay`.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from benchmarks.trials.in_process import builder_and_runner, measure_in_turn
from benchmarks.trials.replay import merged, replay_table
from cost_model.schedule_model import Trials
from records import Measurement, Status, open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, TrialSettings, tune_kernel, tuning_target
from tuner.backends.metaschedule.cost_model import RecordsCostModel
from tuner.backends.metaschedule.trials import KeepTrials, load_trials, task_name
from tuner.graph.relax_types import IRModule
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

CONTESTANTS = ("random", "tvm", "tvm-16", "records")
HISTORY_SEED = 1
_COUNTS = (1, 8, 16, 32, 48, 64, 96, 128)

Settled = dict[str, dict[str, dict[str, float]]]
"""By kernel, run and number of trials: the latency in microseconds of the best schedule so far."""

FAILED_US = float("inf")


KNOWN_TASKS = {
    "dense 64×256×256, relu": "dense:64x256x256,relu",
    "dense 128×512×128, gelu": "dense:128x512x128,gelu",
    "batched product 8×64×64×64": "product:8x64x64x64",
    "convolution 3×3, 32→32, 28²": "convolution:32x28x32x3x1",
    "convolution 1×1, 64→128, 28²": "convolution:64x28x128x1x1",
    "depthwise 3×3, 96, 28²": "depthwise:96x28x3x1",
}
"""Kernels whose random trials `records` has learnt from, and on which its form was chosen."""

FRESH_TASKS = {
    "dense 196×192×192, gelu": "dense:196x192x192,gelu",
    "dense 32×512×512, relu": "dense:32x512x512,relu",
    "batched product 12×128×32×128": "product:12x128x32x128",
    "convolution 3×3 by 2, 32→64, 28²": "convolution:32x28x64x3x2",
    "convolution 1×1, 160→160, 14²": "convolution:160x14x160x1x1",
    "depthwise 5×5, 120, 28²": "depthwise:120x28x5x1",
}
"""Kernels that contestants are compared on."""

TASKS = KNOWN_TASKS | FRESH_TASKS
"""What the tables call a kernel, and the name that `tuner.language.kernels` reads."""


def task_of(name: str) -> IRModule:
    """Return the module of a kernel of `TASKS`."""
    return kernel_module(parse_kernel(TASKS[name]))


def run(folder: Path, name: str, contestant: str, seed: int, trials: int, target: Target) -> None:
    """Tune one kernel once; what the store of the run holds already is done."""
    task, tuned_for = task_of(name), tuning_target(target)
    environment = environment_of(target, MetaSchedule())
    url = str(path_of(folder, name, contestant, seed))
    builder, runner = builder_and_runner()
    tune_kernel(
        task,
        tuned_for,
        TrialSettings(trials=trials, work_dir=folder / "logs", builder=builder, runner=runner, seed=seed),
        database=meta_schedule.database.MemoryDatabase(),
        cost_model=model_of(folder, name, contestant, seed, task, tuned_for, target),
        callbacks=[KeepTrials(url, task, tuned_for, target, environment)],
    )


def model_of(
    folder: Path, name: str, contestant: str, seed: int, task: IRModule, tuned_for: Any, target: Target
) -> Any:
    np.random.seed(seed)  # TVM's model draws from numpy's own generator
    match contestant:
        case "random":
            return meta_schedule.cost_model.RandomModel(seed=seed)
        case "tvm":
            return meta_schedule.cost_model.XGBModel(num_tuning_cores=1)
        case "tvm-16":
            return meta_schedule.cost_model.XGBModel(num_tuning_cores=1, num_warmup_samples=16)
    return RecordsCostModel(
        task_name(task), history(folder, name, HISTORY_SEED, tuned_for, target), seed=seed
    )


def history(folder: Path, name: str, seed: int, tuned_for: Any, target: Target) -> list[Trials]:
    """Return what `random` measured on every other known kernel with a seed."""
    environment = environment_of(target, MetaSchedule())
    return [
        trials
        for other in KNOWN_TASKS
        if other != name
        for trials in load_trials(str(path_of(folder, other, "random", seed)), tuned_for, target, environment)
    ]


def path_of(folder: Path, name: str, contestant: str, seed: int) -> Path:
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    return folder / f"{plain}-{contestant}-{seed}.db"


def latencies_of(path: Path) -> list[float]:
    """Return the latency of each trial in the order of trials; those that failed took for ever."""
    with open_store(str(path)) as store:
        return [
            record.measurement.latency_us if record.measurement.status is Status.OK else FAILED_US
            for record in store.iterate(role="task")
        ]


def run_all(arguments: argparse.Namespace, named: Sequence[str]) -> bool:
    """Do what is not done yet; say whether everything is."""
    deadline = time.monotonic() + arguments.time_limit
    target = resolve_target("cpu", num_threads=1)
    # What `random` measures first is what `records` learns from; after that, contestants take turns.
    order = [("random", name, HISTORY_SEED) for name in KNOWN_TASKS]
    order += [
        (each, name, seed) for seed in arguments.seeds for name in named for each in arguments.contestants
    ]
    for contestant, name, seed in order:
        path = path_of(arguments.folder, name, contestant, seed)
        if is_done(path, arguments.trials):
            continue
        if time.monotonic() > deadline:
            return False
        path.unlink(missing_ok=True)
        started = time.monotonic()
        run(arguments.folder, name, contestant, seed, arguments.trials, target)
        best_us = min(latencies_of(path))
        print(
            f"{name}, {contestant}, {seed}: {best_us:.1f} us, {time.monotonic() - started:.0f} s", flush=True
        )
    return True


def is_done(path: Path, trials: int) -> bool:
    """Say whether a run has its trials; small spaces run out of schedules before."""
    return path.exists() and len(latencies_of(path)) >= 0.9 * trials


def settle(folder: Path, tasks: Sequence[str], seeds: Sequence[int], counts: Sequence[int]) -> None:
    """Measure the best of the first trials of each run again, all of a kernel in turn, and keep that."""
    tuned_for = tuning_target(resolve_target("cpu", num_threads=1))
    settled = read_settled(folder)
    for name in tasks:
        best = {
            f"{contestant}-{seed}": best_trials(path, counts)
            for contestant in CONTESTANTS
            for seed in seeds
            if is_done(path := path_of(folder, name, contestant, seed), counts[-1])
        }
        traces = sorted({trial.settings for each in best.values() for trial in each})
        modules = [replayed(task_of(name), trace) for trace in traces]
        latency_us = dict(zip(traces, measure_in_turn(modules, tuned_for), strict=True))
        settled[name] = {
            # Where its tensors lie in memory may cost a schedule a factor of two: the better figure counts.
            run: {
                str(n): min(latency_us[trial.settings], trial.latency_us)
                for n, trial in zip(counts, each, strict=True)
            }
            for run, each in best.items()
        }
        path_of_settled(folder).write_text(json.dumps(settled, indent=1, sort_keys=True), encoding="utf-8")
        print(f"{name}: {len(traces)} schedules measured in turn", flush=True)


def best_trials(path: Path, counts: Sequence[int]) -> list[Measurement]:
    """Return the best of the first trials of a run, for each count."""
    with open_store(str(path)) as store:
        kept = [record.measurement for record in store.iterate(role="task")]
    done = [each for each in kept if each.status is Status.OK]
    return [
        min([each for each in kept[:count] if each.status is Status.OK] or done[:1], key=_latency_us)
        for count in counts
    ]


def _latency_us(measurement: Measurement) -> float:
    return measurement.latency_us


def replayed(task: IRModule, trace: str) -> Any:
    """Return a kernel as a trace schedules it."""
    schedule = Schedule(task)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule.mod


def path_of_settled(folder: Path) -> Path:
    return folder / "settled.json"


def read_settled(folder: Path) -> Settled:
    path = path_of_settled(folder)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def table(settled: Settled, tasks: Sequence[str], contestants: Sequence[str], counts: Sequence[int]) -> str:
    """Return medians over seeds of the latency over the kernel's best, with the range over seeds."""
    lines = [
        "| kernel | best of all | ordered by | " + " | ".join(f"after {n}" for n in counts) + " | seeds |",
        "|---|---|---|" + "---|" * (len(counts) + 1),
    ]
    medians: dict[tuple[str, int], list[float]] = {}
    for name in tasks:
        runs = settled.get(name, {})
        present = {key.rpartition("-")[0] for key in runs} & set(contestants)
        is_common = present == set(contestants)
        # A seed that one has not run yet counts for none.
        seeds = [
            seed
            for seed in sorted({key.rpartition("-")[2] for key in runs})
            if all(f"{contestant}-{seed}" in runs for contestant in present)
        ]
        best = min((us for run in runs.values() for us in run.values()), default=0.0)
        for contestant in contestants:
            found = [run for seed in seeds if (run := runs.get(f"{contestant}-{seed}")) is not None]
            if not found:
                continue
            cells = []
            for count in counts:
                ratios = [run[str(count)] / best for run in found]
                if is_common:
                    medians.setdefault((contestant, count), []).append(statistics.median(ratios))
                spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
                cells.append(f"{statistics.median(ratios):.2f}{spread}")
            lines.append(f"| {name} | {best:.1f} µs | {contestant} | {' | '.join(cells)} | {len(found)} |")
    for contestant in contestants:
        columns = [medians.get((contestant, count), []) for count in counts]
        if columns[0]:
            means = " | ".join(f"**{statistics.geometric_mean(column):.2f}**" for column in columns)
            lines.append(f"| geometric mean of {len(columns[0])} | | {contestant} | {means} | |")
    return "\n".join(lines)


def duels(settled: Settled, tasks: Sequence[str], counts: Sequence[int], first: str, second: str) -> str:
    """Return how often one contestant's best is faster by more than 1 %, over equal kernels and seeds."""
    said = []
    for count in counts:
        ratios = [
            us[str(count)] / other[str(count)]
            for name in tasks
            for key, us in settled.get(name, {}).items()
            if key.rpartition("-")[0] == first
            and (other := settled[name].get(f"{second}-{key.rpartition('-')[2]}")) is not None
        ]
        ahead, behind = sum(each < 0.99 for each in ratios), sum(each > 1.01 for each in ratios)
        said.append(f"after {count}: ahead in {ahead}, behind in {behind} of {len(ratios)}")
    return f"`{first}` against `{second}`, by more than 1 %: " + "; ".join(said) + "."


def replays(folder: Path, seeds: Sequence[int]) -> Iterator[str]:
    target = resolve_target("cpu", num_threads=1)
    tuned_for, environment = tuning_target(target), environment_of(target, MetaSchedule())
    known: dict[str, Trials] = {}
    pools: dict[str, Trials] = {}
    for name in KNOWN_TASKS:
        runs = {}
        for contestant in CONTESTANTS:
            for seed in seeds:
                path = path_of(folder, name, contestant, seed)
                if path.exists():
                    runs[path] = load_trials(str(path), tuned_for, target, environment)
        known[name] = merged(runs[path_of(folder, name, "random", HISTORY_SEED)])
        pools[name] = merged([trials for found in runs.values() for trials in found])
        print(f"{name}: {len(pools[name].latencies_us)} trials read", file=sys.stderr, flush=True)
    return replay_table(pools, known, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("out/schedules"))
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", default=list(FRESH_TASKS), help="beginnings of names")
    parser.add_argument(
        "--contestants", nargs="+", default=("random", "tvm-16", "records"), choices=CONTESTANTS
    )
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), help="seconds after which none starts"
    )
    parser.add_argument("--print-only", action="store_true")
    parser.add_argument("--replay", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.replay:
        for line in replays(arguments.folder, arguments.seeds):
            print(line, flush=True)
        return
    named = [name for name in TASKS if name.startswith(tuple(arguments.tasks))]
    counts = [count for count in _COUNTS if count <= arguments.trials]
    if not arguments.print_only:
        if not run_all(arguments, named):
            print("not everything is done; run it again")
            return
        settle(arguments.folder, named, arguments.seeds, counts)
    settled = read_settled(arguments.folder)
    print(table(settled, named, arguments.contestants, counts))
    if {"records", "tvm-16"} <= set(arguments.contestants):
        print(duels(settled, named, counts, "records", "tvm-16"))


if __name__ == "__main__":
    main()
