"""Rules of options: for every option of every command, when it has no effect.

An option that is accepted and ignored misleads, so it is refused, in one line that says why and what to do.
`OPTION_RULES` is the one table of this: `problem_of` checks a command line against it, `help_of` turns it
into the sentence that the help shows. An option without rules takes effect wherever it is given, and is not
in the table, nor are values that are wrong by themselves, which each command checks. That no two options are
accepted of which one has no effect is tried in tests/scripts/options/test_option_pairs.py, single rules in
tests/scripts/options/test_option_rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from scripts.options.rules.check import CHECK
from scripts.options.rules.draw_and_run import DRAW, PLAN_EXPORT, RUN
from scripts.options.rules.language import (
    LANGUAGE_COLLECT,
    LANGUAGE_EVALUATE,
    LANGUAGE_TRAIN,
)
from scripts.options.rules.measuring import THREADS
from scripts.options.rules.plan import PLAN
from scripts.options.rules.records import BEST, COLLECT, EXPORT, IMPORT, TRAIN
from scripts.options.rules.rule import CommandLine, Rule, either
from scripts.options.rules.schedule import CHUNK, SCHEDULE
from scripts.options.rules.tuning import COMPILE, PARTITION, STAGES, TUNE

OPTION_RULES: Mapping[str, Mapping[str, tuple[Rule, ...]]] = {
    "tune": TUNE,
    "partition": PARTITION,
    "compile": COMPILE,
    "stages": STAGES,
    "schedule": SCHEDULE,
    "chunk": CHUNK,
    "check": CHECK,
    "export": PLAN_EXPORT,
    "plan": PLAN,
    "draw": DRAW,
    "run": RUN,
    "fleet worker": {"--threads": (THREADS,)},
    "fleet server": {"--threads": (THREADS,)},
    "records best": BEST,
    "records export": EXPORT,
    "records import": IMPORT,
    "records collect": COLLECT,
    "cost-model train": TRAIN,
    "language collect": LANGUAGE_COLLECT,
    "language train": LANGUAGE_TRAIN,
    "language evaluate": LANGUAGE_EVALUATE,
}
"""Of each command with rules, the rules of each option that has any."""


def problem_of(command: str, line: CommandLine) -> str | None:
    """Return why one of the options that were given has no effect, in one sentence; None where all have.

    Args:
        command: its words after `tessel`, such as `records export`.
        line: what it was given.
    """
    for option, rules in OPTION_RULES.get(command, {}).items():
        if option not in line.given:
            continue
        for rule in rules:
            problem = rule.problem(option, line)
            if problem is not None:
                return problem
    return None


def help_of(command: str, option: str) -> str:
    """Return what the help adds to an option's description; empty where it takes effect everywhere."""
    rules = OPTION_RULES.get(command, {}).get(option, ())
    excluded = tuple(condition for rule in rules for condition in rule.excludes)
    sentences = [f"needs {either(rule.needs)}" for rule in rules if rule.needs]
    sentences += [f"not with {either(excluded)}"] if excluded else []
    return f"({'; '.join(sentences)})" if sentences else ""
