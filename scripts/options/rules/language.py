"""Rules of the commands of `language`."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.options.rules.rule import Condition, Rule, given

LANGUAGE_COLLECT: Mapping[str, tuple[Rule, ...]] = {
    "--count": (Rule(excludes=given("--kernels"), why="no kernel is drawn where they are named"),),
    "--batch": (
        Rule(
            excludes=(Condition("--rounds 0", lambda line: line.values.get("--rounds") == 0),),
            why="no round is guided",
        ),
    ),
}
_RESUMES = Rule(
    excludes=given("--resume"),
    why="the model in --out is trained as it is",
    remedy="leave --resume out",
)
LANGUAGE_TRAIN: Mapping[str, tuple[Rule, ...]] = {
    "--batch": (Rule(needs=given("--rounds"), why="no round measures anything", remedy="add --rounds"),),
    "--layers": (_RESUMES,),
    "--width": (_RESUMES,),
}
LANGUAGE_EVALUATE: Mapping[str, tuple[Rule, ...]] = {
    "--model": (
        Rule(
            excludes=(
                Condition(
                    "--proposers without language",
                    lambda line: "language" not in str(line.values.get("--proposers", "language")).split(","),
                ),
            ),
            why="the language model does not propose",
        ),
    ),
}
