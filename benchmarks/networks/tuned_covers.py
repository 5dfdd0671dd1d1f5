"""What tuning our own kernels gains in whole networks, before any candidate is priced.

Each network is covered with as few parts as our own backends allow (`tuner.tuning.find_own_kernels`), tvm
doing the rest, which is the partition that the search chooses for most of them too. Its kernels are tuned,
and the same cover runs with the kernels' rules, with what was found, and under torch, in turn in one
process. Where its weights lie in memory makes one program up to 2 % faster than an equal one, so that both
are loaded several times, and the gain is the geometric mean of what each time says. Where nothing was found
that is faster than the rules there is one program, whose gain is 1. All results are compared with torch's.
What is done is in --out, and is not done again.

    taskset -c 1 python -m benchmarks.networks.tuned_covers --trial-budget 200 --tuning-seconds 100
    python -m benchmarks.networks.tuned_covers --report
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import tvm
from tvm import relax

from benchmarks import network_models
from benchmarks.networks.__main__ import NETWORKS, THREADS, first_array, program_arguments
from benchmarks.networks.contenders import eager
from benchmarks.networks.figures import TOLERANCE, largest_error, run_in_turn
from records import open_store
from tuner.backends.cpu.attention import Attention
from tuner.backends.cpu.nhwc import Nhwc
from tuner.backends.cpu.packed_matmul import PackedMatmul
from tuner.backends.cpu.tuned.tuned_backend import with_chosen_tiles
from tuner.backends.protocol import Backend
from tuner.backends.tvm.native import TvmNative
from tuner.frontend.torch.program import import_module
from tuner.graph import DataflowGraph
from tuner.lowering.lower import build_module, lower_module
from tuner.lowering.outline import outline_partitions
from tuner.lowering.weight_binding import bound_arguments
from tuner.measuring.race import paired_ratio
from tuner.targets.resolution import resolve_target
from tuner.tuning.find_own_kernels import find_own_kernels
from tuner.tuning.own_kernels import OwnTrials, chosen_tiles, tune_own_kernels
from tuner.tuning.partition_model import prepared_module

_LOADINGS = 4
"""How often each program is loaded."""

RULES, TUNED, TORCH = "rules", "tuned", "torch eager"

BACKENDS: tuple[Backend, ...] = (PackedMatmul(), Nhwc(), Attention(), TvmNative())


def measure_network(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune a network's kernels, run its cover with and without what was found, and return the figures."""
    target = resolve_target(arguments.target, num_threads=1)
    module, inputs = getattr(network_models, name)()
    model = import_module(module, inputs, name)
    graph = DataflowGraph.from_function(prepared_module(model))
    started = time.perf_counter()
    found = find_own_kernels(graph, BACKENDS, target)
    finding_s = time.perf_counter() - started
    trials = OwnTrials(
        budget=arguments.trial_budget, proposer=arguments.proposer, time_limit_s=arguments.tuning_seconds
    )
    with open_store(arguments.trial_records) as store:
        tuned = tune_own_kernels(found.kernels, trials, store, target)
        chosen = chosen_tiles(store, found.kernels, target)
    tuning_s = time.perf_counter() - started - finding_s
    outlined = outline_partitions(graph, found.cover)
    tensors = program_arguments(model, inputs)
    programs = {RULES: build_module(lower_module(outlined, BACKENDS, target), target)}
    if chosen:
        tuned_backends = with_chosen_tiles(BACKENDS, chosen)
        programs[TUNED] = build_module(lower_module(outlined, tuned_backends, target), target)
    reference = eager(module, inputs)
    expected = reference()
    errors: dict[str, float] = {}
    samples: dict[str, list[float]] = {}
    gains: list[float] = []
    for loading in range(_LOADINGS):
        labels = sorted(programs, reverse=bool(loading % 2))
        runs = {label: _loaded(programs[label], tensors) for label in labels}
        for label, run in runs.items():
            errors[label] = largest_error(run(), expected)
            if not errors[label] <= TOLERANCE:
                sys.exit(f"{name}: {label} differs from torch by {errors[label]:.1e} of the largest output")
        contenders = {**runs, TORCH: reference}
        found_samples = run_in_turn(
            contenders, repeats=-(-arguments.repeats // _LOADINGS), seconds=arguments.seconds / _LOADINGS
        )
        for label, each in found_samples.items():
            samples.setdefault(label, []).extend(each)
        if chosen:
            gains.append(paired_ratio(found_samples[TUNED], found_samples[RULES], error=0.05).ratio)
    if not chosen:
        samples[TUNED], errors[TUNED], gains = samples[RULES], errors[RULES], [1.0]
    return {
        "name": name,
        "latency_ms": {label: statistics.median(each) for label, each in samples.items()},
        "gain": [statistics.geometric_mean(gains), min(gains), max(gains)],
        "rounds": len(samples[TUNED]),
        "error": errors[TUNED],
        "kernels": len(found.kernels),
        "changed": len(chosen.decisions),
        "trials": sum(each.trials for each in tuned),
        "finding_s": finding_s,
        "tuning_s": tuning_s,
        "load": os.getloadavg()[0],
        "by_kernel": [
            {
                "kernel": each.name,
                "count": each.count,
                "trials": each.trials,
                "rule_us": each.rule_us if math.isfinite(each.rule_us) else None,
                "best_us": each.best_us if math.isfinite(each.best_us) else None,
                "decisions": dict(chosen.decisions.get(each.name, {})),
            }
            for each in tuned
        ],
    }


def report(figures: Sequence[dict[str, Any]]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| network | by rules, ms | tuned, ms | gain, least and most | torch eager, ms | kernels | changed "
        "| trials | tuning, s | error |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in figures:
        latency, (gain, low, high) = each["latency_ms"], each["gain"]
        interval = f"[{low:.2f}, {high:.2f}]"
        seconds = each["finding_s"] + each["tuning_s"]
        lines.append(
            f"| {each['name']} | {latency[RULES]:.2f} | {latency[TUNED]:.2f} | **{gain:.2f}** {interval} "
            f"| {latency[TORCH]:.2f} | {each['kernels']} | {each['changed']} | {each['trials']} "
            f"| {seconds:.0f} | {each['error']:.1e} |"
        )
    mean = statistics.geometric_mean(each["gain"][0] for each in figures)
    lines.append(f"| **geometric mean** | | | **{mean:.2f}** | | | | | | |")
    return "\n".join(lines)


def _loaded(executable: Any, tensors: Sequence[Any]) -> Callable[[], Any]:
    """Return what runs a program, with packed weights of its own."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    main, arguments = machine["main"], bound_arguments(machine, tensors)
    return lambda: first_array(main(*arguments))


def main() -> None:
    if any(os.environ.get(variable) != "1" for variable in THREADS):
        environment = os.environ | dict.fromkeys(THREADS, "1")
        command = [sys.executable, "-m", "benchmarks.networks.tuned_covers", *sys.argv[1:]]
        os.execve(sys.executable, command, environment)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--target", default="cpu", help="cpu, or llvm with options: code for another one")
    parser.add_argument("--trial-records", default="sqlite:///out/networks/trials.db")
    parser.add_argument("--trial-budget", type=int, default=200)
    parser.add_argument("--tuning-seconds", type=float, default=100.0, help="after which no batch begins")
    parser.add_argument("--proposer", default="draft", choices=("language", "draft", "neighbour", "random"))
    parser.add_argument("--out", type=Path, default=Path("out/networks/tuned-covers.json"))
    parser.add_argument("--repeats", type=int, default=7, help="least executions of each contender")
    parser.add_argument("--seconds", type=float, default=15.0, help="go on for so long, with short networks")
    parser.add_argument("--report", action="store_true", help="print the table of --out and measure nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in () if arguments.report else arguments.networks or NETWORKS:
        if name not in figures:
            figures[name] = measure_network(name, arguments)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            partial = arguments.out.with_suffix(".partial")
            partial.write_text(json.dumps(figures, indent=1))
            partial.replace(arguments.out)
            print(name, figures[name]["latency_ms"], figures[name]["gain"], file=sys.stderr, flush=True)
    print(report([figures[name] for name in NETWORKS if name in figures]))


if __name__ == "__main__":
    main()
