"""Liveness is compared with its definition: what is made before a cut and read after it crosses the cut."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm.relax import op

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
