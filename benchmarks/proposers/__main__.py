"""How fast held-out kernels get with so many trials, by who proposes the schedules.

    tessel language collect --records out/proposers/training.db
    python -m benchmarks.proposers --held-out           # names for the option --hold-out of the next line
    tessel language train --records out/proposers/training.db --out out/proposers/model --hold-out "NAMES"
    taskset -c 0 python -m benchmarks.proposers --part 0/2 &
    taskset -c 1 python -m benchmarks.proposers --part 1/2
    python -m benchmarks.proposers --print-only

Proposers, all measured by the same builder, runner and thread in one process:

- `language`: the language model writes 96 schedules, of which a draft model picks every four.
- `draft`: a model of decisions, trained on the trials that the records hold of other kernels, and again after
  every four trials of the kernel at hand.
- `neighbour`: the best decisions of the nearest kernels in the records, then changes of the best so far.
- `evolutionary`: MetaSchedule's search, ordered by its own XGBoost model from 16 trials on.
- `random`: a sketch at random, with decisions as TVM draws them.

Trials of the kernels themselves are left out of what is known, if the records have any. A finished run is a
file under `--folder`, so that what was stopped goes on; no run starts after `--time-limit` seconds. The first
table gives the best latency after so many trials as a multiple of the best that anybody found: the median
over seeds, the geometric mean over kernels, quartiles over all runs. The second gives each proposer's best
schedule, all of a kernel measured again in turn. Equal schedules are measured once, whoever proposes them:
their samples are kept beside the runs. Evolution gets `--long-trials` with the first seed, the same trials
as all others first. `--clock thread` times kernels by the processor time of their one thread, for a machine
that others load.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from benchmarks.proposers.runs import load_runs, path_of, save_run
from benchmarks.proposers.tables import curve_tables, winner_table
from benchmarks.trials.in_process import builder_and_runner, measure_in_turn
from cost_model.language.model_files import load_network
from records import open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine, load_draft_trials
from tuner.backends.metaschedule.proposers import EVOLUTIONARY, LANGUAGE, PROPOSERS, Knowledge
from tuner.backends.metaschedule.traces import plain_json
from tuner.backends.metaschedule.trials import task_name
from tuner.language.evaluation import Measuring, Run, measure_trials
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.targets.resolution import resolve_target

KERNELS = (
    "dense:13x768x768,relu",
    "product:10x49x64x49",
    "convolution:40x26x72x3x1",
    "depthwise:120x28x5x1",
    "dense:196x192x192,gelu",
    "dense:50x384x1152",
    "dense:100x96x400,relu",
    "product:6x197x64x197",
    "product:12x128x32x128",
    "convolution:160x14x160x1x1",
    "convolution:32x28x64x3x2",
    "convolution:12x56x20x5x1",
    "depthwise:72x28x3x2",
)
"""Kernels to tune: dense, products, convolutions and depthwise ones, few of them of multiples of 16."""


def run_all(arguments: argparse.Namespace) -> bool:
    """Do what is not done yet; say whether everything is."""
    deadline = time.monotonic() + arguments.time_limit
    target = resolve_target("cpu", num_threads=1)
    tuned_for = tuning_target(target)
    environment = environment_of(target, MetaSchedule())
    modules = {name: kernel_module(parse_kernel(name)) for name in arguments.kernels}
    with open_store(arguments.records) as store:
        found = load_draft_trials(store, target, environment)
    held_out = {task_name(kernel_module(parse_kernel(name))) for name in KERNELS}
    known = tuple(each for each in found if each.task not in held_out | set(map(task_name, modules.values())))
    network = None
    if LANGUAGE in arguments.proposers:
        network, _ = load_network(arguments.model, target.text, target.num_threads)
    knowledge = Knowledge(known, caches_of_this_machine(1), network)
    builder, runner = builder_and_runner(
        arguments.clock, arguments.folder / f"samples-{arguments.clock}.jsonl"
    )
    measuring = Measuring(
        tuned_for=tuned_for, builder=builder, runner=runner, work_dir=arguments.folder / "logs"
    )
    for seed in arguments.seeds:
        for proposer in arguments.proposers:
            for kernel, module in modules.items():
                path = path_of(arguments.folder, kernel, proposer, seed)
                if path.exists():
                    continue
                if time.monotonic() > deadline:
                    return False
                is_long = proposer == EVOLUTIONARY and seed == arguments.seeds[0]
                started = time.monotonic()
                latencies, database = measure_trials(
                    module,
                    proposer,
                    knowledge,
                    trials=max(arguments.trials, arguments.long_trials) if is_long else arguments.trials,
                    seed=seed,
                    measuring=measuring,
                )
                run = Run(
                    kernel=kernel,
                    proposer=proposer,
                    seed=seed,
                    latencies_us=latencies,
                    seconds=time.monotonic() - started,
                    num_known=0 if proposer == EVOLUTIONARY else sum(len(each.rows) for each in known),
                )
                _save_best(path, database, module, tuned_for)
                save_run(path, run)
                print(
                    f"{kernel}, {proposer}, {seed}: {run.best_us(10**6):.1f} us, {run.seconds:.0f} s",
                    flush=True,
                )
    return True


def winners_in_turn(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the latencies of each proposer's best schedules, the median over seeds, measured in turn."""
    tuned_for = tuning_target(resolve_target("cpu", num_threads=1))
    found: dict[str, dict[str, float]] = {}
    for kernel in arguments.kernels:
        module = kernel_module(parse_kernel(kernel))
        scheduled: list[Any] = []
        owners: list[str] = []
        for proposer in arguments.proposers:
            for seed in arguments.seeds:
                path = path_of(arguments.folder, kernel, proposer, seed)
                trace = path.with_suffix(".trace")
                if trace.exists():
                    scheduled.append(_replayed(module, trace))
                    owners.append(proposer)
        if not scheduled:
            continue
        latencies = measure_in_turn(scheduled, tuned_for, clock=arguments.clock)
        found[kernel] = {
            proposer: statistics.median(
                latency for owner, latency in zip(owners, latencies, strict=True) if owner == proposer
            )
            for proposer in dict.fromkeys(owners)
        }
    return found


def _save_best(path: Path, database: Any, module: Any, tuned_for: Any) -> None:
    best = database.query_tuning_record(module, tuned_for, "main")
    if best is not None:
        path.with_suffix(".trace").write_text(json.dumps(plain_json(best.trace.as_json())))


def _replayed(module: Any, path: Path) -> Any:
    schedule = Schedule(module)
    Trace.apply_json_to_schedule(json.loads(path.read_text()), schedule)
    return schedule.mod


def report(arguments: argparse.Namespace, runs: list[Run], winners: Mapping[str, Mapping[str, float]]) -> str:
    """Return the report as Markdown."""
    load = os.getloadavg()[0]
    num_known = max((run.num_known for run in runs), default=0)
    return (
        f"{len(runs)} runs of up to {arguments.trials} trials, one thread, clock `{arguments.clock}`, load "
        f"{load:.1f} at the end; {num_known} trials of other kernels known.\n\n"
        f"{curve_tables(runs)}\n\nWinners measured again in turn:\n\n{winner_table(winners)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", default="out/proposers/training.db")
    parser.add_argument("--folder", type=Path, default=Path("out/proposers/runs"))
    parser.add_argument("--model", type=Path, default=Path("out/proposers/model"))
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--long-trials", type=int, default=64, help="of evolution with the first seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--kernels", nargs="+", default=KERNELS)
    parser.add_argument("--proposers", nargs="+", default=PROPOSERS, choices=PROPOSERS)
    parser.add_argument("--clock", default="wall", choices=("wall", "thread"))
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds after which none starts")
    parser.add_argument("--part", default="0/1", help="which of how many shares of the kernels, such as 0/2")
    parser.add_argument("--print-only", action="store_true", help="print the tables of what is done")
    parser.add_argument("--held-out", action="store_true", help="print the kernels' names")
    arguments = parser.parse_args()
    if arguments.held_out:
        print(" ".join(KERNELS))
        return
    part, parts = map(int, arguments.part.split("/"))
    arguments.kernels = arguments.kernels[part::parts]
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if not arguments.print_only and not run_all(arguments):
        print("not everything is done; run it again")
    if parts > 1:
        return
    runs = load_runs(arguments.folder)
    if not runs:
        raise SystemExit(f"{arguments.folder} holds no runs; run it without --print-only")
    text = report(arguments, runs, winners_in_turn(arguments))
    (arguments.folder.parent / "proposers.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
