"""Sharded stages equal the uncut stage, the vocabulary of a language model first; faults are caught."""

import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_in_torch import run_in_torch
from torch.nn import functional
from tvm.relax import op

from tuner.frontend.model import InputSpec
from tuner.graph.structure import Structure
from tuner.shards.layouts import Replicated, split_axis
from tuner.shards.stage import shard_stage
from tuner.stages import build_stages

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def tied_language_model(words, width, rows):
    """Write an embedding, a layer between, and a head tied to the embedding, with cross-entropy."""
    inputs = [
        InputSpec(name="tokens", shape=(rows,), dtype="int64", high=words),
        InputSpec(name="labels", shape=(rows,), dtype="int64", high=words),
    ]

    def build(tokens, labels, table, middle):
        x = op.tanh(op.matmul(op.take(table, tokens, axis=0, mode="clip"), middle))
        logits = op.matmul(x, op.permute_dims(table, [1, 0]))
        return op.nn.nll_loss(op.nn.log_softmax(logits, axis=-1), labels, reduction="mean")

    return inputs, build, {"table": (words, width), "middle": (width, width)}


def draw(words, width, rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "tokens": rng.integers(0, words, rows),
        "labels": rng.integers(0, words, rows),
        "table": rng.standard_normal((words, width)),
        "middle": rng.standard_normal((width, width)),
    }


def expected(tensors):
    table, middle = (torch.from_numpy(tensors[name]).requires_grad_() for name in ("table", "middle"))
    tokens, labels = (torch.from_numpy(tensors[name]) for name in ("tokens", "labels"))
    loss = functional.cross_entropy(
        torch.tanh(functional.embedding(tokens, table) @ middle) @ table.T, labels
    )
    loss.backward()
    return {"loss": loss.item(), "table.grad": table.grad.numpy(), "middle.grad": middle.grad.numpy()}


def sharded_model(trained, words, width, rows, num_shards):
    inputs, build, parameters = tied_language_model(words, width, rows)
    (stage,) = build_stages(trained(build, inputs=inputs, parameters=parameters), ())
    return shard_stage(stage, {"table": split_axis(0, words, num_shards)}, num_shards)


def assert_equal(found, reference):
    for name, value in reference.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_tied_vocabulary_over_any_shards_equals_the_uncut_model(data, trained, run_sharded):
    num_shards = data.draw(st.sampled_from([2, 3, 4, 8]))
    words = data.draw(st.integers(num_shards, 40))
    width, rows = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    tensors = draw(words, width, rows, seed=data.draw(st.integers(0, 99)))
    stage = sharded_model(trained, words, width, rows, num_shards)
    found, own = run_sharded(stage, tensors, run_in_torch)
    assert_equal(found, expected(tensors))
    # What is whole on every shard is the same there.
    for name, layout in stage.layouts.items():
        if layout == Replicated() and name in own[0]:
            assert all(np.array_equal(own[0][name], each[name]) for each in own), name


def test_full_logits_are_never_exchanged(trained):
    stage = sharded_model(trained, 40, 3, 5, 4)
    exchanged = [each for each in (*stage.forward.rounds, *stage.backward.rounds) if each]
    largest = max(each.result.num_bytes for collectives in exchanged for each in collectives)
    assert largest == 5 * 3 * 8  # (rows, width), and not (rows, words)
    kinds = [[each.kind for each in collectives] for collectives in stage.forward.rounds if collectives]
    assert kinds == [["sum"], ["max"], ["sum"], ["sum"]]  # rows of the table, maximum, sum, loss


def test_a_collective_that_is_dropped_is_caught(trained, run_sharded):
    tensors = draw(19, 3, 5)
    stage = sharded_model(trained, 19, 3, 5, 3)
    reference = expected(tensors)
    for index, collectives in enumerate(stage.forward.rounds):
        for each in collectives:
            # The shard keeps its own term in the place of the whole.
            kept = tuple(other for other in collectives if other is not each)
            broken = list(stage.forward.rounds)
            broken[index] = kept
            forward = dataclasses.replace(stage.forward, rounds=tuple(broken))
            forward = _with_terms_as_wholes(forward, each)
            faulty = dataclasses.replace(stage, forward=forward)
            found, own = run_sharded(faulty, tensors, run_in_torch)
            # A loss that is not summed is wrong on every shard; what is wrong on some shows in their losses.
            losses = [each["loss"] for each in own]
            with pytest.raises(AssertionError):
                assert_equal({**found, "loss": losses}, {**reference, "loss": [reference["loss"]] * 3})


def _with_terms_as_wholes(function, collective):
    """Let each shard take its term for the whole, as where a rank forgets to reduce."""
    segments = tuple(
        tuple(
            dataclasses.replace(
                part,
                outputs=tuple(
                    msgspec.structs.replace(info, name=collective.result.name)
                    if info.name == collective.source
                    else info
                    for info in part.outputs
                ),
            )
            for part in segment
        )
        for segment in function.segments
    )
    return dataclasses.replace(function, segments=segments)


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_an_offset_that_is_wrong_by_one_is_caught(which, trained, run_sharded):
    tensors = draw(19, 3, 5)
    stage = sharded_model(trained, 19, 3, 5, 3)
    function = getattr(stage, which)
    moved = tuple(
        dataclasses.replace(offset, values=tuple(value + 1 for value in offset.values))
        for offset in function.offsets
    )
    assert moved
    faulty = dataclasses.replace(stage, **{which: dataclasses.replace(function, offsets=moved)})
    found, _ = run_sharded(faulty, tensors, run_in_torch)
    with pytest.raises(AssertionError):
        assert_equal(found, expected(tensors))


def test_shards_of_equal_extent_are_one_program(trained):
    def count(words):
        stage = sharded_model(trained, words, 3, 5, 4)
        return [
            len({Structure(part.module) for part in segment})
            for function in (stage.forward, stage.backward)
            for segment in function.segments
        ]

    assert set(count(40)) == {1}
    assert max(count(41)) == 2


def test_each_shard_holds_its_part_of_the_memory(trained):
    stage = sharded_model(trained, 19, 3, 5, 4)
    assert stage.weight_bytes == tuple(8 * 3 * (extent + 3) for extent in (5, 5, 5, 4))
    assert stage.layouts["table.grad"] == split_axis(0, 19, 4)
    # log_softmax (rows, words) is what the backward keeps most of.
    assert stage.saved_bytes[0] - stage.saved_bytes[3] == 8 * 5


def test_the_built_program_equals_the_uncut_one(trained, run_sharded, run):
    """Through TVM's build, in single precision."""
    inputs, build, parameters = tied_language_model(19, 8, 5)
    (stage,) = build_stages(trained(build, inputs=inputs, parameters=parameters, dtype="float32"), ())
    sharded = shard_stage(stage, {"table": split_axis(0, 19, 2)}, 2)
    tensors = draw(19, 8, 5)
    single = {
        name: value.astype("float32") if value.dtype == np.float64 else value
        for name, value in tensors.items()
    }
    found, _ = run_sharded(sharded, single, run)
    for name, value in expected(tensors).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_weights_split_by_heads_and_by_columns_give_the_halves_of_the_backward(trained, run_sharded):
    """The split backward equals the joint one, with what the first half hands on left where it lies."""

    model = trained(
        lambda data, first, a, b: op.sum(op.matmul(op.nn.gelu(op.matmul(op.matmul(data, first), a)), b)),
        inputs=[InputSpec(name="data", shape=(3, 4), dtype="float64")],
        parameters={"first": (4, 6), "a": (6, 10), "b": (10, 2)},
    )
    stages = build_stages(model, (1,))
    layouts = {"a": split_axis(1, 10, 3), "b": split_axis(0, 10, 3)}
    sharded = shard_stage(stages[1], layouts, 3)
    rng = np.random.default_rng(0)
    tensors = {info.name: rng.standard_normal(info.shape) for info in stages[1].forward.inputs}
    joint, _ = run_sharded(sharded, tensors, run_in_torch)
    halves, _ = run_sharded(sharded, tensors, run_in_torch, split=True)
    for name in joint:
        np.testing.assert_allclose(halves[name], joint[name], rtol=1e-12, err_msg=name)
