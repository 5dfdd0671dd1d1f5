"""Input and result of a strategy: whole programs that it measured.

The sum of parts leaves out what parts do to each other, so whole programs are compared, and every strategy is
one more way to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tuner.tuning.end_to_end.cache import EndToEndCache, Variant
from tuner.tuning.partitioned_function import PartitionedFunction, PricedFunction
from tuner.tuning.session import Session

Search: TypeAlias = Callable[[PricedFunction], PartitionedFunction]
"""Searches with the launch penalty that it is given: of all backends, without some, or of one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A whole program that a strategy measured.

    Attributes:
        found_by: the strategy, as `PartitionedModel.chosen_by` names it, or the single backend.
        variant: the program with its latency.
        is_single: whether it is a single backend's answer.
    """

    found_by: str
    variant: Variant
    is_single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What strategies found so far, and what they find more with.

    Attributes:
        wholes: whole programs measured so far, so that none is measured twice.
        first: the search's answer, by the sum of its parts.
        proposals: what was found, in order; only `propose` adds to it.
    """

    session: Session
    wholes: EndToEndCache
    first: PartitionedFunction
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def mixes(self) -> dict[str, Variant]:
        """What others than single backends found, by strategy."""
        return {each.found_by: each.variant for each in self.proposals if not each.is_single}

    @property
    def alone(self) -> dict[str, tuple[Variant, ...]]:
        """By backend its program, and where one was found, another of fewer parts."""
        found: dict[str, tuple[Variant, ...]] = {}
        for each in self.proposals:
            if each.is_single:
                found[each.found_by] = (*found.get(each.found_by, ()), each.variant)
        return found


class Strategy(Protocol):
    """Proposes whole programs; a function that measures them is one."""

    def __call__(self, proposed: Proposed) -> Iterable[Proposal]:
        """Return what it adds to what was proposed before."""
        ...


def as_proposals(found_by: str, variant: Variant | None, *, is_single: bool = False) -> tuple[Proposal, ...]:
    """Return the proposal of a program; none where there is no program."""
    return () if variant is None else (Proposal(found_by=found_by, variant=variant, is_single=is_single),)
