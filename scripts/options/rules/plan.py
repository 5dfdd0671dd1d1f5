"""Rules of `plan`: a model, whose layers are measured, or a profile of layers."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.options.rules.measuring import BATCH, MEASURING, PREDICTED
from scripts.options.rules.rule import CommandLine, Condition, Rule, given, valued


def _is_measured(line: CommandLine) -> bool:
    """Whether a plan is made for a model, whose layers are measured."""
    from tessel.jobs.sources import is_model

    return is_model(str(line.values["model"]))


_OF_MEASURED = Condition("a model", _is_measured)


def _is_config(line: CommandLine) -> bool:
    """Whether a plan is made for a model that a config describes."""
    from tessel.jobs.described_model import names_config

    return names_config(str(line.values["model"]))


_OF_CONFIG = Condition("a config.json", _is_config)
_CONFIG_ALONE = Rule(needs=(_OF_CONFIG,), why="the source has times already", remedy="name a config.json")
_READ_ALONE = Rule(
    excludes=(_OF_CONFIG,), why="a config has one model, of all its layers", remedy="give a profile"
)
_MODEL_ALONE = Rule(needs=(_OF_MEASURED,), why="a profile is measured already", remedy="name a model")
_PROFILE_ALONE = Rule(
    excludes=(_OF_MEASURED,), why="a model's layers are measured as they are", remedy="give a profile"
)
_HAS_PICTURES = Rule(
    needs=given("--pictures"), why="text alone is planned", remedy="say how many pictures a sequence has"
)
_HAS_HOPS = Rule(excludes=(valued("--devices", 1),), why="one device has no links")
PLAN: Mapping[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("--target", "--records", "--backends", "--jobs"), (_MODEL_ALONE,)),
    **{option: (_MODEL_ALONE, *rules) for option, rules in MEASURING.items()},
    "--price": (
        Rule(
            needs=(_OF_MEASURED, _OF_CONFIG),
            why="a profile is measured already",
            remedy="name a model or a config.json",
        ),
    ),
    "--cost-model": (_MODEL_ALONE, PREDICTED),
    "--batch": (
        Rule(excludes=(_OF_CONFIG,), why="a config's sequences have one length", remedy="give a profile"),
        Rule(
            excludes=(
                Condition(
                    "a profile and one number",
                    lambda line: not _is_measured(line) and isinstance(line.values["--batch"], int),
                ),
            ),
            why="a profile's samples are measured already",
            remedy="say what there is of each class, --batch 4096x6,8192x2",
        ),
        *BATCH,
    ),
    "--robust": (
        Rule(
            needs=(
                *given("--spread"),
                Condition("a table", lambda line: not (_is_measured(line) or _is_config(line))),
            ),
            why="durations do not vary",
            remedy="say how they do, lognormal:0.1",
        ),
    ),
    "--shape": (_MODEL_ALONE,),
    "--value": (_MODEL_ALONE,),
    "--memory": (
        Rule(
            excludes=given("--device-memory"),
            why="that gives the memory of every device",
            remedy="leave --device-memory out",
        ),
    ),
    **dict.fromkeys(("--gpu", "--seq", "--dtype", "--mfu"), (_CONFIG_ALONE,)),
    "--efficiency": (
        _CONFIG_ALONE,
        Rule(excludes=given("--mfu"), why="that stands for all shares", remedy="leave --mfu out"),
    ),
    **dict.fromkeys(
        ("--imbalance", "--recompute", "--overlap-tensor", "--dispatch", "--pictures"), (_CONFIG_ALONE,)
    ),
    "--picture-tokens": (_CONFIG_ALONE, _HAS_PICTURES),
    "--frozen-tower": (_CONFIG_ALONE, _HAS_PICTURES),
    "--tower": (_PROFILE_ALONE,),
    **dict.fromkeys(("--link", "--hop-us", "--collective-link"), (_HAS_HOPS,)),
    "--node-devices": (
        _HAS_HOPS,
        Rule(needs=given("--node-link", "--gpu"), why="all links are alike", remedy="add --node-link"),
    ),
    "--node-link": (
        _HAS_HOPS,
        Rule(
            needs=given("--node-devices", "--gpu"),
            why="it is not known which devices share a node",
            remedy="add --node-devices",
        ),
    ),
    "--sharding": (Rule(excludes=(valued("--devices", 1),), why="one device has no replicas"),),
    "--host-link": (
        Rule(needs=given("--offload"), why="nothing goes to the hosts", remedy="add --offload optimizer"),
    ),
    "--micro-batches": (
        Rule(
            excludes=given("--global-batch"),
            why="that says how many samples a step has",
            remedy="leave --global-batch out",
        ),
    ),
    **dict.fromkeys(("--tensor-parallel", "--context-parallel", "--expert-parallel"), (_PROFILE_ALONE,)),
    "--micro-batch": (
        Rule(
            excludes=(_OF_MEASURED,),
            why="its layers are measured at one size",
            remedy="give the size as --batch",
        ),
    ),
    "--format": (_PROFILE_ALONE, _READ_ALONE),
    "--num-layers": (_PROFILE_ALONE, _READ_ALONE),
}
