"""Layers of real models divided by heads and columns: found without being told, and equal to the whole."""

import numpy as np
import pytest
from relax_in_torch import run_in_torch
from tvm.relax import op

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.shards.layouts import Split, split_axis
from tuner.shards.stage import shard_stages
from tuner.shards.tensor_parallel import tensor_parallel_layouts
from tuner.stages import build_stages, cut_between, layers_of

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def stages_of(name, *cuts):
    model = load_model(name, training=True)
    return build_stages(model, cut_between(layers_of(model), cuts))


def tensors_of(stage, seed=0):
    rng = np.random.default_rng(seed)
    tensors = {}
    for info in stage.forward.inputs:
        if "int" in info.dtype:
            tensors[info.name] = rng.integers(0, 2, info.shape).astype(info.dtype)
        else:
            tensors[info.name] = (rng.standard_normal(info.shape) * 0.3).astype(info.dtype)
    return tensors


def gradients_in(stage, seed=1):
    """Draw the gradients that come back of what a stage sends."""
    rng = np.random.default_rng(seed)
    known = {info.name for info in (*stage.forward.inputs, *stage.forward.outputs)}
    return {
        info.name: rng.standard_normal(info.shape).astype(info.dtype)
        for info in stage.backward.inputs
        if info.name not in known
    }


BLOCKS = {"gpt2:tiny": (1, 6), "mt5:tiny": (4, 11), "flava:tiny": (7, 10), "bert:tiny": (1, 10)}
"""Of each model a block, by number, and how many of its weights and biases are divided."""

OFTEN = {("gpt2:tiny", 3), ("mt5:tiny", 2)}
"""What the fast tests try: query, key and value of one product over unequal shards; attention over another
sequence, and a relative position bias."""


@pytest.mark.parametrize(
    ("model", "num_shards"),
    [
        pytest.param(model, count, marks=() if (model, count) in OFTEN else pytest.mark.slow)
        for model in BLOCKS
        for count in (2, 3, 4)
    ],
)
def test_a_block_is_divided_and_equals_the_whole(model, num_shards, run_sharded):
    """Four heads over three shards are two, one and one."""
    layer, divided = BLOCKS[model]
    count = len(layers_of(load_model(model, training=True)))
    stage = stages_of(model, *range(1, count))[layer]
    layouts = tensor_parallel_layouts(stage, {}, num_shards)
    assert sum(isinstance(layout, Split) for layout in layouts.values()) == divided
    sharded = shard_stages([stage], {0: num_shards})[stage.name]
    assert max(sharded.weight_bytes) < stage.weight_bytes * (0.6 if num_shards == 2 else 0.55)
    tensors = tensors_of(stage) | gradients_in(stage)
    found, _ = run_sharded(sharded, tensors, run_in_torch)
    known = dict(tensors)
    for function in (stage.forward, stage.backward):
        outputs = run_in_torch(function.module, [known[info.name] for info in function.inputs])
        known |= {info.name: np.asarray(value) for info, value in zip(function.outputs, outputs, strict=True)}
    compared = (*stage.outputs, *stage.backward.outputs)
    largest = max(float(np.abs(known[info.name]).max()) for info in compared)
    for info in compared:
        # What should be zero, such as the gradient of a key's bias, consists of rounding errors.
        scale = max(1e-2 * largest, float(np.abs(known[info.name]).max()))
        np.testing.assert_allclose(
            found[info.name] / scale, known[info.name] / scale, atol=2e-5, err_msg=info.name
        )


def test_query_key_and_value_of_one_product_are_divided_by_heads_each():
    stage = stages_of("gpt2:tiny", 1, 2)[1]
    layouts = tensor_parallel_layouts(stage, {}, 2)
    weight = "transformer.h.0.attn.c_attn.weight"
    assert layouts[weight] == split_axis(1, 192, 2, unit=16, sections=3)
    assert layouts["transformer.h.0.attn.c_proj.weight"] == split_axis(0, 64, 2, unit=16)


def test_heads_that_are_too_few_leave_attention_whole():
    layouts = tensor_parallel_layouts(stages_of("gpt2:tiny", 1, 2)[1], {}, 5)
    assert [name for name in layouts if name.endswith("weight")] == [
        "transformer.h.0.mlp.c_fc.weight",
        "transformer.h.0.mlp.c_proj.weight",
    ]


def test_what_has_nothing_to_divide_is_refused(weighted):
    (stage,) = build_stages(weighted(op.tanh, [(4, 4)]), ())
    with pytest.raises(TunerError, match="look up no words, and have no feed-forward"):
        shard_stages([stage], {0: 2})
