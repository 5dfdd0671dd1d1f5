"""Rules of `check`: orders and layouts of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scripts.options.rules.rule import CommandLine, Condition, Rule, given


def _checks(*kinds: str) -> Callable[[CommandLine], bool]:
    def holds(line: CommandLine) -> bool:
        from tessel.checking.file_kinds import kind_of_file

        # What cannot be read, the command says better.
        if line.values["file"] is None:
            return True
        return kind_of_file(str(line.values["file"])) in (*kinds, "unreadable")

    return holds


_NO_TRACE = Rule(excludes=given("--trace"), why="a trace says itself what ran, and how long that took")
_OF_LAYOUT = Rule(
    needs=(Condition("a layout of Megatron", _checks("layout")),), why="the file says it itself"
)
_PRICES = Rule(needs=given("--profile"), why="nothing is priced without a profile", remedy="add --profile")
CHECK: Mapping[str, tuple[Rule, ...]] = {
    "--trace": (
        Rule(
            excludes=(Condition("a file", lambda line: line.values["file"] is not None),),
            why="one of the two is checked",
        ),
    ),
    "--devices": (
        _NO_TRACE,
        Rule(
            needs=(Condition("a layout or a table of Megatron", _checks("layout", "table")),),
            why="the file says it itself",
        ),
    ),
    "--micro-batches": (_NO_TRACE, _OF_LAYOUT),
    "--group-size": (_NO_TRACE, _OF_LAYOUT),
    "--profile": (
        _NO_TRACE,
        Rule(
            needs=(Condition("orders or a layout of Megatron", _checks("layout", "orders", "table")),),
            why="a schedule or a plan says itself how long its blocks take",
        ),
    ),
    "--cuts": (
        _NO_TRACE,
        _PRICES,
        Rule(
            needs=(Condition("a CSV of orders", _checks("orders", "table")),), why="the file says it itself"
        ),
    ),
    "--memory": (_NO_TRACE,),
    **dict.fromkeys(
        ("--micro-batch", "--data-parallel", "--tensor-parallel", "--context-parallel"), (_NO_TRACE, _PRICES)
    ),
    "--expert-parallel": (
        _NO_TRACE,
        _PRICES,
        Rule(
            needs=given("--data-parallel", "--context-parallel"),
            why="one replica of a part has all experts",
            remedy="add --data-parallel",
        ),
    ),
    "--overlap-factor": (
        _NO_TRACE,
        Rule(
            needs=(Condition("a CSV of orders", _checks("orders")),), why="no other file says what overlaps"
        ),
    ),
    **dict.fromkeys(("--link", "--hop-us", "--optimizer"), (_NO_TRACE, _PRICES)),
    "--save": (_NO_TRACE,),
}
