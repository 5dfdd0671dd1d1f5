"""Rules of the commands of `language`."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.options.rules.rule import Condition, Rule, free, given

LANGUAGE_COLLECT: Mapping[str, tuple[Rule, ...]] = {
    **free(
        "--records",
        "--out",
        "--target",
        "--threads",
        "--kernels",
        "--random",
        "--rounds",
        "--seed",
    ),
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
    why="the model in --out is fine-tuned as it is",
    remedy="leave --resume out",
)
LANGUAGE_TRAIN: Mapping[str, tuple[Rule, ...]] = {
    **free(
        "--records",
        "--out",
        "--target",
        "--threads",
        "--fine-tuning-epochs",
        "--best",
        "--hold-out",
        "--learning-rate",
        "--resume",
        "--seed",
    ),
    "--families": (_RESUMES,),
    "--random": (_RESUMES,),
    "--samples": (_RESUMES,),
    "--epochs": (_RESUMES,),
    "--kernels": (
        Rule(
            needs=given("--trials"),
            why="the number of trials is not given",
            remedy="add --trials",
        ),
    ),
    "--trials": (
        Rule(needs=given("--kernels"), why="no kernel is named to measure", remedy="add --kernels"),
    ),
    "--layers": (_RESUMES,),
    "--width": (_RESUMES,),
}
LANGUAGE_GENERATE: Mapping[str, tuple[Rule, ...]] = {
    **free("--model", "--count", "--temperature", "--target", "--threads", "--measure", "--seed"),
    "--records": (
        Rule(needs=given("--measure"), why="only measured trials are kept", remedy="add --measure"),
    ),
}
