"""What Tessel's own loader and runtime do with a file, as an oracle: its format and rules, not its code.

A block needs a span of at least 1, a type in lower case and a free place; the repetend is two steps. The
runtime repeats what starts between them, one micro-batch at a time, after as many steps as the busiest device
takes for it, and shifts what starts later.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict


class Entry(TypedDict):
    """A block in the file."""

    mid: int
    span: int
    memory: float
    btype: str
    gid: int
    step: int
    device: list[int]


def read(path: Path) -> tuple[list[Entry], tuple[int, int]]:
    """Return blocks and repetend; fails where Tessel does."""
    document = json.loads(path.read_text())
    begin, end = document["repetend"]
    blocks: list[Entry] = document["blocks"]
    check(document["ndevs"], blocks)
    return blocks, (begin, end)


def check(num_devices: int, blocks: list[Entry]) -> None:
    """Fail where Tessel refuses to add a block."""
    busy: set[tuple[int, int]] = set()
    for block in blocks:
        assert block["span"] > 0
        assert block["btype"] in ("forward", "backward")
        places = {
            (device, step)
            for device in block["device"]
            for step in range(block["step"], block["step"] + block["span"])
        }
        assert all(0 <= device < num_devices for device, _ in places)
        assert not places & busy
        busy |= places


def unroll(blocks: list[Entry], repetend: tuple[int, int], more: int) -> list[Entry]:
    """Return the blocks with so many micro-batches more, as Tessel's runtime unrolls them."""
    begin, end = repetend
    inside = [block for block in blocks if begin <= block["step"] < end]
    spans = []
    for device in {device for block in inside for device in block["device"]}:
        own = [block for block in inside if device in block["device"]]
        spans.append(max(b["step"] + b["span"] for b in own) - min(b["step"] for b in own))
    period = max(spans)

    def later(block: Entry, times: int) -> Entry:
        return {**block, "mid": block["mid"] + times, "step": block["step"] + times * period}

    return [
        *(block for block in blocks if block["step"] < begin),
        *(later(block, times) for times in range(more + 1) for block in inside),
        *(later(block, more) for block in blocks if block["step"] >= end),
    ]
