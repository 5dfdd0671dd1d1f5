"""Cuts for placements beside every possible cut, and branches of real models beside the uncut model."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_in_torch import run_in_torch
from tvm import relax
from tvm.relax import op

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.frontend.model import InputSpec
from tuner.stages import build_stages, check_gradients, cut_between, layers_of
from tuner.stages.placed_stages import LayerCosts, PlacedStages, can_place, choose_placed_cuts, layer_reads

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

TOWERS = PlacedStages(((0,), (1,), (2,), (3,), (0, 1, 2, 3)), ((), (0,), (), (2,), (1, 3)))
PLACEMENTS = (
    TOWERS,
    PlacedStages(((0,), (1,), (0, 1)), ((), (), (0, 1))),
    PlacedStages(((0,), (1,), (0,)), ((), (0,), (0, 1))),
    PlacedStages.chain([(0, 1), (0,), (1,), (0, 1)]),
    PlacedStages.chain([(0,), (1,), (0, 1)]),
)


def best_of_all(placed, layers, fixed):
    """Try every cut: the least (slowest stage, sum of squares), or None."""
    num_layers, num_stages = len(layers.names), len(placed.devices)
    found = []
    for cuts in itertools.combinations(range(1, num_layers), num_stages - 1):
        borders = (0, *cuts, num_layers)
        stage_of = [stage for stage in range(num_stages) for _ in range(borders[stage], borders[stage + 1])]
        held = [
            [layer for layer in range(num_layers) if stage_of[layer] == stage] for stage in range(num_stages)
        ]
        goes = all(placed.is_reachable(stage_of[source], stage_of[target]) for source, target in layers.reads)
        if not goes or any(held[stage] != [layer] for stage, layer in fixed.items()):
            continue
        costs = [
            sum(layers.costs_us[layer] for layer in own) / len(placed.devices[stage])
            for stage, own in enumerate(held)
        ]
        sizes = [
            sum(-(-layers.memory_bytes[layer] // len(placed.devices[stage])) for layer in own)
            for stage, own in enumerate(held)
        ]
        if max(sizes) <= (layers.memory_limit_bytes or math.inf):
            found.append((max(costs), sum(cost**2 for cost in costs)))
    return min(found, default=None)


@settings(max_examples=150, deadline=None)
@given(placed=st.sampled_from(PLACEMENTS), data=st.data())
def test_cuts_are_the_best_of_all_that_the_data_allow(placed, data):
    num_layers = data.draw(st.integers(len(placed.devices), 8))
    pairs = st.tuples(st.integers(0, num_layers - 1), st.integers(0, num_layers - 1))
    layers = LayerCosts(
        names=tuple(f"layer {index}" for index in range(num_layers)),
        costs_us=tuple(data.draw(st.lists(st.integers(1, 9), min_size=num_layers, max_size=num_layers))),
        memory_bytes=tuple(data.draw(st.lists(st.integers(1, 9), min_size=num_layers, max_size=num_layers))),
        reads=frozenset(pair for pair in data.draw(st.lists(pairs, max_size=6)) if pair[0] < pair[1]),
        memory_limit_bytes=data.draw(st.sampled_from([None, 12, 20])),
    )
    fixed = {}
    if data.draw(st.booleans()):
        fixed = {stage: data.draw(st.integers(0, num_layers - 1)) for stage in placed.divided[:1]}
    expected = best_of_all(placed, layers, fixed)
    if expected is None:
        with pytest.raises(TunerError):
            choose_placed_cuts(placed, layers, fixed=fixed)
        return
    cuts = choose_placed_cuts(placed, layers, fixed=fixed)
    assert can_place(placed, layers, fixed)
    borders = (0, *cuts, num_layers)
    costs = [
        sum(layers.costs_us[start:stop]) / len(devices)
        for (start, stop), devices in zip(itertools.pairwise(borders), placed.devices, strict=True)
    ]
    assert (max(costs), sum(cost**2 for cost in costs)) == pytest.approx(expected)


def costs_of(model, layers):
    return LayerCosts(
        names=tuple(layer.name for layer in layers),
        costs_us=(1.0,) * len(layers),
        memory_bytes=(1,) * len(layers),
        reads=layer_reads(model, layers),
    )


def test_two_towers_are_branches_with_the_uncut_models_gradients():
    model = load_model("flava:tiny", training=True)
    layers = layers_of(model, at_branches=True)
    # The layer that ends the first tower and begins the second is divided, and where both are joined.
    assert len(layers) == len(layers_of(model)) + 2
    positions = cut_between(layers, choose_placed_cuts(TOWERS, costs_of(model, layers)))
    stages = build_stages(model, positions, TOWERS.before)
    assert [stage.sources for stage in stages] == [(), (0,), (), (2,), (1, 3)]
    assert not any(stage.relayed for stage in stages)
    assert stages[1].layers[-1] == "image_model.encoder.norm+image_to_mm_projection"
    assert stages[2].layers[0].startswith("text_model.word_embeddings")
    found = check_gradients(model, stages, seed=0, run=run_in_torch)
    assert found.relative_error < 1e-5, found


def test_a_model_without_branches_is_told_so():
    model = load_model("gpt2:tiny", training=True)
    layers = layers_of(model, at_branches=True)
    assert layers == layers_of(model)
    with pytest.raises(TunerError, match="the model has no such branches"):
        choose_placed_cuts(TOWERS, costs_of(model, layers))
    with pytest.raises(TunerError, match="stage 2 reads what stage 1 makes, and the placement has no way"):
        build_stages(model, cut_between(layers, (1, 2, 3, 4)), TOWERS.before)


def forked_model(make_model):
    """What the first layer makes is read by both branches, and by the stage where they meet."""

    def build(emit, x, w, v):
        first = emit(op.multiply(x, w), "0")
        left = emit(op.exp(first), "1")
        right = emit(op.multiply(emit(op.sin(first), "2"), v), "2")
        return op.sum(emit(op.multiply(emit(op.multiply(left, right), "3"), first), "3"))

    shape = ((2, 4), "float32")
    inputs = [InputSpec(name="x", shape=shape[0], dtype=shape[1])]
    return make_model(build, inputs=inputs, parameters={"w": shape, "v": shape})


def test_a_tensor_that_forks_has_the_sum_of_the_branches_gradients(make_model):
    model = forked_model(make_model)
    placed = PlacedStages(((0,), (1,), (2,), (0,)), ((), (0,), (0,), (1, 2)))
    stages = build_stages(model, (1, 2, 4), placed.before)
    assert [stage.sources for stage in stages] == [(), (0,), (0,), (1, 1, 2)]
    assert stages[1].relayed == (stages[0].sent[0].name,)
    found = check_gradients(model, stages, seed=0, run=run_in_torch)
    assert found.relative_error < 1e-5, found

    def without_one(module, arrays):
        outputs = run_in_torch(module, arrays)
        is_second = module in (stages[2].backward.module, stages[2].backward_input.module)
        return [np.zeros_like(output) for output in outputs] if is_second else outputs

    assert check_gradients(model, stages, seed=0, run=without_one).relative_error > 0.01


def test_a_layer_is_not_divided_at_labels_that_are_shaped(make_model):
    """What begins anew without a product is no branch: the labels of a loss, say."""

    def build(emit, x, labels, w):
        logits = emit(op.matmul(emit(op.matmul(x, w), "0"), w), "1")
        rows = emit(op.reshape(labels, (4,)), "1")
        values = emit(op.nn.log_softmax(logits, axis=-1), "1")
        return op.nn.nll_loss(values, rows, reduction="mean")

    inputs = [
        InputSpec(name="x", shape=(4, 4), dtype="float32"),
        InputSpec(name="labels", shape=(2, 2), dtype="int64", high=4),
    ]
    model = make_model(build, inputs=inputs, parameters={"w": ((4, 4), "float32")})
    assert isinstance(model.module["main"], relax.Function)
    assert layers_of(model, at_branches=True) == layers_of(model)


@pytest.mark.parametrize(
    ("devices", "before", "message"),
    [
        (((0,),), ((), ()), "1 stages have 2 lists"),
        (((0,), (1,)), ((1,), ()), "stage 0 receives from"),
    ],
)
def test_stages_that_cannot_be_are_refused(devices, before, message):
    with pytest.raises(ValueError, match=message):
        PlacedStages(devices, before)
