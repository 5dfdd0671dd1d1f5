"""Rules of `check`: orders and layouts of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scripts.options.rules.rule import CommandLine, Condition, Rule, given


def _checks(*kinds: str) -> Callable[[CommandLine], bool]:
    def holds(line: CommandLine) -> bool:
        from tessel.checking.file_kinds import kind_of_file

        # What cannot be read, the command says better.
        return kind_of_file(str(line.values["file"])) in (*kinds, "unreadable")

    return holds


_OF_LAYOUT = Rule(
    needs=(Condition("a layout of Megatron", _checks("layout")),), why="the file says it itself"
)
_PRICES = Rule(needs=given("--profile"), why="nothing is priced without a profile", remedy="add --profile")
CHECK: Mapping[str, tuple[Rule, ...]] = {
    "--devices": (
        Rule(
            needs=(Condition("a layout or a table of Megatron", _checks("layout", "table")),),
            why="the file says it itself",
        ),
    ),
    "--micro-batches": (_OF_LAYOUT,),
    "--group-size": (_OF_LAYOUT,),
    "--profile": (
        Rule(
            needs=(Condition("orders or a layout of Megatron", _checks("layout", "orders", "table")),),
            why="a schedule or a plan says itself how long its blocks take",
        ),
    ),
    "--cuts": (
        _PRICES,
        Rule(
            needs=(Condition("a CSV of orders", _checks("orders", "table")),), why="the file says it itself"
        ),
    ),
    "--memory": (),
    "--micro-batch": (_PRICES,),
    "--data-parallel": (_PRICES,),
    "--tensor-parallel": (_PRICES,),
    "--context-parallel": (_PRICES,),
    "--expert-parallel": (
        _PRICES,
        Rule(
            needs=given("--data-parallel", "--context-parallel"),
            why="one replica of a part has all experts",
            remedy="add --data-parallel",
        ),
    ),
    "--overlap-factor": (
        Rule(
            needs=(Condition("a CSV of orders", _checks("orders")),), why="no other file says what overlaps"
        ),
    ),
    "--link": (_PRICES,),
    "--hop-us": (_PRICES,),
    "--optimizer": (_PRICES,),
    "--work": (),
    "--time-limit": (),
    "--save": (),
    "--json": (),
}
