"""Shards of GPT-2 tiny's head on this machine: measured once each, and equal to the uncut head in torch."""

from dataclasses import replace

import numpy as np
import pytest
from planned_models import TWO_TOWERS, UNEVEN_TOWERS
from relax_in_torch import run_in_torch
from tvm import relax

from tessel.tuned_model.layout_choice import profile_of_layers
from tessel.tuned_model.model_figures import devices_of, devices_of_stages
from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.frontend.model import InputSpec, Model
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.plan import Figure, Link, ModelPlan
from tuner.shards.stage import shard_stage, shard_stages
from tuner.shards.vocabulary import vocabulary_layouts
from tuner.stages import build_stages, cut_between, draw_tensors, layers_of
from tuner.stages.placed_stages import PlacedStages
from tuner.tuning.session import SessionSettings, start_session
from tuner.tuning.stage_costs.measure_layers import measure_layers
from tuner.tuning.stage_costs.measure_shards import MeasuredCollectives, MeasuredShards, ShardMeasurer
from tuner.tuning.stage_costs.measure_stages import measure_stages
from tuner.tuning.tune import TuningSettings, tune_placements

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('records')}/records.db"
    settings = SessionSettings(backend_names=("tvm",), num_threads=1)
    with start_session("cpu", settings, records_url=url) as session:
        yield session


@pytest.fixture(scope="module")
def model():
    return load_model("gpt2:tiny", training=True)


@pytest.fixture(scope="module")
def head(model):
    layers = layers_of(model)
    stages = build_stages(model, cut_between(layers, (1, len(layers) - 1)))
    return stages[-1], shard_stage(stages[-1], vocabulary_layouts((stages[0], stages[-1]), 2), 2)


def test_a_ring_all_reduce_takes_two_rounds_of_a_share_each():
    link = Link(bytes_per_s=1e09, latency_us=5.0)
    assert link.all_reduce_us(4000, 4) == pytest.approx(6 * (5 + 1))
    with pytest.raises(ValueError, match="give a bandwidth"):
        Link(bytes_per_s=0, latency_us=1.0)


def test_distinct_segments_are_measured_once_and_equal_the_uncut_head(session, model, head):
    stage, sharded = head
    measurer = ShardMeasurer(session, 1.0, Link(bytes_per_s=1e09, latency_us=10.0))
    figures = measurer.price(sharded.forward, "head.forward")
    assert len(figures.segments) == len(sharded.forward.segments)
    # 512 words are even over 2 shards, so both run the same programs.
    assert len(measurer.partitioned) == len(sharded.forward.segments)
    assert {figure.source for figure in figures.segments} == {"measured"}
    assert {figure.source for figure in figures.collectives} == {"given"}
    assert figures.total.source == "derived"
    parts = (*figures.segments, *figures.collectives)
    assert figures.total.latency_us == pytest.approx(sum(figure.latency_us for figure in parts))
    made = session.measurer.new_measurements
    again = measurer.price(sharded.forward, "head.forward")
    assert again == figures
    planned = MeasuredShards(stage=sharded, figures={"forward": figures}, bound_bytes=700).plan(
        stage.plan(dict.fromkeys(stage.functions(), Figure(latency_us=1e9, source="given")))
    )
    assert (planned.forward, planned.backward) == (figures.total, None)
    assert planned.weight_bytes < stage.weight_bytes
    assert planned.bound_bytes == 700
    assert session.measurer.new_measurements == made
    rng = np.random.default_rng(0)
    tensors = draw_tensors(model, rng=rng)
    inputs = [
        tensors[info.name] if info.name in tensors else rng.standard_normal(info.shape).astype(info.dtype)
        for info in stage.forward.inputs
    ]
    expected = run_in_torch(stage.forward.module, inputs)
    found = measurer.run_as_whole(sharded.forward, inputs)
    for info, value, reference in zip(stage.forward.outputs, found, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5, err_msg=info.name)


def test_what_was_not_priced_is_not_run(session, head):
    _, sharded = head
    measurer = ShardMeasurer(session, 1.0, Link(bytes_per_s=1e06, latency_us=0.0))
    arrays = [np.zeros(info.shape, info.dtype) for info in sharded.forward.inputs]
    with pytest.raises(TunerError, match="was not priced"):
        measurer.run_as_whole(sharded.forward, arrays)


WORDS, WIDTH, ROWS = 36, 8, 6


def small_language_model():
    """Write an embedding with a layer, two layers, and a head tied to the embedding: four layers."""
    types = [relax.TensorType((ROWS,), "int64")] * 2
    types += [relax.TensorType((WORDS, WIDTH), "float32")] + [relax.TensorType((WIDTH, WIDTH), "float32")] * 3
    names = ("tokens", "labels", "table", "w0", "w1", "w2")
    tokens, labels, table, *weights = map(relax.Var, names, types)
    builder = relax.BlockBuilder()
    with builder.function("main", [tokens, labels, table, *weights]):
        with builder.dataflow():
            x = builder.emit(relax.op.take(table, tokens, axis=0, mode="clip"))
            for weight in weights:
                x = builder.emit(relax.op.tanh(builder.emit(relax.op.matmul(x, weight))))
            logits = builder.emit(relax.op.matmul(x, builder.emit(relax.op.permute_dims(table, [1, 0]))))
            values = builder.emit(relax.op.nn.log_softmax(logits, axis=-1))
            loss = builder.emit_output(relax.op.nn.nll_loss(values, labels, reduction="mean"))
        builder.emit_func_output(loss)
    module = builder.get()
    return Model(
        name="small language model",
        module=module,
        inputs=tuple(
            InputSpec(name=name, shape=(ROWS,), dtype="int64", high=WORDS) for name in ("tokens", "labels")
        ),
        parameter_names=names[2:],
        module_paths=("",) * len(module["main"].body.blocks[0].bindings),
        training=True,
    )


@pytest.mark.slow  # it measures the stages of a placement
def test_the_ends_of_an_m_shape_are_divided_and_its_gradients_are_the_uncut_ones(session):
    link = Link(bytes_per_s=1e09, latency_us=10.0)
    measured = measure_stages(small_language_model(), session, num_stages=2, collectives=link)
    embedding, *chain, head = measured.stages
    assert [stage.shards for stage in chain] == [None, None]
    for stage in (embedding, head):
        assert stage.shards.num_shards == 2
        assert stage.shards.axes == {"table": 0}
        assert {stage.forward.source, stage.backward.source} == {"derived"}
    # 36 words are 18 on each device; the layer beside the table is whole on each.
    assert embedding.weight_bytes == 4 * WIDTH * (18 + WIDTH)
    # Forward: the rows of the table. Backward: nothing, since each shard adds to its own rows.
    assert embedding.shards.collective_us == {
        "forward": link.all_reduce_us(4 * ROWS * WIDTH, 2),
        "backward": 0,
    }
    assert set(head.shards.collective_us) == {"forward", "backward", "backward_input", "backward_weight"}
    assert {stage.forward.source for stage in chain} == {"measured"}
    # The loss and every gradient, the tied table's included, through the partitions that were chosen.
    assert measured.max_error is not None
    assert measured.max_error < 1e-4
    assert devices_of_stages(measured.stages) == ((0, 1), (0,), (1,), (0, 1))


@pytest.mark.slow  # tests/tuner/measuring/communication/test_all_reduce.py measures them
def test_all_reduces_are_measured_once_and_labelled(session):
    made = session.measurer.new_measurements
    small, large = MeasuredCollectives(session).all_reduces([4, 1 << 20], 2)
    assert {small.source, large.source} == {"measured"}
    assert min(small.latency_us, large.latency_us) > 0
    assert session.measurer.new_measurements == made + 2
    assert MeasuredCollectives(session).all_reduces([1 << 20, 4], 2) == [large, small]
    assert session.measurer.new_measurements == made + 2


@pytest.mark.slow  # it measures layers, whole and divided
def test_layers_are_measured_by_themselves_and_divided(session):
    link = Link(bytes_per_s=1e09, latency_us=10.0)
    found = measure_layers(small_language_model(), session, shard_counts=(2, 99), collectives=link, batch=3)
    first, *inner, last = found.layers
    assert (len(found.layers), found.batch, found.training) == (4, 3, True)
    assert first.backward_input is None
    # Layers of equal structure are measured once.
    assert {layer.forward.record_ids for layer in inner} == {inner[0].forward.record_ids}
    # 36 words make no 99 shards: that is said, and those over two devices are there.
    assert set(found.shards) == {2}
    assert "fewer than 99 shards" in found.undivided
    divided_first, divided_last = found.shards[2]
    assert divided_last.shards is not None
    # Their figures are of shards and collectives, not of the whole layers.
    assert {layer.forward.source for layer in (first, last)} == {"measured"}
    for shards in (divided_first, divided_last):
        assert {shards.forward.source, shards.backward.source} == {"derived"}
    assert divided_last.weight_bytes < last.weight_bytes
    # What the planner weighs is what a shard takes, with its collectives, not the whole layer.
    assert divided_last.forward.source == "derived"
    assert divided_last.forward.latency_us > divided_last.shards.collective_us["forward"] > 0
    assert divided_first.weight_bytes < first.weight_bytes
    assert [{(member.name, member.stage) for member in group} for group in found.tied] == [
        {("table", 0), ("table", 3)}
    ]
    assert found.update is not None
    assert found.update.source == "measured"
    made = session.measurer.new_measurements
    assert measure_layers(small_language_model(), session, shard_counts=(2,), collectives=link).shards[2]
    assert session.measurer.new_measurements == made


@pytest.mark.slow  # it measures the stages of two placements
def test_each_placement_of_a_model_is_tuned_or_says_why_not(session):
    chain = {"num_stages": 2, "hop_us": 3.0, "link": Link(bytes_per_s=1e06, latency_us=3.0)}
    found = tune_placements(
        small_language_model(),
        session,
        {
            "mshape": TuningSettings(**chain, divides_ends=True),
            "there and back": TuningSettings(**{**chain, "num_stages": 4}, stage_devices=(0, 1, 1, 0)),
            "too long": TuningSettings(**{**chain, "num_stages": 9}),
        },
    )
    m_shape = found["mshape"]
    assert devices_of(m_shape) == ((0, 1), (0,), (1,), (0, 1))
    assert m_shape.stages[0].shards.collective_source == "given"
    # The table is 36 words, 18 of them on each device, and it is held once for both ends.
    assert m_shape.tied_bytes == (4 * WIDTH * 18,)
    back = found["there and back"]
    assert devices_of(back) == ((0,), (1,), (1,), (0,))
    boundary_us = 3.0 + 4 * ROWS * WIDTH
    assert back.hop_latency_us == (boundary_us, 0.0, boundary_us)
    assert back.tied_bytes == (4 * WIDTH * 36,)
    assert isinstance(found["too long"], TunerError)


K_SHAPE = PlacedStages(((0,), (1,), (0, 1)), ((), (), (0, 1)))


@pytest.mark.slow  # it measures stages and layers, whole and divided
def test_branches_that_meet_in_a_divided_stage_are_tuned(session):
    model = load_model(TWO_TOWERS, training=True)
    link = Link(bytes_per_s=1e06, latency_us=3.0)
    chain = {"hop_us": 3.0, "link": link}
    found = tune_placements(model, session, {"kshape": TuningSettings(num_stages=3, placed=K_SHAPE, **chain)})
    plan = found["kshape"]
    assert isinstance(plan, ModelPlan), plan
    assert devices_of(plan) == ((0,), (1,), (0, 1))
    assert plan.stages_before == ((), (), (0, 1))
    assert len(plan.cut_positions) == 2
    assert plan.max_gradient_error < 1e-4
    # Each of the joint stage's hops comes from a device that holds it, and goes to the other.
    sent_us = [3.0 + stage.boundary_bytes for stage in plan.stages[:2]]
    assert list(plan.hop_latency_us) == sent_us
    joint = plan.stages[2]
    assert set(joint.shards.axes) == {"joint.0.weight", "joint.0.bias", "joint.2.weight"}
    assert joint.forward.latency_us > joint.shards.collective_us["forward"] > 0
    layers = measure_layers(model, session, tensor_counts=(2, 99), collectives=link)
    assert set(layers.tensor_parallel) == {2}
    divided = layers.tensor_parallel[2]
    assert [stage.layers for stage in divided] == [stage.layers for stage in layers.layers]
    assert sum(stage.weight_bytes for stage in divided) < sum(stage.weight_bytes for stage in layers.layers)


@pytest.mark.slow  # it measures layers, and the stages of three placements
def test_towers_are_found_in_measured_layers_and_cut_where_one_begins_within_a_layer(session):
    model = load_model(UNEVEN_TOWERS, training=True)
    link = Link(bytes_per_s=1e06, latency_us=3.0)
    layers = measure_layers(model, session, tensor_counts=(2,), collectives=link)
    assert len(layers.layers) > len(layers_of(model))
    branches = profile_of_layers(layers).branches
    assert layers.layers[branches.second - 1].parameters == ("left_out.weight", "left_out.bias")
    assert layers.layers[branches.second].parameters == ("words.weight",)
    second, joined = branches.second, branches.joined
    settings = TuningSettings(num_stages=3, placed=K_SHAPE, hop_us=3.0, link=link)
    plans = tune_placements(
        model,
        session,
        {
            "kshape": replace(settings, layer_cuts=(second, joined)),
            "within": replace(settings, num_stages=2, placed=None, layer_cuts=(second,)),
            "between": replace(settings, num_stages=2, placed=None, layer_cuts=(1,)),
        },
    )
    assert all(isinstance(plan, ModelPlan) for plan in plans.values()), plans
    assert all(plan.max_gradient_error < 1e-4 for plan in plans.values())
    whole = layers_of(model, at_branches=True)
    assert plans["kshape"].cut_positions == (whole[second].start, whole[joined].start)
    # Names of layers say where a cut is, but for one within a layer.
    assert plans["within"].cut_positions == (whole[second].start,)
    assert plans["between"].cut_positions == ()


@pytest.mark.slow
def test_equal_layers_are_divided_once_and_have_equal_figures(session, model):
    link = Link(bytes_per_s=1e09, latency_us=5.0)
    layers = measure_layers(model, session, tensor_counts=(2,), collectives=link)
    stages = build_stages(model, cut_between(layers_of(model), range(1, len(layers.layers))))
    measurer = ShardMeasurer(session, measure_launch_penalty(session.measurer).latency_us, link)
    sharded = shard_stages(stages, dict.fromkeys(range(len(stages)), 2))
    for stage, plan, found in zip(stages, layers.layers, layers.tensor_parallel[2], strict=True):
        assert found == measurer.price_stage(sharded[stage.name], stage.name).plan(plan)
    assert layers.tensor_parallel[2][2].shards.axes["transformer.h.1.attn.c_proj.weight"] == 0


def test_layers_with_words_must_be_as_many_as_are_divided(session):
    every, link = (0, 1), Link(bytes_per_s=1e06, latency_us=0.0)
    placed = PlacedStages.chain([every, (0,), every, (1,), every])
    with pytest.raises(TunerError, match=r"the placement divides 3 layers that hold words .* has 2"):
        measure_stages(
            load_model("gpt2:tiny", training=True),
            session,
            placed=replace(placed, needs_words=True),
            collectives=link,
        )
    with pytest.raises(TunerError, match="leave out cuts"):
        measure_stages(small_language_model(), session, cuts=("x",), placed=placed, collectives=link)


def test_a_model_without_words_takes_no_m_shape(session):
    link = Link(bytes_per_s=1e06, latency_us=0.0)
    with pytest.raises(TunerError, match=r"mlp:tiny takes no m shape: its first and last layer, .* no words"):
        measure_stages(load_model("mlp:tiny", training=True), session, num_stages=2, collectives=link)


def test_a_model_too_short_for_an_m_shape_is_refused(session):
    link = Link(bytes_per_s=1e06, latency_us=0.0)
    with pytest.raises(TunerError, match="needs at least 2, and a layer for each between"):
        measure_stages(small_language_model(), session, num_stages=5, collectives=link)
    with pytest.raises(TunerError, match="leave out cuts"):
        measure_stages(small_language_model(), session, num_stages=2, cuts=("x",), collectives=link)
