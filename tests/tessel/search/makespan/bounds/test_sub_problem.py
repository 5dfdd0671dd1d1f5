"""Placements with fewer blocks and devices: nowhere longer, by CP-SAT, and by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.placement import Block, Edge, Placement
from tessel.search.makespan.bounds.sub_problem import on_devices, without_last_blocks
from tessel.shapes import make_shape
from tests.oracles.makespan_oracle import least_makespan_by_cpsat
from tests.samples.schedule_samples import Case


@st.composite
def split_chains(draw: st.DrawFn) -> Case:
    """Two or three stages on one or two devices, with a last block each, under tight limits."""
    devices = draw(st.integers(1, 2))
    spans, lags = st.integers(1, 4), st.integers(0, 2)
    blocks: list[Block] = []
    edges: list[Edge] = []
    num_stages = draw(st.integers(2, 3))
    for stage in range(num_stages):
        held = tuple(sorted(draw(st.sets(st.integers(0, devices - 1), min_size=1))))
        first = draw(st.integers(0, 2))
        blocks.append(Block(name=f"f{stage}", devices=held, span=draw(spans), memory=2))
        blocks.append(Block(name=f"i{stage}", devices=held, span=draw(spans), memory=-first))
        blocks.append(Block(name=f"w{stage}", devices=held, span=draw(spans), memory=first - 2))
        edges += [
            Edge(f"f{stage}", f"i{stage}", draw(lags)),
            Edge(f"i{stage}", f"w{stage}", draw(lags)),
        ]
        if stage:
            edges += [
                Edge(f"f{stage - 1}", f"f{stage}", draw(lags)),
                Edge(f"i{stage}", f"i{stage - 1}", draw(lags)),
            ]
    limits = st.tuples(*[st.integers(2 * num_stages, 2 * num_stages + 2)] * devices)
    placement = Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges))
    return placement, draw(st.integers(1, 4)), draw(limits)


@settings(max_examples=12, deadline=None)
@given(case=split_chains(), data=st.data())
def test_neither_is_longer(case: Case, data: st.DataObject) -> None:
    placement, micro_batches, memory = case
    truth = least_makespan_by_cpsat(placement, micro_batches, memory)
    assert truth is not None
    smaller = without_last_blocks(placement, data.draw(st.sets(st.integers(0, placement.devices - 1))))
    found = least_makespan_by_cpsat(smaller, micro_batches, memory)
    assert found is not None
    assert found <= truth
    device = smaller.blocks[0].devices[0]
    part = on_devices(smaller, (device,))
    assert memory is not None
    of_part = least_makespan_by_cpsat(part, micro_batches, (memory[device],))
    assert of_part is not None
    assert of_part <= found


def test_what_a_last_block_frees_is_freed_before_it() -> None:
    placement = make_shape("vshape", 2, split_backward=True, forward_memory=2)
    smaller = without_last_blocks(placement, (0,))
    assert {block.name: block.memory for block in smaller.blocks} == {
        "f0": 2, "f1": 2, "b1_input": -2, "b0_input": -1, "b0_weight": -1,
    }  # fmt: skip
    assert {(edge.source, edge.target) for edge in placement.edges} - {
        (edge.source, edge.target) for edge in smaller.edges
    } == {("b1_input", "b1_weight")}


def test_a_block_that_frees_elsewhere_stays() -> None:
    blocks = (
        Block(name="f", devices=(0, 1), span=1, memory=1),
        Block(name="b", devices=(0,), span=1),
        Block(name="w", devices=(0, 1), span=1, memory=-1),
    )
    placement = Placement(devices=2, blocks=blocks, edges=(Edge("f", "b"), Edge("b", "w")))
    assert without_last_blocks(placement, ()) == placement


def test_paths_through_other_devices_are_lags() -> None:
    part = on_devices(make_shape("vshape", 3, backward_span=2, lag=1), (0,))
    assert part.devices == 1
    # f1, f2, b2 and b1 on the way, and five hops
    assert [(edge.source, edge.target, edge.lag) for edge in part.edges] == [("f0", "b0", 10)]
