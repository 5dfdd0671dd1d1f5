"""Placements of every kind: span 0, lags, choices, memory that is never freed, blocks on several devices."""

from __future__ import annotations

from hypothesis import strategies as st

from tessel.placement import Block, Choice, Edge, Placement


@st.composite
def placements(
    draw: st.DrawFn, *, max_blocks: int = 5, max_devices: int = 3, has_choice: bool | None = None
) -> Placement:
    """Return a placement of up to so many blocks on up to so many devices.

    Args:
        draw: of Hypothesis.
        max_blocks: most blocks, those of all options counted; at least 3.
        max_devices: most devices.
        has_choice: whether there is a choice between one block and one or two; None for either.
    """
    devices = draw(st.integers(1, max_devices))
    held = st.sets(st.integers(0, devices - 1), min_size=1).map(lambda found: tuple(sorted(found)))
    has_choice = draw(st.booleans()) if has_choice is None else has_choice
    num_blocks = draw(st.integers(3 if has_choice else 1, max_blocks))
    blocks = tuple(
        Block(
            name=f"b{number}",
            devices=draw(held),
            span=draw(st.integers(0, 3)),
            memory=draw(st.integers(-2, 3)),
        )
        for number in range(num_blocks)
    )
    pairs = [(a, b) for b in range(num_blocks) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=num_blocks)) if pairs else []
    edges = tuple(Edge(f"b{a}", f"b{b}", draw(st.integers(0, 3))) for a, b in chosen)
    choices: tuple[Choice, ...] = ()
    if has_choice:
        names = draw(st.permutations([block.name for block in blocks]))
        choices = (Choice("c", ((names[0],), tuple(names[1 : draw(st.integers(2, 3))]))),)
    return Placement(devices=devices, blocks=blocks, edges=edges, choices=choices)
