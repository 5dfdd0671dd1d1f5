"""Rules of `export`."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.options.rules.rule import Rule, free, given, valued

PLAN_EXPORT: Mapping[str, tuple[Rule, ...]] = {
    **free("--to", "--out"),
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
