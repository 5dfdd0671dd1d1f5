"""A placement of one's own: two encoders that meet in one decoder, searched and compared with 1F1B.

Run it: `python examples/placement_of_ones_own.py`. It prints what was found and writes the placement to a
file that every command takes: `tessel schedule placement.json --micro-batches 16 --memory 6`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tessel.comparison import compare_schedules
from tessel.documents import save_document
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.search import SearchBudget, find_schedule

FORWARDS = {"image": ((0,), 2), "text": ((1,), 1), "fuse": ((0, 1), 1), "decode": ((2,), 3)}
"""Devices and span of each stage; `fuse` holds two devices at once."""

FLOW = (("image", "fuse"), ("text", "fuse"), ("fuse", "decode"))


def placement() -> Placement:
    """One micro-batch, forward along `FLOW` and back; a backward takes twice its forward."""
    forwards = [
        Block(name=f"f_{stage}", kind=BlockKind.FORWARD, devices=devices, span=span, memory=1)
        for stage, (devices, span) in FORWARDS.items()
    ]
    backwards = [
        Block(name=f"b_{stage}", kind=BlockKind.BACKWARD, devices=devices, span=2 * span, memory=-1)
        for stage, (devices, span) in FORWARDS.items()
    ]
    return Placement(
        devices=3,
        blocks=(*forwards, *backwards),
        edges=(
            *(Edge(f"f_{before}", f"f_{after}", lag=1) for before, after in FLOW),
            *(Edge(f"b_{after}", f"b_{before}", lag=1) for before, after in FLOW),
            *(Edge(f"f_{stage}", f"b_{stage}") for stage in FORWARDS),
        ),
    )


def main(path: str = "placement.json") -> None:
    own = placement()
    save_document(Path(path), own.to_json())
    searched = find_schedule(own, micro_batches=16, memory=6, budget=SearchBudget(2.0))
    for row in compare_schedules(searched).rows:
        fits = "" if row.fits else "  (more than the limit)"
        idle = f"{row.bubble_ratio:5.1%} idle"
        print(f"{row.schedule:12} {row.makespan:5} steps  {idle}  {row.peak_memory}{fits}")
    proof = "proven optimal" if searched.optimal else f"gap {searched.gap:.1%}"
    print(f"at least {searched.lower_bound} steps; {proof}")


if __name__ == "__main__":
    main(*sys.argv[1:])
