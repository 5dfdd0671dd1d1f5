"""Rules shared by the commands that take a model and measure its programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.options.rules.rule import CommandLine, Condition, Rule, given, valued


def _is_of_zoo(model: object) -> bool:
    """Whether a name is one of the zoo, or a misspelt one, which the loader answers."""
    name = str(model)
    return Path(name).suffix not in (".onnx", ".pt2") and not _names_function(name)


def _names_function(model: str) -> bool:
    from scripts.options.completion import MODELS

    location, colon, _ = model.partition(":")
    return bool(colon) and location not in MODELS


def is_gpu(line: CommandLine) -> bool:
    """Say whether the target is a GPU."""
    target = str(line.values["--target"])
    return target == "cuda" or target.startswith("nvidia/")


def _tunes_nothing(line: CommandLine) -> bool:
    backends = line.values.get("--backends")
    names = [name.strip() for name in str(backends).split(",")] if backends is not None else []
    return bool(names) and not any(name.partition("?")[0] == "metaschedule" for name in names)


NO_TUNER = Rule(
    excludes=(Condition("--backends that lack metaschedule", _tunes_nothing),),
    why="no other backend tunes its kernels",
    remedy="add metaschedule to --backends",
)
THREADS = Rule(
    excludes=(Condition("a GPU for --target", is_gpu),),
    why="a GPU's kernels are driven by one thread",
)
BATCH = (
    Rule(
        excludes=(
            Condition("a model that is not from the zoo", lambda line: not _is_of_zoo(line.values["model"])),
        ),
        why="only models of the zoo know which extent is the batch",
        remedy="give the shapes of the inputs with --shape NAME=EXTENT,…",
    ),
    Rule(
        excludes=given("--shape"),
        why="the shapes of inputs hold the batch already",
        remedy="write it into every --shape",
    ),
)
ACTIVE = Rule(
    needs=(valued("--price", "active"),),
    why="only active pricing chooses what to measure",
    remedy="add --price active",
)
MEASURED = Rule(
    excludes=(valued("--price", "model"),),
    why="no program is measured",
    remedy="choose --price measured or active",
)
JOBS = Rule(
    excludes=(valued("--price", "model"),),
    why="no candidate is built",
    remedy="choose --price measured or active",
)

HERE = Rule(
    excludes=given("--fleet"),
    why="each machine of a fleet builds and measures one program at a time, with what its backends bring",
)

PREDICTED = Rule(
    needs=(valued("--price", "active", "model"),),
    why="nothing is predicted where every candidate is measured",
    remedy="add --price active or --price model",
)

MEASURING: Mapping[str, tuple[Rule, ...]] = {
    "--trials": (NO_TUNER,),
    "--threads": (THREADS,),
}
