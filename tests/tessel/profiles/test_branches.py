"""Branches of random graphs against every pair of runs, and of a real model of two towers."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tessel.profiles.branches import find_branches, relayed_bytes
from tessel.profiles.profile import Branches
from tuner.frontend import load_model
from tuner.plan import Figure, StagePlan, TensorInfo
from tuner.stages import build_stages, cut_between, layers_of, with_all_gradients

Reads = list[set[int]]


def chain_of(reads: Reads, us: list[int]) -> tuple[StagePlan, ...]:
    """Return layers that read the results of these; a result is as many bytes as its layer's number and 1."""
    made = [TensorInfo(name=f"t{n}", shape=(n + 1,), dtype="int8", num_bytes=n + 1) for n in range(len(us))]
    return tuple(
        StagePlan(
            name=f"stage{number}",
            layers=(f"l{number}",),
            inputs=(TensorInfo(name="x", shape=(9,), dtype="int8", num_bytes=9), *(made[n] for n in read)),
            outputs=(made[number],),
            relayed=tuple(f"t{n}" for n in range(number) if any(n in later for later in reads[number + 1 :])),
            parameters=(),
            forward=Figure(latency_us=us[number], source="given"),
            backward=None,
            backward_input=None,
            backward_weight=None,
            weight_bytes=0,
            saved_bytes=0,
            saved_for_weight_bytes=0,
            boundary_bytes=0,
        )
        for number, read in enumerate(reads)
    )


def every_pair(reads: Reads) -> list[Branches]:
    """Return all pairs of runs that begin the model, read nothing of each other, and meet behind."""
    found = []
    for second in range(1, len(reads)):
        for joined in range(second + 1, len(reads)):
            first, other = set(range(second)), set(range(second, joined))
            is_apart = not any(reads[layer] & first for layer in other)
            meets = reads[joined] & first and any(later & other for later in reads[joined:])
            if is_apart and meets and not reads[second]:
                found.append(Branches(second, joined))
    return found


@st.composite
def graphs(draw: st.DrawFn) -> Reads:
    size = draw(st.integers(2, 7))
    every = (st.sets(st.integers(0, max(0, number - 1)), max_size=min(number, 2)) for number in range(size))
    return [draw(each) for each in every]


@settings(max_examples=300, deadline=None)
@given(reads=graphs(), data=st.data())
def test_the_pair_is_one_of_all_whose_shorter_branch_takes_longest(reads: Reads, data: st.DataObject) -> None:
    us = [data.draw(st.integers(1, 9)) for _ in reads]
    found = find_branches(chain_of(reads, us))
    pairs = every_pair(reads)
    assert (found is None) == (not pairs)
    if found is None:
        return
    assert found in pairs

    def shorter(pair: Branches) -> int:
        return min(sum(us[: pair.second]), sum(us[pair.second : pair.joined]))

    assert shorter(found) == max(map(shorter, pairs))
    relayed = relayed_bytes(chain_of(reads, us), found)
    for number in range(len(reads)):
        first, second = set(range(found.second)), set(range(found.second, found.joined))
        other = second if number in first else first if number in second else set()
        waiting = {n for later in reads[number + 1 :] for n in later if n < number}
        assert relayed[number] == sum(n + 1 for n in waiting & other)


def test_three_towers_are_a_long_branch_and_two_together() -> None:
    reads: Reads = [set(), set(), set(), {0, 1, 2}]
    assert find_branches(chain_of(reads, [3, 1, 2, 1])) == Branches(1, 3)
    assert find_branches(chain_of(reads, [1, 2, 3, 1])) == Branches(2, 3)


@pytest.mark.parametrize(
    "reads",
    [
        [set(), {0}, {1}],  # a chain
        [set(), set(), {1}, {2}],  # nothing reads the first
        [set(), set(), {0}, {2}],  # nothing reads the second
        [set(), {0}, set()],  # they never meet
    ],
)
def test_what_does_not_meet_is_no_branch(reads: Reads) -> None:
    assert find_branches(chain_of(reads, [1] * len(reads))) is None


@pytest.mark.tvm
def test_the_towers_of_a_real_model_are_found_where_its_layers_are_divided_at_branches() -> None:
    pytest.importorskip("tvm")
    model = with_all_gradients(load_model("flava:tiny", training=True))

    def stages(*, at_branches: bool) -> tuple[StagePlan, ...]:
        layers = layers_of(model, at_branches=at_branches)
        figure = Figure(latency_us=1.0, source="given")
        figures = dict.fromkeys(("forward", "backward", "backward_input", "backward_weight"), figure)
        built = build_stages(model, cut_between(layers, range(1, len(layers))))
        return tuple(stage.plan(figures) for stage in built)

    apart = stages(at_branches=True)
    found = find_branches(apart)
    assert found == Branches(4, 8)
    assert "text" in apart[4].layers[0]
    image = apart[3].boundary_bytes
    assert relayed_bytes(apart, found) == tuple(image if 4 <= n < 8 else 0 for n in range(len(apart)))
    # A layer that ends one tower and begins the other belongs to both.
    assert find_branches(stages(at_branches=False)) is None
