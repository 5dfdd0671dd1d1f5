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
    NO_TUNER,
    PREDICTED,
)
from scripts.options.rules.rule import Condition, Rule, given, valued

_TRIALS = Condition(
    "--trials above 0",
    lambda line: isinstance(trials := line.values["--trials"], int) and trials > 0,
)
_TUNING: Mapping[str, tuple[Rule, ...]] = {
    **MEASURING,
    "--fleet": (MEASURED,),
    "--jobs": (JOBS, HERE),
    "--trials": (NO_TUNER,),
    "--budget": (ACTIVE,),
    "--regret": (ACTIVE,),
    "--cost-model": (PREDICTED,),
    "--tvm-database": (NO_TUNER, HERE),
    "--proposer": (
        NO_TUNER,
        Rule(needs=(_TRIALS,), why="it proposes trials, and there is none", remedy="add --trials"),
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
    "--batch": BATCH,
}

TUNE: Mapping[str, tuple[Rule, ...]] = {
    **_TUNING,
    **_MODEL,
    "--optimizer": (
        Rule(excludes=given("--infer"), why="inference keeps no optimizer state", remedy="leave --infer out"),
    ),
    "--sharding": (
        Rule(excludes=given("--infer"), why="inference keeps no optimizer state", remedy="leave --infer out"),
        Rule(excludes=(valued("--devices", 1),), why="one device has no copies of the pipeline"),
    ),
    "--hop-us": (Rule(excludes=(valued("--devices", 1),), why="one device has no hops"),),
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
}
_OF_GRAPH_PICTURES = Rule(needs=given("--picture"), why="nothing is drawn", remedy="add --picture graph.svg")
PARTITION: Mapping[str, tuple[Rule, ...]] = {
    **_TUNING,
    **_MODEL,
    "--width": (_OF_GRAPH_PICTURES,),
    "--style": (_OF_GRAPH_PICTURES,),
    "--graph-level-search": (MEASURED,),
    "--coalesce": (MEASURED,),
}
_SEVERAL_SHAPES = Condition(
    "several shapes of an input",
    lambda line: (
        isinstance(shapes := line.values["--shape"], list)
        and len({each.partition("=")[0] for each in shapes}) < len(shapes)
    ),
)
COMPILE: Mapping[str, tuple[Rule, ...]] = {
    **_TUNING,
    "--pad": (
        Rule(
            needs=(_SEVERAL_SHAPES,),
            why="there is no larger shape to pad to",
            remedy="give --shape once for each shape",
        ),
    ),
    "--batch": BATCH,
    "--graph-level-search": (MEASURED,),
    "--coalesce": (MEASURED,),
}
STAGES: Mapping[str, tuple[Rule, ...]] = {
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
