"""A training step of one micro-batch: a plan's compiled stages, torch.compile and torch eager, in turn.

    tessel tune benchmarks/training_step.py:gpt2_small --devices 4 --micro-batches 4 --threads 1 --out OUT
    python -m benchmarks.training_step OUT/plan.json [--rounds 21] [--report FILE.md]

All three run in this process with as many threads as the plan was tuned with: forward, and the backward of
all weights, of the same module with the same weights on the same words. Stages exchange nothing. A
round runs each of them once, in an order that turns; figures are ratios within a round, with the interval
that holds their median with probability 0.95 by order statistics. Losses are compared first. torch.compile
needs a C++ compiler; where there is none it is left out by name. Every engine is warmed up; compiling is not
timed.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

from benchmarks.simulator.provenance import commit, processor
from tessel.engine.actions import Action, ActionKind
from tessel.engine.import_function import find_function, import_location
from tessel.loading import load_plan
from tessel.tuned_plan import TunedPlan
from tuner.plan import ModelPlan
from tuner.programs.compiled_stages import ProgramSpec, load_planned_model, load_programs
from tuner.programs.inputs import draw_inputs

OURS, COMPILED, EAGER = "compiled stages", "torch.compile", "torch eager"
LARGEST_LOSS_ERROR = 1e-4
"""Relative; float32 sums in another order."""

Step = Callable[[], float]
"""Runs one micro-batch forward and backward, and returns its loss."""


def gpt2_small() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a language model of GPT-2 small's sizes with a tied head, and 64 words."""
    torch.manual_seed(0)
    build = import_location(str(Path(__file__).parents[1] / "examples" / "own_model.py")).LanguageModel
    return build(vocabulary=50257, width=768, num_heads=12, num_layers=12), (
        torch.zeros(1, 64, dtype=torch.long),
    )


def stages_step(plan: TunedPlan) -> Step:
    """Return the plan's compiled stages one after another, then their joint backwards."""
    tuned = ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__})
    programs = load_programs(ProgramSpec(plan=tuned, trust_model=True), range(len(plan.stages)))

    def step() -> float:
        given: dict[str, torch.Tensor] = {}
        for number in sorted(programs):
            programs[number].start_step(1)
            given = programs[number].run(Action(number, ActionKind.FORWARD, 0), given)
        given = {}
        for number in sorted(programs, reverse=True):
            given = programs[number].run(Action(number, ActionKind.BACKWARD, 0), given)
        return programs[max(programs)].losses()[0]

    return step


def module_step(
    module: Callable[..., torch.Tensor],
    weights: nn.Module,
    inputs: Sequence[torch.Tensor],
    labels: torch.Tensor,
) -> Step:
    """Return a module's own forward, the mean cross-entropy, and autograd's backward."""

    def step() -> float:
        weights.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(module(*inputs).flatten(0, -2), labels.flatten())
        torch.autograd.backward(loss)
        return loss.item()

    return step


def why_no_compile() -> str:
    """Return why torch.compile cannot run here; empty text where it can."""
    names = [name for name in (os.environ.get("CXX"), "g++", "c++", "clang++") if name]
    if any(shutil.which(name) for name in names):
        return ""
    return f"no C++ compiler ({', '.join(names)}) is on the path, which TorchInductor needs"


def run_in_turn(steps: Mapping[str, Step], rounds: int) -> dict[str, list[float]]:
    """Return each engine's milliseconds by round; the first of a round changes."""
    names = list(steps)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            begin_s = time.perf_counter()
            steps[name]()
            found[name].append((time.perf_counter() - begin_s) * 1000)
    return found


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return order statistics between which the median lies with at least this probability."""
    ordered, count = sorted(values), len(values)
    skipped, outside = 0, 0.0
    while skipped < count // 2:
        outside += 2 * math.comb(count, skipped) / 2**count
        if outside > 1 - confidence:
            break
        skipped += 1
    skipped = max(0, skipped - 1)
    return ordered[skipped], ordered[count - 1 - skipped]


def report(
    plan: TunedPlan, times: Mapping[str, Sequence[float]], notes: Sequence[str], load: Sequence[float]
) -> str:
    """Return the dated report."""
    lines = [
        f"# A training step of {plan.model}: compiled stages, torch.compile and torch eager",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {processor()}, {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}, load average "
        f"{min(load):.1f} to {max(load):.1f}, niceness {os.nice(0)}.",
        "",
        f"One micro-batch forward and backward in one process, {plan.num_threads} thread, "
        f"{len(plan.stages)} stages one after another; {len(times[OURS])} rounds in turn.",
        "",
        "| engine | median (ms) | range | compiled stages over it | 95 % interval of that |",
        "|---|--:|---|--:|---|",
    ]
    for name, values in times.items():
        ratios = [mine / theirs for mine, theirs in zip(times[OURS], values, strict=True)]
        low, high = median_interval(ratios)
        shown = "" if name == OURS else f"{statistics.median(ratios):.3f}"
        interval = "" if name == OURS else f"{low:.3f} to {high:.3f}"
        lines.append(
            f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} to {max(values):.1f} "
            f"| {shown} | {interval} |"
        )
    return "\n".join([*lines, "", *notes, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    plan = load_plan(arguments.plan)
    torch.set_num_threads(plan.num_threads)
    model = load_planned_model(ProgramSpec(plan=plan, trust_model=True))
    module, _ = find_function(plan.model)()
    module.eval()  # as the plan was made: nothing is dropped
    drawn = draw_inputs(model, 0, 0)
    *inputs, labels = (drawn[spec.name] for spec in model.inputs)
    steps = {OURS: stages_step(plan)}
    reason = why_no_compile()
    notes = [f"torch.compile was left out: {reason}."] if reason else []
    if not reason:
        steps[COMPILED] = module_step(torch.compile(module), module, inputs, labels)
    steps[EAGER] = module_step(module, module, inputs, labels)
    load = [os.getloadavg()[0]]
    losses = {}
    for name, step in steps.items():
        for _ in range(2):  # compiles, and touches memory
            losses[name] = step()
    error = max(abs(loss / losses[EAGER] - 1) for loss in losses.values())
    if not error <= LARGEST_LOSS_ERROR:
        sys.exit(f"the engines do not compute the same loss: {losses}")
    notes.append(f"Losses differ by at most {error:.1e}, relative.")
    times = run_in_turn(steps, arguments.rounds)
    load.append(os.getloadavg()[0])
    text = report(plan, times, notes, load)
    if arguments.report is not None:
        arguments.report.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
