"""Liveness is compared with its definition: what is made before a cut and read after it crosses the cut."""

from dataclasses import dataclass

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm.relax import op

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.frontend.model import InputSpec
from tuner.stages.liveness import find_flow
from tuner.stages.program import read_program

pytestmark = pytest.mark.tvm

X = InputSpec(name="x", shape=(2,), dtype="float32")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reads=st.lists(st.integers(1, 6), min_size=2, max_size=12), data=st.data())
def test_what_is_made_before_and_read_after_crosses(reads, data, make_model):
    def build(emit, x):
        values = [x, emit(op.exp(x))]
        for distance in reads:
            values.append(emit(op.add(values[-1], values[max(1, len(values) - distance)])))
        return op.negative(values[-1])

    program = read_program(make_model(build, inputs=[X], parameters={}, training=False))
    num_bindings = len(program.bindings)
    cuts = sorted(data.draw(st.sets(st.integers(1, num_bindings - 1), max_size=4)))
    flow = find_flow(program, cuts)
    for cut, crossing in zip(cuts, flow.crossing, strict=True):
        before, after = program.bindings[:cut], program.bindings[cut:]
        read_after = {variable for binding in after for variable in binding.reads}
        assert list(crossing) == [binding.var for binding in before if binding.var in read_after]
    assert [binding.var for part in flow.parts for binding in part.bindings] == [
        binding.var for binding in program.bindings
    ]


def test_each_part_has_what_it_reads():
    program = read_program(load_model("gpt2:tiny", training=True))
    for part in find_flow(program, (20, 50, 51, 130)).parts:
        known = {*part.received_and_read, *part.inputs, *part.parameters}
        for binding in part.bindings:
            assert known.issuperset(binding.reads)
            known.add(binding.var)
        assert known.issuperset(part.made)
        assert known.union(part.received).issuperset(part.sent)


def test_the_users_inputs_never_cross():
    program = read_program(load_model("gpt2:tiny", training=True))
    flow = find_flow(program, (20, 50))
    assert not {*program.inputs} & {value for crossing in flow.crossing for value in crossing}
    assert [len(part.inputs) for part in flow.parts] == [1, 0, 1]


@dataclass(frozen=True)
class Step:
    """A step of a program of numbers."""

    var: int
    reads: tuple[int, ...]
    field_of: int | None = None
    is_alias: bool = False


@dataclass(frozen=True)
class Program:
    """A program of one input, a weight, and steps that each a part of its own runs."""

    bindings: tuple[Step, ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...] = (-1,)
    parameters: tuple[int, ...] = (-2,)


@st.composite
def branched_programs(draw: st.DrawFn):
    """Steps, and the parts that each may receive from; what it reads has a way to it."""
    num_parts = draw(st.integers(2, 7))
    before = [
        sorted(draw(st.sets(st.integers(0, part - 1), min_size=1, max_size=3))) if part else []
        for part in range(num_parts)
    ]
    ways = nx.DiGraph([(earlier, part) for part in range(num_parts) for earlier in before[part]])
    steps = [Step(0, (-1,))]
    for part in range(1, num_parts):
        reached = sorted(nx.ancestors(ways, part))
        steps.append(Step(part, (-1, *draw(st.lists(st.sampled_from(reached), unique=True, max_size=4)))))
    return Program(tuple(steps), (num_parts - 1,)), before, ways


@given(case=branched_programs())
def test_what_a_branch_reads_takes_a_shortest_way_to_it(case):
    program, before, ways = case
    flow = find_flow(program, range(1, len(before)), before)
    sent = [set() for _ in before]
    for part, step in enumerate(program.bindings):
        for value in step.reads[1:]:
            way = [part]
            while way[-1] != value:
                found = flow.parts[way[-1]]
                way.append(found.sources[found.received.index(value)])
                sent[way[-1]].add(value)
            # The first of equally short ways, from the reader back.
            every = nx.all_shortest_paths(ways, value, part)
            assert way == min(path[::-1] for path in every)
    assert [set(values) for values in flow.crossing] == sent[:-1]
    assert [set(part.sent) for part in flow.parts] == sent


def test_what_no_way_leads_to_is_refused():
    program = Program((Step(0, (-1,)), Step(1, (-1,)), Step(2, (0, 1))), (2,))
    with pytest.raises(TunerError, match="stage 2 reads what stage 0 makes"):
        find_flow(program, (1, 2), [[], [], [1]])


def test_what_weights_alone_make_is_made_again_where_it_is_read():
    steps = (Step(0, (-2,)), Step(1, (0,)), Step(2, (-1, 1)), Step(3, (2, 1)), Step(4, (3, 0)))
    flow = find_flow(Program(steps, (4,)), (3, 4))
    assert [[step.var for step in part.bindings] for part in flow.parts] == [[0, 1, 2], [0, 1, 3], [0, 4]]
    assert flow.crossing == ((2,), (3,))
    assert [part.parameters for part in flow.parts] == [(-2,)] * 3


def test_a_field_is_taken_where_its_tuple_is_made_and_an_alias_never_crosses():
    steps = (
        Step(0, (-1,)),
        Step(1, (-1,)),
        Step(2, (0,), field_of=0),
        Step(3, (1,), is_alias=True),
        Step(4, (2, 1)),
    )
    flow = find_flow(Program(steps, (4,)), (1, 4))
    assert [[step.var for step in part.bindings] for part in flow.parts] == [[0, 2], [1], [4]]
    assert flow.crossing == ((2,), (1, 2))
    assert [part.received_and_read for part in flow.parts] == [(), (), (1, 2)]
