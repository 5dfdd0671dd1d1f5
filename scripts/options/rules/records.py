"""Rules of the commands of `records`, and of models that are trained on them."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.options.rules.measuring import BATCH, MEASURING, THREADS
from scripts.options.rules.rule import CommandLine, Condition, Rule, given, valued

_READ_NO_TEXT = ("mlp", "resnet", "mobilenet")


def _read_no_text(line: CommandLine) -> bool:
    networks = line.values["--networks"]
    names = [name.strip() for name in str(networks).split(",")] if networks is not None else []
    return bool(names) and all(name.startswith(_READ_NO_TEXT) for name in names)


COLLECT: Mapping[str, tuple[Rule, ...]] = {
    **MEASURING,
    "--lengths": (
        Rule(
            excludes=(Condition("--networks that read no text", _read_no_text),),
            why="no network takes tokens",
            remedy="add a network such as gpt2:tiny",
        ),
    ),
}

_ALL_WORKLOADS = Rule(
    needs=(Condition("MODEL", lambda line: line.values["model"] is not None),),
    why="the records of all workloads are looked through",
    remedy="name a model",
)
BEST: Mapping[str, tuple[Rule, ...]] = {
    "--train": (_ALL_WORKLOADS,),
    "--infer": (_ALL_WORKLOADS,),
    "--batch": (_ALL_WORKLOADS, *BATCH),
    "--shape": (_ALL_WORKLOADS,),
    "--value": (_ALL_WORKLOADS,),
    "--threads": (
        THREADS,
        Rule(
            excludes=(valued("--match", "any"),),
            why="that takes records of any number of threads",
            remedy="choose --match exact or compatible",
        ),
    ),
}
EXPORT: Mapping[str, tuple[Rule, ...]] = {
    "--skip-damaged": (
        Rule(
            excludes=given("--metaschedule"),
            why="a database for TVM is written of sound records alone",
            remedy="export JSON Lines",
        ),
    ),
}
IMPORT: Mapping[str, tuple[Rule, ...]] = {
    "--neusight": (Rule(excludes=given("--aiconfigurator"), why="a folder is read as one kind of tables"),),
}
_NO_RECORDS = Rule(excludes=given("--aiconfigurator"), why="that model is trained on tables, not on records")
TRAIN: Mapping[str, tuple[Rule, ...]] = {
    "--records": (_NO_RECORDS,),
    "--gpu": (_NO_RECORDS,),
}
