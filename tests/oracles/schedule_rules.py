"""Which rules a schedule breaks, each from its definition, step by step and pair by pair: an oracle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import combinations

from tessel.placement import Block
from tessel.schedule.schedule import Schedule, Start

RULES = {
    "number of micro-batches": r"^it has -?\d+ micro-batches, but",
    "number of limits": r"^it has \d+ memory limits for",
    "size of limits": r"^it has a memory limit beyond",
    "number of starts": r"^it has \d+ starts, and",
    "known blocks": r"which the placement does not have$",
    "known micro-batches": r"which does not exist$",
    "first step": r", before 0$",
    "last step": r"starts after step \d+$",
    "starts once": r"starts \d+ times$",
    "starts": r"never starts$",
    "one option": r"which is not exactly one option$",
    "one at a time": r"overlap on device",
    "edges": r"but \S+ ends at \d+( and its lag is \d+)?$",
    "peak": r"^it says peak_memory",
    "limits": r"^device \d+ holds -?\d+ units, its limit is",
    "makespan": r"^it says makespan",
    "lower bound": r"^it says lower_bound",
    "bubble ratio": r"^it says bubble_ratio",
    "pairs of classes": r"^pairs run together, and its micro-batches differ$",
    "blocks of a pair": r"^a pair is of .* and not both of them start$",
    "kinds of a pair": r"are no forward and joint backward of one device$",
    "pairs once": r"is in \d+ pairs$",
    "pairs start together": r" run together, and start at \d+ and \d+$",
    "size of the batch": r"^it has \d+ micro-batches, and its batch \d+$",
    "figures of the batch": r"^its batch has not one span for each block",
    "repetend's figures": r"^its repetend runs from .* which cannot be$",
    "repetition": r"^its repetend does not repeat",
    "starts in a period": r"in the first period of the repetend",
}
"""By rule of `tessel.validation`, what its line says."""


def named_rules(violations: Iterable[str]) -> set[str]:
    """Return the rules that these lines name; fails where a line names none, or two."""
    found = set()
    for line in violations:
        (rule,) = [rule for rule, pattern in RULES.items() if re.search(pattern, line)]
        found.add(rule)
    return found


def peaks(schedule: Schedule) -> tuple[int, ...]:
    """Return the most units held after any step, and at least none, by device."""
    runs = [(start.start, schedule.placement.block(start.block)) for start in schedule.starts]
    return tuple(
        max(
            sum(block.memory for start, block in runs if start <= step and device in block.devices)
            for step in (-1, *(start for start, _ in runs))
        )
        for device in range(schedule.placement.devices)
    )


def makespan(schedule: Schedule) -> int:
    """Return when the last block ends."""
    return max(
        (start.start + schedule.placement.block(start.block).span for start in schedule.starts), default=0
    )


def bubble_ratio(schedule: Schedule) -> float:
    """Return the share of steps in which a device runs no block, if no two overlap."""
    steps = makespan(schedule) * schedule.placement.devices
    blocks = [schedule.placement.block(start.block) for start in schedule.starts]
    return 1 - sum(block.span for block in blocks for _ in block.devices) / steps if steps else 0.0


def broken_rules(schedule: Schedule) -> set[str]:
    """Return the rules that a schedule of known blocks and micro-batches, with its own figures, breaks."""
    placement = schedule.placement
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    fewest = len(placement.blocks) - len(optional) + len(placement.choices)
    if len(schedule.starts) < fewest * schedule.micro_batches:
        return {"number of starts"}
    return {*_of_starts(schedule), *_of_repetend(schedule)}


def _of_starts(schedule: Schedule) -> Iterator[str]:
    placement = schedule.placement
    runs = [(each, placement.block(each.block)) for each in schedule.starts]
    options = [set(option) for choice in placement.choices for option in choice.options]
    for micro_batch in range(schedule.micro_batches):
        names = [each.block for each in schedule.starts if each.micro_batch == micro_batch]
        if len(names) > len(set(names)):
            yield "starts once"
        if {block.name for block in placement.blocks} - set().union(*options) - set(names):
            yield "starts"
        for choice in placement.choices:
            of_choice = {name for option in choice.options for name in option}
            if sum(set(names) & of_choice == set(option) for option in choice.options) != 1:
                yield "one option"
        for edge in placement.edges:
            ends = [
                each.start + block.span
                for each, block in runs
                if (each.block, each.micro_batch) == (edge.source, micro_batch)
            ]
            begins = [
                each.start for each, _ in runs if (each.block, each.micro_batch) == (edge.target, micro_batch)
            ]
            if ends and begins and begins[-1] - ends[-1] < edge.lag:
                yield "edges"
    if any(_overlap(one, other) for one, other in combinations(runs, 2)):
        yield "one at a time"
    if schedule.memory is not None and any(
        p > limit for p, limit in zip(peaks(schedule), schedule.memory, strict=True)
    ):
        yield "limits"


def _overlap(one: tuple[Start, Block], other: tuple[Start, Block]) -> bool:
    (first, block), (second, other_block) = one, other
    if not set(block.devices) & set(other_block.devices):
        return False
    return first.start < second.start + other_block.span and second.start < first.start + block.span


def _of_repetend(schedule: Schedule) -> Iterator[str]:
    found = schedule.repetend
    if found is None:
        return
    if (
        min(found.period, found.micro_batches) < 1
        or found.lower_bound > found.period
        or found.start < 0
        or found.end - found.start < found.period
        or found.end > schedule.makespan
    ):
        yield "repetend's figures"
        return
    window = range(found.start, found.end)
    starts = {(each.block, each.micro_batch, each.start) for each in schedule.starts}
    for name, micro_batch, start in starts:
        for sign in (-1, 1):
            moved = start + sign * found.period
            copy = (name, micro_batch + sign * found.micro_batches, moved)
            if start in window and moved in window and copy not in starts:
                yield "repetition"
    optional = {name for choice in schedule.placement.choices for option in choice.options for name in option}
    for block in schedule.placement.blocks:
        period = range(found.start, found.start + found.period)
        count = sum(name == block.name and start in period for name, _, start in starts)
        if block.name not in optional and count != found.micro_batches:
            yield "starts in a period"
