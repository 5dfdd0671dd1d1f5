"""The integer program's covers equal exhaustive search; forbidden sets stay out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.partition.cover_program import solve_cover_program


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[list[int]], list[int], list[list[int]]]:
    """Draw nodes, options, slacks and forbidden sets; single nodes are options that none forbids."""
    num_nodes = draw(st.integers(1, 7))
    insides = [[node] for node in range(num_nodes)]
    members = st.sets(st.integers(0, num_nodes - 1), min_size=2, max_size=4)
    larger = draw(st.lists(members, max_size=12)) if num_nodes > 1 else []
    insides += [sorted(each) for each in larger]
    slacks = draw(st.lists(st.integers(0, 10**9), min_size=len(insides), max_size=len(insides)))
    positions = st.integers(num_nodes, len(insides) - 1)
    forbidden = draw(st.lists(st.sets(positions, min_size=1, max_size=2), max_size=3)) if larger else []
    return num_nodes, insides, slacks, [sorted(each) for each in forbidden]


def covers(insides: Sequence[Sequence[int]], uncovered: frozenset[int]) -> Iterator[tuple[int, ...]]:
    if not uncovered:
        yield ()
        return
    for position, inside in enumerate(insides):
        if min(uncovered) in inside and uncovered.issuperset(inside):
            for rest in covers(insides, uncovered.difference(inside)):
                yield (position, *rest)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_the_cover_is_the_cheapest_that_is_not_forbidden(
    case: tuple[int, list[list[int]], list[int], list[list[int]]],
) -> None:
    num_nodes, insides, slacks, forbidden = case
    allowed = [
        chosen
        for chosen in covers(insides, frozenset(range(num_nodes)))
        if not any(set(chosen).issuperset(each) for each in forbidden)
    ]
    least = min(sum(slacks[position] for position in chosen) for chosen in allowed)
    found = solve_cover_program(insides, slacks, num_nodes=num_nodes, forbidden=forbidden)
    assert found is not None
    assert tuple(sorted(found.chosen)) in {tuple(sorted(chosen)) for chosen in allowed}
    tolerance = 2e-6 * (1 + num_nodes) * max(slacks)
    assert sum(slacks[position] for position in found.chosen) <= least + tolerance
    assert least - tolerance <= found.lower_bound <= least


def test_there_may_be_no_cover() -> None:
    assert solve_cover_program([[0, 1], [1, 2]], [1, 1], num_nodes=3) is None
    assert solve_cover_program([[0], [1]], [1, 1], num_nodes=2, forbidden=[[0, 1]]) is None
