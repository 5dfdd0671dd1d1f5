"""Rules of `tune`, `partition`, `compile` and `stages`."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.options.rules.measuring import (
    ACTIVE,
    BATCH,
    HERE,
    JOBS,
    MEASURED,
    MEASURING,
    NO_TUNED_KERNEL,
    NO_TUNER,
    PREDICTED,
)
from scripts.options.rules.rule import Condition, Rule, free, given, valued

_TRIALS = Condition(
    "--trials above 0",
    lambda line: isinstance(trials := line.values["--trials"], int) and trials > 0,
)
_DEALT = given("--trial-budget")
_TRIAL_BUDGET = (
    NO_TUNED_KERNEL,
    MEASURED,
    Rule(excludes=given("--trials"), why="that gives every kernel trials of its own"),
    Rule(excludes=given("--fleet"), why="kernels of a model share trials on this machine alone"),
    Rule(
        excludes=(valued("--proposer", "evolutionary"),),
        why="evolution begins anew with every kernel",
        remedy="choose another --proposer",
    ),
)
_TUNING: Mapping[str, tuple[Rule, ...]] = {
    **free("--price", "--prune", "--match", "--assign"),
    **MEASURING,
    "--fleet": (MEASURED,),
    "--jobs": (JOBS, HERE),
    "--trials": (NO_TUNED_KERNEL,),
    "--budget": (ACTIVE,),
    "--regret": (ACTIVE,),
    "--cost-model": (PREDICTED,),
    "--tvm-database": (NO_TUNER, HERE),
    "--schedule-cost-model": (
        NO_TUNER,
        Rule(needs=(_TRIALS,), why="it orders trials, and there is none", remedy="add --trials"),
        Rule(
            excludes=(valued("--proposer", "draft", "language", "neighbour", "random"),),
            why="this proposer orders schedules itself",
            remedy="leave --schedule-cost-model out",
        ),
        MEASURED,
    ),
    "--proposer": (
        NO_TUNED_KERNEL,
        Rule(needs=(_TRIALS, *_DEALT), why="it proposes trials, and there is none", remedy="add --trials"),
        MEASURED,
    ),
    "--language-model": (
        Rule(
            needs=(valued("--proposer", "language"),),
            why="nobody else proposes with it",
            remedy="add --proposer language",
        ),
    ),
}
_MODEL: Mapping[str, tuple[Rule, ...]] = {
    **free("--train", "--infer", "--shape", "--value"),
    "--batch": BATCH,
}

TUNE: Mapping[str, tuple[Rule, ...]] = {
    **free("--devices", "--micro-batches", "--memory", "--out", "--cut", "--work", "--time-limit"),
    **_TUNING,
    **_MODEL,
    "--optimizer": (
        Rule(excludes=given("--infer"), why="inference keeps no optimizer state", remedy="leave --infer out"),
    ),
    "--hop-us": (Rule(excludes=(valued("--devices", 1),), why="one device has no hops"),),
    "--placement": (),
    "--no-recompute": (
        Rule(excludes=given("--infer"), why="inference keeps no activations", remedy="leave --infer out"),
        Rule(
            needs=given("--memory"),
            why="nothing is recomputed where memory has no limit",
            remedy="add --memory",
        ),
    ),
    "--link": (
        Rule(excludes=(valued("--devices", 1),), why="one device has no links"),
        Rule(
            needs=given("--hop-us"),
            why="a link has a bandwidth and a latency",
            remedy="add its latency with --hop-us",
        ),
    ),
    "--graph-level-search": (MEASURED,),
    "--trial-budget": _TRIAL_BUDGET,
}
_OF_GRAPH_PICTURES = Rule(needs=given("--picture"), why="nothing is drawn", remedy="add --picture graph.svg")
PARTITION: Mapping[str, tuple[Rule, ...]] = {
    **free("--picture", "--explain"),
    **_TUNING,
    **_MODEL,
    "--width": (_OF_GRAPH_PICTURES,),
    "--style": (_OF_GRAPH_PICTURES,),
    "--graph-level-search": (MEASURED,),
    "--coalesce": (MEASURED,),
    "--trial-budget": _TRIAL_BUDGET,
}
COMPILE: Mapping[str, tuple[Rule, ...]] = {
    **free("--out", "--shape", "--value"),
    **_TUNING,
    "--batch": BATCH,
    "--graph-level-search": (MEASURED,),
    "--coalesce": (MEASURED,),
    "--trial-budget": _TRIAL_BUDGET,
}
STAGES: Mapping[str, tuple[Rule, ...]] = {
    **free("--devices", "--save"),
    **_TUNING,
    **_MODEL,
    "--cut": (
        Rule(
            excludes=given("--devices"),
            why="that has the cuts found",
            remedy="give either --cut, once for each cut, or --devices, the number of stages",
        ),
    ),
}
