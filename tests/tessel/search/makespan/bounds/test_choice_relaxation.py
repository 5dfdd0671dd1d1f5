"""Relaxed choices: nowhere longer than the placement, by CP-SAT, and by hand."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tessel.placement import Block, Choice, Edge, Placement
from tessel.search.makespan.bounds.choice_relaxation import without_choices
from tessel.shapes import vshape
from tests.oracles.makespan_oracle import least_makespan_by_cpsat
from tests.samples.schedule_samples import Case


@st.composite
def chains_with_choices(draw: st.DrawFn) -> Case:
    """Two stages on one or two devices, either of whose backwards may run joint or split."""
    devices = draw(st.integers(1, 2))
    spans, lags = st.integers(1, 4), st.integers(0, 2)
    blocks: list[Block] = []
    edges: list[Edge] = []
    for stage in range(2):
        held = (draw(st.integers(0, devices - 1)),)
        first = draw(st.integers(0, 2))
        for name, memory in ((f"f{stage}", 2), (f"b{stage}", -2), (f"i{stage}", -first)):
            blocks.append(Block(name=name, devices=held, span=draw(spans), memory=memory))
        blocks.append(Block(name=f"w{stage}", devices=held, span=draw(spans), memory=first - 2))
        edges += [
            Edge(f"f{stage}", f"b{stage}", draw(lags)),
            Edge(f"f{stage}", f"i{stage}", draw(lags)),
            Edge(f"i{stage}", f"w{stage}", draw(lags)),
        ]
    edges.append(Edge("f0", "f1", draw(lags)))
    sources, targets = ("b1", draw(st.sampled_from(["i1", "w1"]))), ("b0", "i0")
    edges += [Edge(source, target, draw(lags)) for source in sources for target in targets]
    choices = tuple(Choice(f"b{stage}", ((f"b{stage}",), (f"i{stage}", f"w{stage}"))) for stage in range(2))
    limits = draw(st.none() | st.tuples(*[st.integers(4, 6)] * devices))
    placement = Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges), choices=choices)
    return placement, draw(st.integers(1, 3)), limits


def side_by_side(copies: Sequence[Placement]) -> Placement:
    """Return one micro-batch that consists of several placements without choices, on the same devices."""
    return Placement(
        devices=copies[0].devices,
        blocks=tuple(
            structs.replace(block, name=f"{block.name}_{number}")
            for number, copy in enumerate(copies)
            for block in copy.blocks
        ),
        edges=tuple(
            Edge(f"{edge.source}_{number}", f"{edge.target}_{number}", edge.lag)
            for number, copy in enumerate(copies)
            for edge in copy.edges
        ),
    )


@settings(max_examples=60, deadline=None)
@given(case=chains_with_choices(), data=st.data())
def test_the_relaxation_is_nowhere_longer(case: Case, data: st.DataObject) -> None:
    placement, micro_batches, memory = case
    options = st.fixed_dictionaries({choice.name: st.integers(0, 1) for choice in placement.choices})
    copies = [placement.chosen(data.draw(options)) for _ in range(micro_batches)]
    truth = least_makespan_by_cpsat(side_by_side(copies), 1, memory)
    relaxed = without_choices(placement)
    assert relaxed is not None
    found = least_makespan_by_cpsat(relaxed, micro_batches, memory)
    if truth is not None:
        assert found is not None
        assert found <= truth


def test_the_pair_takes_the_best_of_either_option() -> None:
    placement = vshape(
        2,
        choose_backward=True,
        backward_span=22,
        backward_input_span=13,
        backward_weight_span=10,
        forward_memory=2,
        backward_memory=-2,
        lag=1,
    )
    relaxed = without_choices(placement)
    assert relaxed is not None
    pairs = [(block.span, block.memory) for block in relaxed.blocks if block.name.startswith("b1")]
    # What the joint backward frees at its start is of no use before its end.
    assert pairs == [(13, -1), (9, -1)]
    lag = {(edge.source, edge.target): edge.lag for edge in relaxed.edges}
    assert lag["b1_input", "b0_input"] == 1


def test_no_choice_is_left_as_it_is() -> None:
    placement = vshape(2)
    assert without_choices(placement) is placement


def test_other_choices_are_not_relaxed() -> None:
    placement = Placement(
        devices=2,
        blocks=(Block(name="x", devices=(0,), span=1), Block(name="y", devices=(1,), span=2)),
        choices=(Choice("x", (("x",), ("y",))),),
    )
    assert without_choices(placement) is None
