"""Stages, chained, equal the uncut model: on random programs, and on models with ties, relays and tuples."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.frontend.model import InputSpec
from tuner.plan import TiedParameter
from tuner.stages import (
    build_stages,
    check_gradients,
    choose_cuts,
    cut_after,
    cut_between,
    draw_tensors,
    layers_of,
    run_stages,
    tied_groups,
)
from tuner.stages.liveness import find_flow
from tuner.stages.program import read_program

pytestmark = pytest.mark.tvm

X = InputSpec(name="x", shape=(2, 4), dtype="float32")
Y = InputSpec(name="y", shape=(2, 4), dtype="float32")
FUNCTIONS = ("forward", "backward", "backward_input", "backward_weight")


@st.composite
def programs(draw):
    """Draw a program as a list of (operator, operands), operands counted over values made so far."""
    num_values = 6  # x, y and four weights
    steps = []
    for _ in range(draw(st.integers(3, 9))):
        kind = draw(st.sampled_from(["add", "multiply", "tanh", "subtract", "split"]))
        operands = tuple(draw(st.integers(max(0, num_values - 5), num_values - 1)) for _ in range(2))
        steps.append((kind, operands))
        num_values += 1
    return tuple(steps)


def write_program(steps):
    def build(emit, *arguments):
        values = list(arguments)
        # Inputs are mixed in first, so that every stage has something to do.
        values.append(emit(op.multiply(values[0], values[2]), "0"))
        for kind, (left, right) in steps:
            first, second = values[left], values[right]
            if kind == "tanh":
                values.append(emit(op.add(emit(op.tanh(first)), values[-1])))
            elif kind == "split":
                halves = emit(op.split(first, 2, axis=1))
                swapped = emit(
                    op.concat(
                        [emit(relax.TupleGetItem(halves, 1)), emit(relax.TupleGetItem(halves, 0))], axis=1
                    )
                )
                values.append(emit(op.multiply(swapped, values[-1])))
            else:
                made = emit(getattr(op, kind)(first, second))
                values.append(emit(op.add(made, values[-1])))
        return op.sum(values[-1])

    return build


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=programs(), data=st.data())
def test_stages_of_random_programs_equal_the_uncut_program(steps, data, make_model, interpret):
    # In float64, since whole gradients may cancel here and leave nothing but what was rounded.
    inputs = [InputSpec(name=name, shape=(2, 4), dtype="float64") for name in ("x", "y")]
    weights = {f"w{index}": ((2, 4), "float64") for index in range(4)}
    model = make_model(write_program(steps), inputs=inputs, parameters=weights)
    positions = st.integers(1, len(model.module_paths) - 1)
    cuts = sorted(data.draw(st.sets(positions, max_size=3)))
    assume(all(part.bindings for part in find_flow(read_program(model), cuts).parts))
    stages = build_stages(model, cuts)
    assert check_gradients(model, stages, seed=0, run=interpret).is_within(1e-5)
    for before, after in itertools.pairwise(stages):
        assert before.sent == after.received
        assert set(after.relayed) <= {info.name for info in after.sent}


@pytest.mark.parametrize(
    "name",
    [
        "mlp:tiny",
        pytest.param("gpt2:tiny", marks=pytest.mark.slow),
        pytest.param("mt5:tiny", marks=pytest.mark.slow),
        pytest.param("mobilenet:tiny", marks=pytest.mark.slow),
    ],
)
def test_zoo_models_have_the_same_gradients_cut_and_uncut(name, run):
    model = load_model(name, training=True)
    layers = layers_of(model)
    cuts = choose_cuts([1.0] * len(layers), [0] * len(layers), 3)
    stages = build_stages(model, cut_between(layers, cuts))
    assert check_gradients(model, stages, seed=0, run=run).is_within(1e-4)


def test_every_function_is_well_formed_and_has_one_dataflow_block():
    model = load_model("gpt2:tiny", training=True)
    for stage in build_stages(model, cut_after(model, ["h.1"])):
        for function in (getattr(stage, name) for name in FUNCTIONS):
            if function is None:
                continue
            main = function.module["main"]
            relax.analysis.well_formed(function.module)  # raises where it is not
            assert len(main.body.blocks) == 1
            assert isinstance(main.body.blocks[0], relax.DataflowBlock)
            assert len(main.params) == len(function.inputs)
            assert len(main.ret_ty.fields) == len(function.outputs)


def test_a_tied_embedding_lives_in_two_stages_and_is_saved_in_none():
    model = load_model("gpt2:tiny", training=True)
    stages = build_stages(model, cut_after(model, ["layer:0", "layer:2"]))
    name = "transformer.wte.weight"
    assert tied_groups(model, stages) == ((TiedParameter(name, 0), TiedParameter(name, 2)),)
    table = next(info for info in stages[0].forward.inputs if info.name == name)
    assert all(info.num_bytes < table.num_bytes for stage in stages for info in stage.saved)


def test_the_first_stage_has_no_input_half_and_inference_no_backward():
    model = load_model("mlp:tiny", training=True)
    first, last = build_stages(model, cut_after(model, ["layer:1"]))
    assert (first.backward_input, first.received, last.sent) == (None, (), ())
    assert first.backward.outputs == first.backward_weight.outputs
    assert last.backward_input.outputs[0].name == f"{last.received[0].name}.grad"
    plain = load_model("mlp:tiny", training=False)
    for stage in build_stages(plain, cut_after(plain, ["layer:1"])):
        assert (stage.backward, stage.backward_input, stage.backward_weight, stage.saved) == (
            None,
            None,
            None,
            (),
        )


def test_a_field_of_what_the_input_half_splits_is_handed_on_to_the_weight_half(make_model, interpret):
    """The gradient of a concatenation: one field is an input's, the other a weight's alone."""

    def build(emit, x, w0, w1, w2):
        first = emit(op.tanh(emit(op.multiply(x, w0))))
        both = emit(op.concat([emit(op.multiply(first, w1)), w2], axis=0))
        return op.sum(emit(op.tanh(both)))

    model = make_model(build, inputs=[X], parameters={f"w{n}": ((2, 4), "float32") for n in range(3)})
    stages = build_stages(model, (2,))
    last = stages[1]
    made = {info.name for info in last.backward_input.outputs}
    assert len(made & {info.name for info in last.saved_for_weight}) >= 2
    assert check_gradients(model, stages, seed=0, run=interpret).is_within(1e-5)


def test_the_two_halves_do_the_work_of_the_joint_backward_once():
    model = load_model("gpt2:tiny", training=True)
    _, middle, _ = build_stages(model, cut_after(model, ["h.0", "h.2"]))
    products = [_count(getattr(middle, name), "relax.matmul") for name in FUNCTIONS]
    # Two blocks of six products; each needs one for its left and one for its right operand, of which four of
    # each block's are weights.
    assert products == [12, 24, 16, 8]


def test_bytes_are_those_of_the_tensors(make_model):
    def build(emit, x, w1, w2):
        hidden = emit(op.tanh(emit(op.matmul(x, w1), "0")), "0")
        return op.sum(emit(op.matmul(hidden, w2), "1"))

    parameters = {"w1": ((4, 4), "float32"), "w2": ((4, 3), "float32")}
    model = make_model(build, inputs=[X], parameters=parameters)
    first, second = build_stages(model, cut_after(model, ["0"]))
    assert (first.weight_bytes, first.boundary_bytes, second.weight_bytes) == (
        4 * 4 * 4,
        2 * 4 * 4,
        4 * 3 * 4,
    )
    # The first keeps its input and the result of tanh, the second its input, each of 2 x 4 float32.
    assert (first.saved_bytes, second.saved_bytes) == (64, 32)


def test_a_bypassed_tensor_is_relayed_in_a_stable_order(make_model, run):
    def build(emit, x, y, w):
        early = emit(op.multiply(x, w), "0")
        also = emit(op.add(early, y), "0")
        middle = emit(op.tanh(early), "1")
        late = emit(op.multiply(middle, also), "2")
        return op.sum(emit(op.multiply(late, early), "3"))

    model = make_model(build, inputs=[X, Y], parameters={"w": ((2, 4), "float32")})
    stages = build_stages(model, cut_after(model, ["0", "1", "2"]))
    early, also, middle = (info.name for info in stages[1].sent)
    assert [stage.relayed for stage in stages] == [(), (early, also), (early,), ()]
    assert [info.name for info in stages[2].inputs] == [also, middle]
    assert stages[2].sent[0].name == early
    assert check_gradients(model, stages, seed=1, run=run).is_within(1e-5)


def test_outputs_of_several_stages_and_tuples_across_a_cut(make_model, run):
    def build(emit, x, w):
        halves = emit(op.split(emit(op.multiply(x, w), "0"), 2, axis=1), "0")
        left = emit(relax.TupleGetItem(halves, 0), "1")
        side = emit(op.tanh(left), "1")
        right = emit(relax.TupleGetItem(halves, 1), "2")
        return side, emit(op.add(right, left), "2")

    model = make_model(build, inputs=[X], parameters={"w": ((2, 4), "float32")}, training=False)
    stages = build_stages(model, cut_after(model, ["0", "1"]))
    assert [len(stage.sent) for stage in stages] == [2, 2, 0]
    assert check_gradients(model, stages, seed=0, run=run).relative_error == 0.0
    results = run_stages(stages, draw_tensors(model, rng=np.random.default_rng(0)), split=False, run=run)
    assert [value.shape for value in results.values()] == [(2, 2), (2, 2)]


def test_values_that_need_no_input_are_made_where_they_are_read(make_model, run):
    def build(emit, x, w):
        mask = emit(op.tril(op.ones((4, 4), "float32")), "0")
        turned = emit(op.permute_dims(w), "0")
        first = emit(op.matmul(emit(op.matmul(x, mask), "0"), turned), "0")
        return op.sum(emit(op.matmul(emit(op.matmul(first, mask), "1"), turned), "1"))

    model = make_model(build, inputs=[X], parameters={"w": ((4, 4), "float32")})
    first, second = build_stages(model, cut_after(model, ["0"]))
    assert len(first.sent) == 1
    assert (first.parameters, second.parameters) == (("w",), ("w",))
    assert check_gradients(model, (first, second), seed=0, run=run).is_within(1e-5)


def test_no_gradient_is_waited_for_where_none_is_made(make_model, run):
    def build(emit, x, y, w):
        gate = emit(op.multiply(x, w), "0")
        value = emit(op.multiply(y, w), "0")
        middle = emit(op.tanh(value), "1")
        is_open = emit(op.greater(gate, y), "2")
        chosen = emit(op.where(is_open, value, middle), "2")
        return op.sum(chosen)

    model = make_model(build, inputs=[X, Y], parameters={"w": ((2, 4), "float32")})
    stages = build_stages(model, cut_after(model, ["0", "1"]))
    gate, value = (info.name for info in stages[0].sent)
    assert stages[1].relayed == (gate, value)
    assert [info.name for info in stages[0].backward.inputs] == ["y", f"{value}.grad"]
    assert check_gradients(model, stages, seed=0, run=run).is_within(1e-5)


@pytest.mark.parametrize("cuts", [(0,), (5, 5), (9, 3), (10_000,)])
def test_positions_that_are_no_cuts_are_refused(cuts):
    with pytest.raises(TunerError, match="not rising positions"):
        build_stages(load_model("mlp:tiny", training=True), cuts)


def test_training_needs_a_scalar_loss(make_model):
    model = make_model(lambda emit, x: emit(op.tanh(x)), inputs=[X], parameters={})
    with pytest.raises(TunerError, match="one floating-point scalar"):
        build_stages(model, ())


def _count(function, operator):
    bindings = function.module["main"].body.blocks[0].bindings
    return sum(isinstance(entry.value, relax.Call) and entry.value.op.name == operator for entry in bindings)
