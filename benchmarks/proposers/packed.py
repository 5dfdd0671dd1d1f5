"""How fast our own kernels get with so many trials, by who proposes their decisions, beside untuned backends.

Kernels of `benchmarks.proposers` that one of ours computes, and more whose extents are no multiples of 16.
Trials of the same kernels are left out of what is known, and with --without those of whole families, so that
a kernel is of an operator that nobody has seen; with --without-records, all. With --drawn, kernels of uneven
extents are drawn in their place, which no rule was made for. A proposer's first trial is its
first proposal; with --from-rule it is the kernel's own rule, from which the proposer learns, as in tuning.
All of a kernel's figures are processor time of one thread. What untuned backends take (the `tvm` rule, our
kernel by its rule, and torch with packed weights, as its backend calls it) and the winner are measured in
turn, so is the winner of each proposer. A finished kernel is an entry of --out, and is not done again.

    taskset -c 1 python -m benchmarks.proposers.packed --records TRAINING.db --model MODEL --seeds 0 1 2
    python -m benchmarks.proposers.packed --report
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.proposers.__main__ import KERNELS
from cost_model.draft.draft_model import DraftTrials
from cost_model.language.model_files import load_network
from cost_model.language.network import Network
from records import open_store
from tuner.backends.cpu.tuned.kernel_trials import load_kernel_trials
from tuner.backends.cpu.tuned.trial_knowledge import TrialKnowledge
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine
from tuner.backends.metaschedule.proposers import BATCH, LANGUAGE, Knowledge, new_proposer
from tuner.backends.tvm.cpu_schedule import cpu_schedule_of
from tuner.backends.tvm.vector_math import vectorise_math
from tuner.graph.relax_types import PrimFunc
from tuner.language.kernels import FAMILIES, Kernel, kernel_module, own_kernel, parse_kernel
from tuner.language.knowledge import family_of_own
from tuner.measuring.kernel_process import KernelProcess
from tuner.runtime.library_calls import Convolution, Linear
from tuner.runtime.torch_calls import PackedCall
from tuner.targets.resolution import resolve_target
from tuner.targets.vector_registers import vector_registers
from tuner.tuning.own_kernels import OwnCandidates

PROPOSERS = ("language", "draft", "neighbour", "random")
"""The first takes part where a model is given."""

COUNTS = (1, 2, 4, 8, 16)

UNEVEN = (
    "dense:49x100x200,relu",
    "dense:77x300x333",
    "dense:197x192x250,gelu",
    "dense:5x500x1000",
    "convolution:36x27x40x1x1",
    "convolution:20x35x44x3x1",
    "convolution:24x33x52x5x2",
    "depthwise:88x27x3x1",
)
"""More kernels of extents that are no multiples of 16."""


_DRAWN_OPERATIONS = (10**6, 2 * 10**8)


def drawn_kernels(count: int, registers: int) -> list[str]:
    """Return so many kernels with a kernel of ours, none of whose extents is a multiple of 16.

    Half of them are dense, and as many depthwise as other convolutions; logarithms of extents are equally
    likely. Channels of convolutions are multiples of 4, as our kernels ask.
    """
    rng = np.random.default_rng([16, 19])

    def extent(least: int, most: int, step: int = 1) -> int:
        while True:
            drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
            found = round(drawn / step) * step
            if found % 16:
                return found

    names: list[str] = []
    while len(names) < count:
        family = ("dense", "convolution", "dense", "depthwise")[len(names) % 4]
        size, stride = (int(rng.choice(each)) for each in ([1, 3, 5], [1, 1, 2]))
        if family == "dense":
            activation = str(rng.choice(["", "relu", "gelu"]))
            kernel = Kernel(family, (extent(1, 256), extent(40, 1000), extent(20, 1200)), activation)
        elif family == "convolution":
            kernel = Kernel(family, (extent(12, 200, 4), extent(7, 57), extent(12, 200, 4), size, stride))
        else:
            kernel = Kernel(family, (extent(20, 300, 4), extent(7, 57), max(size, 3), stride))
        least, most = _DRAWN_OPERATIONS
        if least <= kernel.num_operations <= most and own_kernel(kernel, registers) is not None:
            names.append(kernel.name)
    return names


def measure_kernel(
    name: str, known: Sequence[DraftTrials], network: Network | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the trials of every proposer on a kernel, and the untuned backends beside the winner."""
    kernel = parse_kernel(name)
    target = resolve_target(arguments.target, num_threads=1)
    registers = vector_registers(target)
    own = own_kernel(kernel, registers)
    assert own is not None, "only kernels that one of ours computes"
    others = tuple(each for each in known if each.task != own.name)
    knowledge = Knowledge(others, caches_of_this_machine(1), network=network)
    proposers = [each for each in PROPOSERS if each != LANGUAGE or network is not None]
    candidates = OwnCandidates(own, registers)
    runs: list[dict[str, Any]] = []
    with KernelProcess(target) as process:
        for proposer_name in proposers:
            for seed in arguments.seeds:
                started = time.monotonic()
                latencies, best = _run(process, candidates, proposer_name, knowledge, seed, arguments)
                runs.append(
                    {
                        "proposer": proposer_name,
                        "seed": seed,
                        "latencies_us": latencies,
                        "seconds": time.monotonic() - started,
                        "best": best,
                    }
                )
        winners = {
            proposer: min((run for run in runs if run["proposer"] == proposer), key=_best_us)["best"]
            for proposer in proposers
        }
        functions: dict[str, PrimFunc] = {"rule": own.with_decisions({}).function()}
        scheduled = cpu_schedule_of(kernel_module(kernel)["main"], registers)
        if scheduled is not None:
            functions["tvm"] = vectorise_math(scheduled.mod["main"])
        functions |= {
            proposer: own.with_decisions(decisions).function() for proposer, decisions in winners.items()
        }
        samples = process.time(list(functions.values()), rounds=9)
    in_turn = {
        label: statistics.median(each) if isinstance(each, tuple) else None
        for label, each in zip(functions, samples, strict=True)
    }
    in_turn["torch"] = _torch_us(kernel)
    return {"kernel": name, "own": own.name, "runs": runs, "in_turn_us": in_turn, "load": os.getloadavg()[0]}


def _run(
    process: KernelProcess,
    candidates: OwnCandidates,
    name: str,
    knowledge: Knowledge,
    seed: int,
    arguments: argparse.Namespace,
) -> tuple[list[float | None], dict[str, int]]:
    proposer = new_proposer(name, candidates.kernel.name, candidates, knowledge, seed=seed)
    latencies: list[float] = []
    decisions: list[dict[str, int]] = []
    trials = arguments.trials
    rule = candidates.rule() if arguments.from_rule else None
    if rule is not None:
        known: set[object] = getattr(proposer, "known", set())
        known.add(rule.key)
    while len(latencies) < trials:
        first = [rule] if rule is not None and not latencies else []
        batch = first + proposer.propose(min(BATCH, trials - len(latencies)) - len(first))
        if not batch:
            break
        found = process.time([each.schedule.function() for each in batch], rounds=3)
        took = [statistics.median(each) if isinstance(each, tuple) else math.inf for each in found]
        proposer.learn(batch, took)
        latencies += took
        decisions += [candidates.spaces[0].decisions_of(each.row) for each in batch if each.row is not None]
    best = decisions[latencies.index(min(latencies))]
    return [each if math.isfinite(each) else None for each in latencies], best


def _best_us(run: dict[str, Any], count: int = 10**6) -> float:
    return min((each for each in run["latencies_us"][:count] if each is not None), default=math.inf)


def _torch_us(kernel: Kernel) -> float:
    """Return the median processor time of the same as the backend `torch` calls it: its fastest way."""
    call, shape, weights = _torch_call(kernel)
    packed = PackedCall(call, shape, weights)
    data = torch.rand(shape)
    with torch.inference_mode():
        result = _result_for(call, data, weights[0])
        samples = []
        for _ in range(9):
            started = time.thread_time_ns()
            count = 0
            while time.thread_time_ns() - started < 8e6:
                packed.run(data, result)
                count += 1
            samples.append((time.thread_time_ns() - started) / 1e3 / count)
    return statistics.median(samples)


def _result_for(call: Linear | Convolution, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return memory of the shape of a call's result."""
    if isinstance(call, Linear):
        return torch.empty(data.shape[0], weight.shape[0])
    return torch.empty_like(
        torch.nn.functional.conv2d(data, weight, None, call.strides, call.padding, call.dilation, call.groups)
    )


def _torch_call(kernel: Kernel) -> tuple[Linear | Convolution, list[int], list[torch.Tensor]]:
    """Return a kernel as torch's backend takes it: the call, the shape of the data, and the weights."""
    if kernel.family == "dense":
        rows, inner, columns = kernel.extents
        linear = Linear(
            left_transposed=False,
            right_transposed=True,
            has_bias=True,
            activation="relu" if kernel.activation == "relu" else "gelu" if kernel.activation else "",
        )
        return linear, [rows, inner], [torch.rand(columns, inner), torch.rand(columns)]
    channels, extent, *rest = kernel.extents
    groups = channels if kernel.family == "depthwise" else 1
    outputs, size, stride = rest if groups == 1 else (channels, *rest)
    convolution = Convolution(
        strides=(stride, stride),
        padding=(size // 2, size // 2),
        dilation=(1, 1),
        groups=groups,
        has_bias=False,
        activation="relu",
    )
    return convolution, [1, channels, extent, extent], [torch.rand(outputs, channels // groups, size, size)]


def report(entries: Sequence[dict[str, Any]]) -> str:
    """Return the tables as Markdown."""
    shown = [each for each in PROPOSERS if any(run["proposer"] == each for run in entries[0]["runs"])]
    lines = [
        f"| kernel | torch | `tvm` rule | our rule | {' | '.join(shown)} | best untuned over draft |",
        "|---|--:|--:|--:" + "|--:" * len(shown) + "|--:|",
    ]
    gains: dict[str, float] = {}
    for entry in entries:
        took = entry["in_turn_us"]
        untuned = [took[label] for label in ("torch", "tvm", "rule") if took.get(label)]
        tuned = min(took["draft"], took["rule"])  # tuning keeps the rule where it is faster
        gains[entry["kernel"]] = min(untuned) / tuned
        cells = [took.get(label) for label in ("torch", "tvm", "rule", *shown)]
        figures = " | ".join("–" if each is None else f"{each:.1f}" for each in cells)
        lines.append(f"| {entry['kernel']} | {figures} | **{gains[entry['kernel']]:.2f}** |")
    mean = statistics.geometric_mean(gains.values())
    lines.append(f"| **geometric mean of {len(gains)}** | {'| ' * (2 + len(shown))}| **{mean:.2f}** |")
    lines += ["", f"Least of all: {min(gains.values()):.2f}.", ""]
    lines += [
        "| proposer | s a run | " + " | ".join(map(str, COUNTS)) + " |",
        "|---|--:|" + "--:|" * len(COUNTS),
    ]
    best = {entry["kernel"]: min(map(_best_us, entry["runs"])) for entry in entries}
    for proposer in shown:
        cells, spreads = [], []
        mine = [
            (entry["kernel"], run)
            for entry in entries
            for run in entry["runs"]
            if run["proposer"] == proposer
        ]
        for count in COUNTS:
            medians = [
                statistics.median(_best_us(run, count) / best[name] for at, run in mine if at == name)
                for name in best
            ]
            cells.append(f"**{statistics.geometric_mean(medians):.2f}**")
            ratios = [_best_us(run, count) / best[name] for name, run in mine]
            low, high = np.quantile(ratios, [0.25, 0.75])
            spreads.append(f"{low:.2f}–{high:.2f}")
        seconds = statistics.median(run["seconds"] for _, run in mine)
        lines.append(f"| {proposer} | {seconds:.0f} | {' | '.join(cells)} |")
        lines.append(f"|  | | {' | '.join(spreads)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--target",
        default="cpu",
        help="cpu, or llvm with options: code for another processor; limit torch's, too (ONEDNN_MAX_CPU_ISA)",
    )
    parser.add_argument("--records", default="out/proposers/training.db")
    parser.add_argument(
        "--model", type=Path, default=None, help="folder of the language model, if it proposes"
    )
    parser.add_argument("--out", type=Path, default=Path("out/proposers/packed.json"))
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kernels", nargs="+", default=None)
    parser.add_argument("--drawn", type=int, default=0, help="so many kernels drawn at random, all uneven")
    parser.add_argument(
        "--without", nargs="+", default=(), choices=tuple(FAMILIES), help="families of which nothing is known"
    )
    parser.add_argument("--without-records", action="store_true", help="nothing is known of any kernel")
    parser.add_argument("--from-rule", action="store_true", help="the first trial is the kernel's own rule")
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds after which none starts")
    parser.add_argument("--report", action="store_true", help="print the tables of --out and measure nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    entries: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    target = resolve_target(arguments.target, num_threads=1)
    registers = vector_registers(target)
    names = arguments.kernels or drawn_kernels(arguments.drawn, registers)
    names = names or [
        name for name in (*KERNELS, *UNEVEN) if own_kernel(parse_kernel(name), registers) is not None
    ]
    deadline = time.monotonic() + arguments.time_limit
    network = None
    if arguments.model is not None:
        network, _ = load_network(arguments.model, target.text, target.num_threads)
    if not arguments.report:
        with open_store(arguments.records) as store:
            found = load_kernel_trials(store, target, environment_of(target))
        is_blank = arguments.without_records
        kept = [
            each
            for each in found
            if not is_blank and family_of_own(each.trial.kernel) not in arguments.without
        ]
        known = TrialKnowledge(kept, num_threads=1, seed=0)
        for name in names:
            if name in entries or time.monotonic() > deadline:
                continue
            own = own_kernel(parse_kernel(name), registers)
            assert own is not None, "listed so"
            entries[name] = measure_kernel(name, known.of(own.name).trials, network, arguments)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(entries))
            print(name, entries[name]["in_turn_us"], flush=True)
    print(report([entries[name] for name in names if name in entries]))


if __name__ == "__main__":
    main()
