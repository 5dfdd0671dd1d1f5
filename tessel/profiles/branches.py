"""Two branches of a model, found in what its layers read: two towers, each of which sees one input alone.

    layers    i i i i | t t t | b b h        i and t read nothing of each other, b reads both
                      ^ second  ^ joined

The second branch begins at a layer that reads nothing made before it, and ends where one reads what the first
branch made. Of several such pairs the one is taken whose shorter branch takes longest. Checked in
tests/tessel/profiles/test_branches.py against every pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessel.profiles.profile import Branches
from tuner.plan import StagePlan


def find_branches(stages: Sequence[StagePlan]) -> Branches | None:
    """Return where two branches stand in a chain of stages, None where no two meet; O(stages · reads).

    Args:
        stages: in order, with the tensors that they read and make.
    """
    reads = _reads(stages)
    best, longest_us = None, -1.0
    for second in range(1, len(stages)):
        if any(reader == second for _, reader in reads):
            continue
        joined = min((reader for maker, reader in reads if maker < second < reader), default=None)
        # A run that nothing behind it reads does not meet the first.
        if joined is None or not any(second <= maker < joined <= reader for maker, reader in reads):
            continue
        shorter_us = min(_forward_us(stages[:second]), _forward_us(stages[second:joined]))
        if shorter_us > longest_us:
            best, longest_us = Branches(second, joined), shorter_us
    return best


def relayed_bytes(stages: Sequence[StagePlan], branches: Branches) -> tuple[int, ...]:
    """Return the bytes that each stage of a branch passes on for the other; 0 where they have met.

    Args:
        stages: in order, with the tensors that they make and pass on.
        branches: of these stages.
    """
    makers = _makers(stages)
    num_bytes = {tensor.name: tensor.num_bytes for stage in stages for tensor in stage.outputs}
    first, second = range(branches.second), range(branches.second, branches.joined)
    found = [0] * len(stages)
    for own, other in ((first, second), (second, first)):
        for number in own:
            found[number] = sum(
                num_bytes[name] for name in stages[number].relayed if makers.get(name, -1) in other
            )
    return tuple(found)


def _reads(stages: Sequence[StagePlan]) -> frozenset[tuple[int, int]]:
    """Return the pairs of stages of which the second reads what the first makes."""
    makers = _makers(stages)
    return frozenset(
        (makers[tensor.name], number)
        for number, stage in enumerate(stages)
        for tensor in stage.inputs
        if makers.get(tensor.name, number) < number
    )


def _makers(stages: Sequence[StagePlan]) -> dict[str, int]:
    return {tensor.name: number for number, stage in enumerate(stages) for tensor in stage.outputs}


def _forward_us(stages: Sequence[StagePlan]) -> float:
    return sum(stage.forward.latency_us for stage in stages)
