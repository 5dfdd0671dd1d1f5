"""What compiling buys: a plan's stages as TVM compiles them, and as torch runs the model's own modules.

    python -m benchmarks.compiled_stages PLAN [--rounds 3] [--repeats 5] [--report FILE.md]

The plan is of a `module:function` (`tessel tune examples/own_model.py:build --devices 2 --train --out OUT`).
Compiled and torch stages run the plan's schedule on real ranks, in turn, so many rounds; an action's time is
the median over all steps. Times are of a rank's own work; a rank that waits is not counted. Equal numbers are
checked elsewhere (`tessel run`).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.simulator.provenance import commit, processor
from tessel.engine.actions import actions_from_csv, actions_of, rank_by_stage
from tessel.engine.job import JobSpec, RunSpec, actions_as_lines
from tessel.engine.ranks.launch import launch
from tessel.loading import load_plan
from tessel.tuned_plan import TunedPlan
from tuner.plan import ModelPlan

PROVIDERS = {
    "compiled": "tuner.programs.compiled_stages:provide_programs",
    "torch": "tuner.programs.torch_programs:provide_programs",
}
Key = tuple[int, str]
"""Stage and letter of an action."""


def measure_round(plan: TunedPlan, provider: str, repeats: int) -> dict[Key, list[float]]:
    """Return milliseconds of every action of some steps, by stage and letter."""
    tuned = ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__})
    results = launch(
        JobSpec(
            num_ranks=plan.placement.devices,
            ranks_by_stage=rank_by_stage(plan.schedule),
            micro_batches=plan.schedule.micro_batches,
            provider=provider,
            provider_spec=msgspec.json.encode({"plan": tuned, "seed": 0}).decode(),
            runs=(RunSpec(name="searched", actions=actions_as_lines(actions_of(plan.schedule))),),
            repeats=repeats,
            num_threads=plan.num_threads,
            write_gradients=False,
        ),
        timeout_s=600,
    )
    times: dict[Key, list[float]] = defaultdict(list)
    for result in results:
        for step in result.events["searched"]:
            for event in step:
                ((action,),) = actions_from_csv(event.action)
                times[action.stage, action.kind.value].append((event.end_s - event.start_s) * 1000)
    return times


def table(times: dict[str, list[dict[Key, list[float]]]]) -> list[str]:
    """Return a Markdown table: medians over all rounds, the ratio, and its spread over rounds."""
    lines = [
        "| stage | action | compiled (ms) | torch (ms) | compiled/torch | by round |",
        "|--:|---|--:|--:|--:|---|",
    ]
    for key in sorted(times["torch"][0]):
        compiled, torch = (
            [statistics.median(found[key]) for found in times[name]] for name in ("compiled", "torch")
        )
        ratios = [mine / theirs for mine, theirs in zip(compiled, torch, strict=True)]
        lines.append(
            f"| {key[0]} | {key[1]} | {statistics.median(compiled):.2f} | {statistics.median(torch):.2f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    plan = load_plan(arguments.plan)
    times: dict[str, list[dict[Key, list[float]]]] = defaultdict(list)
    load = [os.getloadavg()[0]]
    for _ in range(arguments.rounds):
        for name, provider in PROVIDERS.items():
            times[name].append(measure_round(plan, provider, arguments.repeats))
            load.append(os.getloadavg()[0])
    text = "\n".join(
        [
            f"# Stages of {plan.model}: compiled, and as torch runs them",
            "",
            f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {processor()}, {os.cpu_count()} cores, "
            f"{platform.system()} {platform.release()}, Python {platform.python_version()}, load average "
            f"{min(load):.1f} to {max(load):.1f}, niceness {os.nice(0)}.",
            "",
            f"{plan.placement.devices} ranks, {plan.num_threads} thread each, "
            f"{plan.schedule.micro_batches} micro-batches; {arguments.rounds} rounds of {arguments.repeats} "
            "counted steps, compiled and torch in turn. Medians; F forward, B backward, I and W its halves.",
            "",
            *table(times),
            "",
        ]
    )
    if arguments.report is not None:
        arguments.report.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
