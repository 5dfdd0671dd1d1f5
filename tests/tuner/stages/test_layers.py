"""Layers are runs of a module's bindings; cuts by name fall right after them."""

import functools

import numpy as np
import pytest
from tvm.relax import op

from tuner.errors import TunerError, UnknownNameError
from tuner.frontend import load_model
from tuner.frontend.model import InputSpec
from tuner.stages import build_stages, check_gradients, cut_after, cut_between, layers_of
from tuner.stages.layers import branch_positions
from tuner.stages.program import read_program

pytestmark = pytest.mark.tvm

X = InputSpec(name="x", shape=(2, 4), dtype="float32")
WEIGHT = {"w": ((2, 4), "float32")}


@pytest.fixture
def model_of_paths(make_model):
    """Write a chain of products with a weight, one for each module path."""

    def make(paths, *, training=False):
        def build(emit, x, w):
            for path in paths:
                x = emit(op.tanh(op.multiply(x, w)), path)
            return op.sum(x) if training else op.negative(x)

        return make_model(build, inputs=[X], parameters=WEIGHT, training=training)

    return make


def test_gpt2_is_an_embedding_its_blocks_and_a_head():
    model = load_model("gpt2:tiny", training=True)
    layers = layers_of(model)
    names = [layer.name.replace("transformer.", "") for layer in layers]
    assert names == ["wte+wpe", "h.0", "h.1", "h.2", "h.3", "ln_f+lm_head+loss"]
    assert len({layer.fingerprint for layer in layers}) == 3
    assert [layers[0].start, *(layer.stop for layer in layers)] == [
        *(layer.start for layer in layers),
        len(model.module_paths),
    ]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gpt2:tiny", ["wte+wpe", "h.0.attn+", "h.0", "h.1.attn+", "h.1"]),
        ("bert:tiny", ["embeddings", "encoder.layer.0.attention+", "encoder.layer.0"]),
    ],
)
def test_blocks_are_divided_between_attention_and_feed_forward(name, parts):
    model = load_model(name, training=True)
    layers = layers_of(model, in_parts=True)
    for layer, part in zip(layers, parts, strict=False):
        assert layer.name.replace("transformer.", "").endswith(part)
    stages = build_stages(model, cut_between(layers, range(1, len(layers))))
    assert all(len(stage.sent) == 1 for stage in stages[:-1])
    # Equal parts of equal blocks are measured once.
    assert layers[1].fingerprint == layers[3].fingerprint != layers[2].fingerprint == layers[4].fingerprint
    whole = layers_of(model)
    assert {layer.stop for layer in whole} <= {layer.stop for layer in layers}


@pytest.mark.parametrize(
    "name",
    [
        "gpt2:tiny",
        "bert:tiny",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mt5:tiny", "flava:tiny")),
    ],
)
def test_a_cut_after_a_part_is_asked_for_by_its_name(name):
    model = load_model(name, training=True)
    whole = {layer.stop for layer in layers_of(model)}
    parts = [layer for layer in layers_of(model, in_parts=True) if layer.stop not in whole]
    assert len(parts) >= 4
    for layer in parts:
        (position,) = cut_after(model, [layer.name])
        assert position == layer.stop
        assert build_stages(model, (position,))[0].layers[-1] == layer.name


def test_a_decoders_block_is_divided_in_three():
    layers = layers_of(load_model("mt5:tiny", training=True), in_parts=True)
    names = [layer.name for layer in layers if "decoder.block.0" in layer.name]
    assert [name.rpartition("decoder.block.0")[2] for name in names] == [
        ".attention+",
        ".cross_attention+",
        "",
    ]


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_decoders_layers_end_where_it_begins_and_where_it_reads_the_encoder(in_parts):
    model = load_model("mt5:tiny", training=True)
    plain = layers_of(model, in_parts=in_parts)
    layers = layers_of(model, at_branches=True, in_parts=in_parts)
    added = {layer.stop for layer in layers} - {layer.stop for layer in plain}
    assert [layer.name for layer in layers if layer.stop in added] == [
        "encoder.final_layer_norm",
        "decoder.block.0.cross_attention.q",
    ]
    # All other layers end where they did, by the same names.
    ends = {layer.stop: layer.name for layer in layers}
    renamed = {layer.name: ends[layer.stop] for layer in plain if ends[layer.stop] != layer.name}
    assert renamed == {
        "encoder.final_layer_norm+shared+decoder.relative_bias": "shared+decoder.relative_bias"
    }


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["fc1", "act", "fc2"], ["fc1", "act", "fc2"]),
        (["net.fc1", "net.fc2"], ["net.fc1", "net.fc2"]),
        (
            ["stem", "stem.bn", "layer1.0.conv", "layer1.0", "layer1.1.conv", "head"],
            ["stem", "layer1.0", "layer1.1", "head"],
        ),
        (
            ["", "wte", "wpe", "", "h.0.ln", "h.1.ln", "", "norm", "head"],
            ["wte+wpe", "h.0", "h.1", "norm+head"],
        ),
        (["a.0", "mid", "b.0", "a.0"], ["a.0#1", "mid", "b.0", "a.0#2"]),
        (["e.l.0", "e.norm", "d.embed", "d.l.0", "d.norm"], ["e.l.0", "e.norm+d.embed", "d.l.0", "d.norm"]),
    ],
)
def test_layers_are_numbered_modules_and_what_stands_between(paths, expected, model_of_paths):
    assert [layer.name for layer in layers_of(model_of_paths(paths))] == expected


def test_a_model_without_module_names_is_cut_where_one_tensor_carries_all(make_model):
    def build(emit, x, w):
        left = emit(op.multiply(x, w))
        right = emit(op.tanh(left))
        joined = emit(op.add(left, right))
        return op.exp(joined)

    model = make_model(build, inputs=[X], parameters=WEIGHT, training=False)
    assert [(layer.start, layer.stop) for layer in layers_of(model)] == [(0, 1), (1, 3), (3, 4)]


def test_a_layer_without_a_name_has_a_product_of_its_own(make_model):
    def build(emit, x, w):
        for _ in range(3):
            x = emit(op.exp(emit(op.nn.relu(emit(op.matmul(x, w))))))
        return op.negative(x)

    model = make_model(build, inputs=[X], parameters={"w": ((4, 4), "float32")}, training=False)
    assert [(layer.start, layer.stop) for layer in layers_of(model)] == [(0, 3), (3, 6), (6, 10)]


def test_a_layer_that_reads_no_input_joins_its_neighbour(make_model):
    def build(emit, x, w):
        positions = emit(op.tanh(w), "0")
        return emit(op.exp(emit(op.add(x, positions), "1")), "2")

    model = make_model(build, inputs=[X], parameters=WEIGHT, training=False)
    assert [layer.name for layer in layers_of(model)] == ["0+1", "2"]


def test_a_last_layer_that_reads_no_input_joins_the_one_before(make_model):
    def build(emit, x, w):
        y = emit(op.exp(emit(op.exp(emit(op.exp(x), "0")), "1")), "2")
        emit(op.tanh(w), "3")
        return y

    model = make_model(build, inputs=[X], parameters=WEIGHT, training=False)
    assert [layer.name for layer in layers_of(model)] == ["0", "1", "2+3"]


def test_what_reads_no_input_begins_no_branch(make_model):
    """Two towers; the second reads a constant table, which is computed before both."""

    def build(emit, x, y, w):
        table = emit(op.exp(w), "h.0")
        first = emit(op.matmul(x, w), "h.0")
        second = emit(op.matmul(emit(op.add(y, table), "h.0"), w), "h.0")
        return emit(op.add(first, second), "h.1")

    inputs = [InputSpec(name=name, shape=(4, 4), dtype="float32") for name in "xy"]
    model = make_model(build, inputs=inputs, parameters={"w": ((4, 4), "float32")}, training=False)
    assert branch_positions(read_program(model)) == (2, 4)


def test_a_chain_without_products_branches_nowhere_within(make_model):
    model = make_model(
        lambda emit, x, w: op.exp(emit(op.exp(emit(op.add(emit(op.exp(x)), w))))),
        inputs=[X],
        parameters=WEIGHT,
        training=False,
    )
    assert set(branch_positions(read_program(model))) <= {0}


def _drawn(rng, num_bindings):
    """Write a program of random operators, whose last ones add up what nothing else reads."""

    def build(emit, *values):
        values = list(values)
        unread = []
        for _ in range(num_bindings):
            first, second = (values[index] for index in rng.integers(len(values), size=2))
            value = (op.matmul(first, second), op.add(first, second), op.exp(first))[rng.integers(3)]
            values.append(emit(value))
            read = (first,) if value.op.name == "relax.exp" else (first, second)
            unread = [each for each in unread if not any(each.same_as(one) for one in read)] + [values[-1]]
        return functools.reduce(lambda total, each: emit(op.add(total, each)), unread)

    return build


def _branches(program):
    """Return by definition where branches begin and meet what stands before them."""
    bindings, late = program.bindings, set(program.inputs)
    for binding in bindings:
        late |= {binding.var} if late & set(binding.reads) or binding.var in program.outputs else set()
    is_product = ["matmul" in str(binding.value) for binding in bindings]
    found = set()
    for start, binding in enumerate(bindings):
        before = late & {each.var for each in bindings[:start]}
        back = [place for place, each in enumerate(bindings) if place >= start and before & set(each.reads)]
        if binding.var in late and back and any(is_product[:start]) and any(is_product[start : back[0]]):
            found |= {start, back[0]}
    return tuple(sorted(found))


def test_branches_are_those_of_their_definition(make_model):
    inputs = [InputSpec(name=name, shape=(4, 4), dtype="float32") for name in "xy"]
    lengths = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        build = _drawn(rng, int(rng.integers(3, 10)))
        model = make_model(build, inputs=inputs, parameters={"w": ((4, 4), "float32")}, training=False)
        program = read_program(model)
        if any("matmul" in str(binding.value) for binding in program.bindings):
            found = branch_positions(program)
            assert found == _branches(program), program.bindings
            lengths.append(len(found))
    assert min(lengths) == 0
    assert max(lengths) > 2


def test_equal_layers_have_equal_fingerprints_whatever_their_weights(model_of_paths):
    first, second, last = layers_of(model_of_paths(["h.0", "h.1", "h.2"]))
    assert first.fingerprint == second.fingerprint != last.fingerprint  # the last negates besides


@pytest.mark.parametrize("name", ["transformer.h.1", "h.1", "layer:1"])
def test_a_cut_may_be_named_in_several_ways(name):
    model = load_model("gpt2:tiny", training=True)
    layers = layers_of(model)
    assert cut_after(model, [name]) == cut_between(layers, [3])


def test_a_cut_inside_a_layer_falls_after_that_module(run):
    model = load_model("mlp:tiny", training=True)
    inner = cut_after(model, ["head"])
    assert inner[0] > cut_after(model, ["layer:2"])[0]
    assert check_gradients(model, build_stages(model, inner), seed=0, run=run).is_within(1e-5)


@pytest.mark.parametrize(
    ("cuts", "num_stages"), [(["encoder.1", "decoder.1"], 3), (["encoder.1", "encoder", "decoder.1"], 4)]
)
def test_cuts_in_an_encoder_and_a_decoder_meet_in_their_common_ancestor(cuts, num_stages, make_model, run):
    def build(emit, x, w):
        memory = x
        for index in range(3):
            memory = emit(op.tanh(op.multiply(memory, w)), f"encoder.{index}")
        y = memory
        for index in range(3):
            y = emit(op.add(emit(op.multiply(y, memory), f"decoder.{index}"), w), f"decoder.{index}")
        return op.sum(y)

    model = make_model(build, inputs=[X], parameters=WEIGHT)
    stages = build_stages(model, cut_after(model, cuts))
    assert len(stages) == num_stages
    assert len(stages[-1].received) == 2  # the decoder's state, and the encoder's memory
    assert check_gradients(model, stages, seed=0, run=run).is_within(1e-5)


@pytest.mark.parametrize(
    "cuts",
    [["layer:0"], ["wte+wpe"], ["wpe"], ["h.1.attn"], ["h.1.mlp.c_fc", "ln_f"], ["h.2", "transformer"]],
)
def test_the_last_layer_of_a_stage_names_the_cut_after_it(cuts):
    model = load_model("gpt2:tiny", training=True)
    cuts = [cut.replace("wte+wpe", "transformer.wte+transformer.wpe") for cut in cuts]
    positions = cut_after(model, cuts)
    stages = build_stages(model, positions)
    assert cut_after(model, [stage.layers[-1] for stage in stages[:-1]]) == positions


def test_stages_of_a_model_without_module_names_can_be_cut_again(make_model):
    def build(emit, x, w):
        return op.exp(emit(op.tanh(emit(op.multiply(x, w)))))

    model = make_model(build, inputs=[X], parameters=WEIGHT, training=False)
    positions = cut_between(layers_of(model), [1, 2])
    stages = build_stages(model, positions)
    assert cut_after(model, [stage.layers[-1] for stage in stages[:-1]]) == positions


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["h.9"], UnknownNameError, r"no module 'h.9'.*transformer\.h\.\d"),
        (["h.33333"], UnknownNameError, r"choose from"),
        (["ln_1"], UnknownNameError, r"4 modules 'ln_1'"),
        (["lm_head", "loss"], TunerError, r"nothing runs after 'loss'"),
        (["h.1", "layer:1"], TunerError, r"same place"),
    ],
)
def test_cuts_that_mean_no_place_are_refused(names, error, message):
    with pytest.raises(error, match=message):
        cut_after(load_model("gpt2:tiny", training=True), names)


def test_a_module_that_runs_in_several_places_is_no_place_to_cut(model_of_paths):
    with pytest.raises(TunerError, match="'shared' runs in several places, with 'other' between"):
        cut_after(model_of_paths(["shared", "other", "shared", "end"]), ["shared"])


def test_each_run_of_a_shared_module_is_a_layer_of_its_own(model_of_paths):
    model = model_of_paths(["shared", "other", "shared", "end"])
    layers = layers_of(model)
    assert [layer.name for layer in layers] == ["shared#1", "other", "shared#2", "end"]
    assert cut_after(model, ["shared#1"]) == cut_between(layers, [1])
