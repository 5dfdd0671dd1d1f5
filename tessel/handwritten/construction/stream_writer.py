"""Writes one device's instructions by kind and stage, counting the micro-batches of each.

Rules that publish phases ("2(P - i) - 1 forwards of the first chunk, then …") name no micro-batches: each
kind of work takes them in order. Phases may ask for more than there are; what is beyond the last is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tessel.instruction import Instruction


@dataclass(slots=True)
class StreamWriter:
    """The instructions written so far, and how often each kind of work of each stage was asked for."""

    micro_batches: int
    stream: list[Instruction] = field(default_factory=list)
    asked: Counter[tuple[type[Instruction], int]] = field(default_factory=Counter)

    def write(self, kind: type[Instruction], stage: int) -> None:
        """Add the next micro-batch of this kind of work, if there is one."""
        micro_batch = self.asked[kind, stage]
        self.asked[kind, stage] += 1
        if micro_batch < self.micro_batches:
            self.stream.append(kind(stage, micro_batch))

    def count(self, kind: type[Instruction], stage: int) -> int:
        """Return how often that work was asked for."""
        return self.asked[kind, stage]
