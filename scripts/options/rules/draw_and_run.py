"""Rules of `draw`, `run` and `export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.options.rules.rule import PICTURES, CommandLine, Condition, Rule, given, valued, written_as

_OF_PICTURES = Rule(
    needs=(written_as("--out", *PICTURES),),
    why="only pictures are drawn so, and a page or report always compares",
    remedy="add --out with one of these",
)
_NOT_GAINS = Rule(excludes=given("--gains"), why="a chart of gains has a bar a schedule and no timeline")
DRAW: Mapping[str, tuple[Rule, ...]] = {
    "--compare": (_OF_PICTURES, _NOT_GAINS),
    "--critical-path": (_OF_PICTURES, _NOT_GAINS),
    **dict.fromkeys(("--gains", "--style", "--width"), (_OF_PICTURES,)),
    "--serve": (
        Rule(
            excludes=given("--out", "--json"),
            why="a page is served until Ctrl-C, and no file is written",
            remedy="leave one out",
        ),
    ),
    "--port": (Rule(needs=given("--serve"), why="nothing is served", remedy="add --serve"),),
    "--schedules": (
        Rule(
            needs=(*given("--compare", "--gains"), written_as("--out", ".html", ".md")),
            why="nothing is compared",
            remedy="add --compare to a picture",
        ),
    ),
}


def _runs_model(line: CommandLine) -> bool:
    """Whether the stages are those of a plan's model, whose weights and inputs are drawn at random."""
    from tessel.documents import DocumentKind, detect_kind
    from tessel.errors import DocumentError

    stages = line.values["--stages"]
    try:
        is_plan = detect_kind(Path(str(line.values["plan"]))) is DocumentKind.PLAN
    except DocumentError:
        return True  # which the command says better
    return stages in ("compiled", "torch") or (stages is None and is_plan)


_ONLY_WRITES = Rule(
    excludes=given("--csv"), why="that writes the orders and runs nothing", remedy="leave --csv out"
)
_OF_PLAN_S_MODEL = Condition("the stages of a plan's model", _runs_model)
RUN: Mapping[str, tuple[Rule, ...]] = {
    "--stages": (_ONLY_WRITES,),
    "--step": (_ONLY_WRITES,),
    "--device": (_ONLY_WRITES,),
    "--repeats": (_ONLY_WRITES,),
    "--timeout": (_ONLY_WRITES,),
    "--trace": (_ONLY_WRITES,),
    "--picture": (_ONLY_WRITES,),
    "--overheads": (_ONLY_WRITES,),
    "--model": (_ONLY_WRITES,),
    "--trust-model": (
        _ONLY_WRITES,
        Rule(excludes=given("--model"), why="naming the model trusts it already"),
        Rule(needs=(_OF_PLAN_S_MODEL,), why="no code is run that a plan names"),
    ),
    "--records": (
        _ONLY_WRITES,
        Rule(
            excludes=(valued("--overheads", "none"),),
            why="only overheads are looked up there",
            remedy="choose --overheads known or anew",
        ),
    ),
    "--seed": (
        _ONLY_WRITES,
        Rule(
            needs=(_OF_PLAN_S_MODEL,),
            why="only their weights and inputs are drawn at random",
        ),
    ),
}

PLAN_EXPORT: Mapping[str, tuple[Rule, ...]] = {
    "--roles": (
        Rule(
            needs=(valued("--to", "torchtitan", "megatron", "primus"),),
            why="other frameworks are told no roles",
        ),
        Rule(excludes=given("--keep-names"), why="the rows' names stay what they are"),
    ),
    "--keep-names": (
        Rule(needs=(valued("--to", "torchtitan"),), why="other frameworks are told no modules by name"),
    ),
    "--version": (Rule(needs=(valued("--to", "torchtitan"),), why="other frameworks have one kind of file"),),
}
