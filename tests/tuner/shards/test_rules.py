"""One contract for every rule: all shards together equal the whole, forward and every gradient.

The whole is torch's, by autograd of a function written in torch; shards are evaluated in torch binding by
binding (tests/oracles/relax_in_torch.py), so neither TVM's build nor our lowering is in either.
"""

import dataclasses

import numpy as np
import pytest
import torch
import tvm
from relax_in_torch import run_in_torch
from torch.nn import functional
from tvm import relax
from tvm.relax import op

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import local_shape, split_axis
from tuner.shards.rules.elementwise import ADDITION
from tuner.shards.rules.joining import _merged
from tuner.shards.rules.operator_rules import RULES
from tuner.shards.rules.rule import shape_of
from tuner.shards.stage import shard_stage
from tuner.shards.writer import ShardWriter
from tuner.stages import build_stages

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

EVEN, UNEVEN = 24, 19
"""Extents of the axis that is split: every number of shards divides the first, none the second."""

NUM_SHARDS = (2, 3, 4, 8)

FEW = {EVEN: (4,), UNEVEN: (2, 8)}
"""What is tried always, by extent; the rest is slow."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, the same in torch, its parameters' shapes by the extent, and which axes are split.

    A split is (axis, unit, sections), `split_axis`'s arguments.
    """

    relax: object
    torch: object
    shapes: object
    splits: dict


def unary(function, in_torch):
    return Case(function, in_torch, lambda n: [(3, n)], {0: (1, 1, 1)})


def binary(function, in_torch):
    return Case(function, in_torch, lambda n: [(3, n), (3, n)], {0: (1, 1, 1), 1: (1, 1, 1)})


def const(value):
    return relax.const(value, "float64")


def indices(values):
    return relax.const(values, "int64"), torch.tensor(values)


def relax_float(value):
    return tvm.tirx.FloatImm("float32", value)


def positive(x):
    return op.add(op.square(x), const(1.0))


TOKENS = [[7, 0, 18], [3, 7, 12]]
"""Indices into an axis of either extent, one of them twice."""

LABELS = [4, -100, 18, 0, 17]
"""Classes of either extent; one is not counted."""


def choose(compare):
    return lambda x, y: op.where(compare(x, y), x, op.multiply(y, const(2.0)))


def choose_torch(compare):
    return lambda x, y: torch.where(compare(x, y), x, 2 * y)


def causal(x):
    return op.add(x, relax.const(np.triu(np.full((5, 5), -1e9), k=1), "float64"))


def heads(x):
    """Turn (positions, heads) into (samples, positions, heads, depth)."""
    return op.expand_dims(x, [0, 3])


def qkv_attention(x, w, o):
    """Attention of heads of depth 2, by products, as GPT-2 has it."""
    heads = int(w.ty.shape[1]) // 6

    def split_heads(y):
        return op.permute_dims(op.reshape(y, (5, heads, 2)), [1, 0, 2])

    parts = op.split(op.matmul(x, w), 3, axis=-1)
    query, key, value = (split_heads(relax.TupleGetItem(parts, at)) for at in range(3))
    scores = op.nn.softmax(causal(op.matmul(query, op.permute_dims(key, [0, 2, 1]))), axis=-1)
    mixed = op.reshape(op.permute_dims(op.matmul(scores, value), [1, 0, 2]), (5, heads * 2))
    return op.matmul(mixed, o)


def qkv_attention_torch(x, w, o):
    query, key, value = (each.reshape(5, -1, 2).transpose(0, 1) for each in (x @ w).chunk(3, dim=-1))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
    return mixed.transpose(0, 1).reshape(5, -1) @ o


def separate_products(x, q, k, v):
    """Three products of one input: the input's gradient is a sum of three terms."""
    return op.multiply(op.add(op.matmul(x, q), op.matmul(x, k)), op.matmul(x, v))


def cross_entropy(reduction):
    def function(x, table):
        logits = op.matmul(x, op.permute_dims(table, [1, 0]))
        loss = op.nn.nll_loss(
            op.nn.log_softmax(logits, axis=-1), indices(LABELS)[0], reduction=reduction, ignore_index=-100
        )
        return op.reshape(loss, (1,)) if reduction != "none" else loss

    def in_torch(x, table):
        found = functional.cross_entropy(x @ table.T, torch.tensor(LABELS), reduction=reduction)
        return found.reshape(-1)

    return Case(function, in_torch, lambda n: [(5, 4), (n, 4)], {1: (0, 1, 1)})


CASES = {
    "abs": unary(op.abs, torch.abs),
    "ceil": unary(op.ceil, torch.ceil),
    "cos": unary(op.cos, torch.cos),
    "erf": unary(op.erf, torch.erf),
    "exp": unary(op.exp, torch.exp),
    "floor": unary(op.floor, torch.floor),
    "log": unary(lambda x: op.log(positive(x)), lambda x: torch.log(x * x + 1)),
    "negative": unary(op.negative, torch.neg),
    "nn.gelu": unary(op.nn.gelu, functional.gelu),
    "nn.gelu_tanh": unary(op.nn.gelu_tanh, lambda x: functional.gelu(x, approximate="tanh")),
    "nn.leakyrelu": unary(lambda x: op.nn.leakyrelu(x, 0.1), lambda x: functional.leaky_relu(x, 0.1)),
    "nn.relu": unary(op.nn.relu, torch.relu),
    "nn.silu": unary(op.nn.silu, functional.silu),
    "nn.softplus": unary(lambda x: op.nn.softplus(x, beta=2.0), lambda x: functional.softplus(x, 2.0)),
    "round": unary(op.round, torch.round),
    "rsqrt": unary(lambda x: op.rsqrt(positive(x)), lambda x: torch.rsqrt(x * x + 1)),
    "sigmoid": unary(op.sigmoid, torch.sigmoid),
    "sign": unary(op.sign, torch.sign),
    "sin": unary(op.sin, torch.sin),
    "sqrt": unary(lambda x: op.sqrt(positive(x)), lambda x: torch.sqrt(x * x + 1)),
    "square": unary(op.square, torch.square),
    "tanh": unary(op.tanh, torch.tanh),
    "clip": unary(lambda x: op.clip(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5)),
    "astype": unary(lambda x: op.astype(op.greater(x, const(0.0)), "float64"), lambda x: (x > 0).double()),
    "zeros_like": unary(lambda x: op.maximum(x, op.zeros_like(x)), torch.relu),
    "ones_like": unary(lambda x: op.maximum(x, op.ones_like(x)), lambda x: x.clamp(min=1.0)),
    "full_like": unary(lambda x: op.maximum(x, op.full_like(x, const(-0.3))), lambda x: x.clamp(min=-0.3)),
    "add": binary(op.add, torch.add),
    "divide": binary(lambda x, y: op.divide(x, positive(y)), lambda x, y: x / (y * y + 1)),
    "maximum": binary(op.maximum, torch.maximum),
    "minimum": binary(op.minimum, torch.minimum),
    "multiply": binary(op.multiply, torch.multiply),
    "power": binary(lambda x, y: op.power(positive(x), y), lambda x, y: (x * x + 1) ** y),
    "subtract": binary(op.subtract, torch.subtract),
    "equal": binary(choose(op.equal), choose_torch(torch.eq)),
    "not_equal": binary(choose(op.not_equal), choose_torch(torch.ne)),
    "less": binary(choose(op.less), choose_torch(torch.lt)),
    "less_equal": binary(choose(op.less_equal), choose_torch(torch.le)),
    "greater": binary(choose(op.greater), choose_torch(torch.gt)),
    "greater_equal": binary(choose(op.greater_equal), choose_torch(torch.ge)),
    "where": binary(
        choose(lambda x, y: op.logical_or(op.less(x, y), op.less(x, const(0.0)))),
        choose_torch(lambda x, y: (x < y) | (x < 0)),
    ),
    "logical_or": binary(
        choose(lambda x, y: op.logical_or(op.less(x, y), op.less(x, const(0.0)))),
        choose_torch(lambda x, y: (x < y) | (x < 0)),
    ),
    "logical_and": binary(
        choose(lambda x, y: op.logical_and(op.less(x, y), op.logical_not(op.less(x, const(0.0))))),
        choose_torch(lambda x, y: (x < y) & ~(x < 0)),
    ),
    "logical_not": binary(
        choose(lambda x, y: op.logical_not(op.less(x, y))), choose_torch(lambda x, y: ~(x < y))
    ),
    "add of a whole tensor and a row": Case(
        lambda x, y, b: op.add(op.add(x, y), b),
        lambda x, y, b: x + y + b,
        lambda n: [(3, n), (3, n), (n,)],
        {0: (1, 1, 1), 2: (0, 1, 1)},
    ),
    "multiply by a column": Case(op.multiply, torch.multiply, lambda n: [(3, n), (3, 1)], {0: (1, 1, 1)}),
    "matmul by columns": Case(op.matmul, torch.matmul, lambda n: [(2, 3, 4), (4, n)], {1: (1, 1, 1)}),
    "matmul over a split axis": Case(
        op.matmul, torch.matmul, lambda n: [(2, 3, n), (n, 5)], {0: (2, 1, 1), 1: (0, 1, 1)}
    ),
    "matmul over an axis split in one": Case(
        op.matmul, torch.matmul, lambda n: [(3, n), (n, 5)], {1: (0, 1, 1)}
    ),
    "matmul by rows": Case(op.matmul, torch.matmul, lambda n: [(n, 4), (4, 5)], {0: (0, 1, 1)}),
    "matmul of batches": Case(
        op.matmul, torch.matmul, lambda n: [(n, 3, 4), (n, 4, 5)], {0: (0, 1, 1), 1: (0, 1, 1)}
    ),
    "matmul of batches, one whole": Case(
        op.matmul, torch.matmul, lambda n: [(n, 3, 4), (n, 4, 5)], {1: (0, 1, 1)}
    ),
    "matmul by columns, then by rows": Case(
        lambda x, a, b, c: op.matmul(op.nn.gelu(op.add(op.matmul(x, a), b)), c),
        lambda x, a, b, c: functional.gelu(x @ a + b) @ c,
        lambda n: [(3, 4), (4, n), (n,), (n, 5)],
        {1: (1, 1, 1), 2: (0, 1, 1), 3: (0, 1, 1)},
    ),
    "add of terms": Case(
        separate_products,
        lambda x, q, k, v: (x @ q + x @ k) * (x @ v),
        lambda n: [(3, 4), (4, n), (4, n), (4, n)],
        {1: (1, 1, 1), 2: (1, 1, 1), 3: (1, 1, 1)},
    ),
    "subtract of terms": Case(
        lambda x, y, a, b: op.subtract(op.matmul(x, a), op.matmul(y, b)),
        lambda x, y, a, b: x @ a - y @ b,
        lambda n: [(3, n), (3, n), (n, 4), (n, 4)],
        {0: (1, 1, 1), 1: (1, 1, 1), 2: (0, 1, 1), 3: (0, 1, 1)},
    ),
    "multiply of terms": Case(
        lambda x, y, a, b: op.multiply(op.matmul(x, a), op.negative(op.matmul(y, b))),
        lambda x, y, a, b: (x @ a) * -(y @ b),
        lambda n: [(3, n), (3, n), (n, 4), (n, 4)],
        {0: (1, 1, 1), 1: (1, 1, 1), 2: (0, 1, 1), 3: (0, 1, 1)},
    ),
    "attention by products": Case(
        qkv_attention,
        qkv_attention_torch,
        lambda n: [(5, 4), (4, 6 * n), (2 * n, 4)],
        {1: (1, 2, 3), 2: (0, 2, 1)},
    ),
    "nn.attention": Case(
        lambda q, k, v: op.nn.attention(q, k, v, scale=relax_float(0.4)),
        lambda q, k, v: functional.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in (q, k, v)), scale=0.4
        ).transpose(1, 2),
        lambda n: [(2, 3, n, 4)] * 3,
        {0: (2, 1, 1), 1: (2, 1, 1), 2: (2, 1, 1)},
    ),
    "nn.attention_bias": Case(
        lambda q, k, v, b: op.nn.attention(q, k, v, b, scale=relax_float(0.4)),
        lambda q, k, v, b: functional.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in (q, k, v)), attn_mask=b, scale=0.4
        ).transpose(1, 2),
        lambda n: [(2, 3, n, 4)] * 3 + [(2, n, 3, 3)],
        {0: (2, 1, 1), 1: (2, 1, 1), 2: (2, 1, 1)},
    ),
    "nn.attention_bias of split samples": Case(
        lambda q, k, v, b: op.nn.attention(q, k, v, b, scale=relax_float(0.4)),
        lambda q, k, v, b: functional.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in (q, k, v)), attn_mask=b, scale=0.4
        ).transpose(1, 2),
        lambda n: [(n, 3, 2, 4)] * 3 + [(n, 2, 3, 3)],
        {0: (0, 1, 1), 1: (0, 1, 1), 2: (0, 1, 1)},
    ),
    "nn.attention_bias of split samples, shared": Case(
        lambda q, k, v, b: op.nn.attention(q, k, v, b, scale=relax_float(0.4)),
        lambda q, k, v, b: functional.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in (q, k, v)), attn_mask=b, scale=0.4
        ).transpose(1, 2),
        lambda n: [(n, 3, 2, 4)] * 3 + [(1, 2, 3, 3)],
        {0: (0, 1, 1), 1: (0, 1, 1), 2: (0, 1, 1)},
    ),
    "take of split rows": Case(
        lambda x: op.take(x, indices(TOKENS)[0], axis=0, mode="clip"),
        lambda x: functional.embedding(indices(TOKENS)[1], x),
        lambda n: [(n, 4)],
        {0: (0, 1, 1)},
    ),
    "grad.take_backward of split columns": Case(
        lambda x: op.take(x, indices([2, 0, 2])[0], axis=0),
        lambda x: x[torch.tensor([2, 0, 2])],
        lambda n: [(3, n)],
        {0: (1, 1, 1)},
    ),
    "take along the last axis": Case(
        lambda x: op.take(x, indices([2, 0, 2])[0], axis=1),
        lambda x: x[:, torch.tensor([2, 0, 2])],
        lambda n: [(n, 3, 2)],
        {0: (0, 1, 1)},
    ),
    "nn.softmax": unary(lambda x: op.nn.softmax(x, axis=-1), lambda x: torch.softmax(x, -1)),
    "nn.softmax of an axis in the middle": Case(
        lambda x: op.nn.softmax(x, axis=1),
        lambda x: torch.softmax(x, 1),
        lambda n: [(3, n, 2)],
        {0: (1, 1, 1)},
    ),
    "nn.softmax of split rows": unary(lambda x: op.nn.softmax(x, axis=0), lambda x: torch.softmax(x, 0)),
    "nn.log_softmax": unary(lambda x: op.nn.log_softmax(x, axis=-1), lambda x: torch.log_softmax(x, -1)),
    "nn.log_softmax of split rows": unary(
        lambda x: op.nn.log_softmax(x, axis=0), lambda x: torch.log_softmax(x, 0)
    ),
    "nn.nll_loss": cross_entropy("mean"),
    "nn.nll_loss, sum": cross_entropy("sum"),
    "grad.nll_loss_backward": cross_entropy("mean"),
    "sum": unary(lambda x: op.sum(x, axis=[1]), lambda x: x.sum(1)),
    "sum of all": unary(lambda x: op.reshape(op.sum(x), (1,)), lambda x: x.sum().reshape(1)),
    "sum of another axis": unary(lambda x: op.sum(x, axis=[0]), lambda x: x.sum(0)),
    "mean": unary(lambda x: op.mean(x, axis=[-1], keepdims=True), lambda x: x.mean(-1, keepdim=True)),
    "mean of another axis": unary(lambda x: op.mean(x, axis=[0]), lambda x: x.mean(0)),
    "max": unary(lambda x: op.max(x, axis=[1]), lambda x: x.amax(1)),
    "min": unary(lambda x: op.min(x, axis=[1], keepdims=True), lambda x: x.amin(1, keepdim=True)),
    "variance": unary(lambda x: op.variance(x, axis=[0]), lambda x: x.var(0, unbiased=False)),
    "collapse_sum_to": Case(
        op.multiply, torch.multiply, lambda n: [(2, 3, n), (n,)], {0: (2, 1, 1), 1: (0, 1, 1)}
    ),
    "collapse_sum_to over the split axis": Case(
        op.multiply, torch.multiply, lambda n: [(2, n, 3), (2, 1, 3)], {0: (1, 1, 1)}
    ),
    "reshape": unary(
        lambda x: op.reshape(x, (1, 3, int(x.ty.shape[1]), 1)), lambda x: x.reshape(1, 3, -1, 1)
    ),
    "reshape to heads": Case(
        lambda x: op.reshape(x, (3, int(x.ty.shape[1]) // 2, 2)),
        lambda x: x.reshape(3, -1, 2),
        lambda n: [(3, 2 * n)],
        {0: (1, 2, 1)},
    ),
    "flatten": Case(op.flatten, torch.flatten, lambda n: [(n, 2)], {0: (0, 1, 1)}),
    "nn.batch_flatten": Case(
        op.nn.batch_flatten, lambda x: x.flatten(1), lambda n: [(n, 2, 3)], {0: (0, 1, 1)}
    ),
    "squeeze": Case(lambda x: op.squeeze(x, [0]), lambda x: x[0], lambda n: [(1, 2, n)], {0: (2, 1, 1)}),
    "expand_dims": unary(lambda x: op.expand_dims(x, [0]), lambda x: x[None]),
    "expand_dims of split rows": Case(
        lambda x: op.expand_dims(x, [0]), lambda x: x[None], lambda n: [(n, 3)], {0: (0, 1, 1)}
    ),
    "permute_dims": Case(
        lambda x: op.permute_dims(x, [2, 0, 1]),
        lambda x: x.permute(2, 0, 1),
        lambda n: [(2, n, 3)],
        {0: (1, 1, 1)},
    ),
    "broadcast_to": unary(
        lambda x: op.broadcast_to(x, (2, 3, int(x.ty.shape[1]))), lambda x: x.expand(2, 3, -1)
    ),
    "nn.pad": unary(
        lambda x: op.tanh(op.nn.pad(x, [1, 2, 0, 0])), lambda x: torch.tanh(functional.pad(x, (0, 0, 1, 2)))
    ),
    "strided_slice, then a product": unary(
        lambda x: op.square(op.strided_slice(x, [0], [1], [3])), lambda x: x[1:3] ** 2
    ),
    "strided_slice behind the split axis": Case(
        lambda x: op.square(op.strided_slice(x, [-1, 1], [1, 0], [3, 4])),
        lambda x: x[:, :4, 1:3] ** 2,
        lambda n: [(n, 5, 4)],
        {0: (0, 1, 1)},
    ),
    "strided_slice": unary(lambda x: op.strided_slice(x, [0], [1], [3]), lambda x: x[1:3]),
    "split": unary(
        lambda x: (lambda parts: op.multiply(parts[0], op.add(parts[2], parts[0])))(op.split(x, 3, axis=0)),
        lambda x: x[0:1] * (x[2:3] + x[0:1]),
    ),
    "split along the split axis": Case(
        lambda x: (lambda parts: op.multiply(parts[0], parts[1]))(op.split(x, 2, axis=1)),
        lambda x: torch.multiply(*x.chunk(2, dim=1)),
        lambda n: [(3, 2 * n)],
        {0: (1, 1, 2)},
    ),
    "concat": Case(
        lambda x, y: op.concat([x, y, x], axis=1),
        lambda x, y: torch.cat([x, y, x], dim=1),
        lambda n: [(3, n), (3, n)],
        {0: (1, 1, 1), 1: (1, 1, 1)},
    ),
    "concat along another axis": Case(
        lambda x, y: op.concat([x, y], axis=0),
        lambda x, y: torch.cat([x, y], dim=0),
        lambda n: [(3, n), (2, n)],
        {0: (1, 1, 1)},
    ),
    "stack": Case(
        lambda x, y: op.stack([x, y], axis=1),
        lambda x, y: torch.stack([x, y], dim=1),
        lambda n: [(3, n), (3, n)],
        {0: (1, 1, 1)},
    ),
    "nn.layer_norm": Case(
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        lambda x, g, b: functional.layer_norm(x, (8,), g, b),
        lambda n: [(n, 8), (8,), (8,)],
        {0: (0, 1, 1)},
    ),
    "nn.rms_norm": Case(
        lambda x, g: op.nn.rms_norm(x, g, axes=[-1]),
        lambda x, g: functional.rms_norm(x, (8,), g, 1e-5),
        lambda n: [(n, 8), (8,)],
        {0: (0, 1, 1)},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("extent", "counts"),
    [
        *FEW.items(),
        *(pytest.param(extent, NUM_SHARDS, marks=pytest.mark.slow) for extent in FEW),
    ],
)
def test_shards_together_equal_the_whole(name, extent, counts, weighted, run_sharded):
    case = CASES[name]
    shapes = case.shapes(extent)
    (stage,) = build_stages(weighted(case.relax, shapes), ())
    tensors = draw(stage)
    for num_shards in counts:
        sharded = shard_stage(stage, layouts_of(case, shapes, num_shards), num_shards)
        found, _ = run_sharded(sharded, tensors, run_in_torch)
        assert_equal_to_torch(found, case.torch, tensors, len(shapes))


@pytest.mark.parametrize("name", CASES)
def test_every_part_has_the_shape_of_its_layout(name, weighted, monkeypatch):
    def bound(writer, make, layout, shape):
        value = emit(writer, make, layout, shape)
        for rank, part in enumerate(value.parts):
            assert shape_of(part) == local_shape(layout, value.shape, rank)
        return value

    emit = ShardWriter.emit
    monkeypatch.setattr(ShardWriter, "emit", bound)
    case = CASES[name]
    shapes = case.shapes(UNEVEN)
    (stage,) = build_stages(weighted(case.relax, shapes), ())
    shard_stage(stage, layouts_of(case, shapes, 3), 3)


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"p1": split_axis(0, 4, 2)}, "gradient is split along the indices"),
        ({"p0": split_axis(0, 3, 2), "p1": split_axis(1, 5, 2)}, "gradient and the table's rows are split"),
    ],
)
def test_a_gradient_that_is_split_unlike_its_table_is_refused(layouts, message, weighted):
    def function(table, y):
        return op.multiply(op.take(table, indices([2, 0, 2, 1])[0], axis=0), y)

    (stage,) = build_stages(weighted(function, [(3, 5), (4, 5)]), ())
    with pytest.raises(UnsupportedOperatorError, match=message):
        shard_stage(stage, layouts, 2)


@pytest.mark.parametrize(("rows", "kinds"), [(3, ["sum"]), (1, ["sum", "sum"])])
def test_terms_of_one_shape_are_added_before_they_are_summed(rows, kinds, weighted):
    def function(x, y, a, b):
        return op.square(op.add(op.matmul(x, a), op.matmul(y, b)))

    shapes = [(3, 12), (rows, 12), (12, 4), (12, 4)]
    (stage,) = build_stages(weighted(function, shapes, training=False), ())
    layouts = {f"p{at}": split_axis(axis, 12, 2) for at, axis in enumerate((1, 1, 0, 0))}
    rounds = shard_stage(stage, layouts, 2).forward.rounds
    assert [each.kind for collectives in rounds for each in collectives] == kinds


def test_runs_that_touch_are_one() -> None:
    assert _merged([(0, 2), (4, 2), (6, 3), (9, 1), (12, 1)]) == ((0, 2), (4, 6), (12, 1))


def test_what_is_reduced_already_is_no_term_again(weighted):
    """Both products are squared, and added: each is summed over the shards once, and their sum never."""

    def function(x, y, a, b):
        left, right = op.matmul(x, a), op.matmul(y, b)
        return op.add(op.multiply(op.square(left), op.square(right)), op.add(left, right))

    (stage,) = build_stages(weighted(function, [(3, 12), (3, 12), (12, 4), (12, 4)], training=False), ())
    layouts = {f"p{at}": split_axis(axis, 12, 2) for at, axis in enumerate((1, 1, 0, 0))}
    rounds = shard_stage(stage, layouts, 2).forward.rounds
    assert [each.kind for collectives in rounds for each in collectives] == ["sum", "sum"]


def layouts_of(case, shapes, num_shards):
    return {
        f"p{at}": split_axis(axis, shapes[at][axis], num_shards, unit=unit, sections=sections)
        for at, (axis, unit, sections) in case.splits.items()
    }


def draw(stage):
    rng = np.random.default_rng(0)
    return {info.name: rng.standard_normal(info.shape) for info in stage.forward.inputs}


def assert_equal_to_torch(found, function, tensors, num_parameters):
    parameters = [torch.from_numpy(tensors[f"p{at}"]).requires_grad_() for at in range(num_parameters)]
    loss = (torch.from_numpy(tensors["w"]) * function(*parameters)).sum()
    gradients = (
        torch.autograd.grad(loss, parameters, allow_unused=True)
        if loss.requires_grad
        else [None] * num_parameters
    )
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-9, atol=1e-11)
    for at, gradient in enumerate(gradients):
        made = found.get(f"p{at}.grad")
        expected = np.zeros_like(tensors[f"p{at}"]) if gradient is None else gradient.numpy()
        made = np.zeros_like(expected) if made is None else made
        np.testing.assert_allclose(made, expected, rtol=1e-9, atol=1e-11, err_msg=f"p{at}")


def test_every_rule_is_held_to_the_contract():
    tried = {name.split(" ")[0].rstrip(",") for name in CASES}
    refusing = {"prod", "std"}  # see test_what_is_refused
    assert {*RULES, *ADDITION} - refusing - {"grad.take_backward"} <= tried


REFUSED = {
    "prod": (lambda x: op.prod(x, axis=[1]), 1, "'prod', which computes .* cannot be sharded"),
    "std": (lambda x: op.std(x, axis=[1]), 1, "'std', which computes .* no terms make its result"),
    "variance": (lambda x: op.variance(x, axis=[1]), 1, "no terms make its result"),
    "cumsum": (lambda x: op.cumsum(x, axis=1), 1, "operator 'cumsum', .*, and no rule shards it"),
    "reshape": (
        lambda x: op.reshape(x, (36,)),
        1,
        r"axis 1 of \(3, 12\) is split into \(6, 6\), and no axis",
    ),
    "slice": (lambda x: op.strided_slice(x, [1], [0], [5]), 1, "it slices axis 1, which is split"),
    "pad": (lambda x: op.nn.pad(x, [0, 0, 1, 1]), 1, "it pads axis 1, which is split"),
    "split": (lambda x: op.split(x, 3, axis=1)[0], 1, "a shard holds nothing of the indices"),
    "layer norm": (
        lambda x: op.nn.layer_norm(x, const(np.ones(12)), const(np.zeros(12)), axes=[-1]),
        1,
        "it normalises over axis 1, which is split",
    ),
    "concat of a whole one": (
        lambda x: op.concat([x, const(np.ones((3, 5)))], axis=1),
        1,
        "some of the tensors that it joins are split along its axis alone",
    ),
    "concat of other axes": (
        lambda x: op.concat([op.strided_slice(x, [1], [0], [3]), op.permute_dims(x, [1, 0])], axis=0),
        0,
        "some of the tensors that it joins are split along its axis alone",
    ),
    "loss of split rows": (
        lambda x: op.nn.nll_loss(op.nn.log_softmax(x), indices([7, 0, 1])[0], reduction="none"),
        0,
        r"its predictions of shape \(3, 12\) are split along axis 0",
    ),
    "loss of pictures": (
        lambda x: op.nn.nll_loss(op.expand_dims(x, [2]), indices([[7], [0], [1]])[0], reduction="none"),
        1,
        r"its predictions of shape \(3, 12, 1\) are split along axis 1",
    ),
    "loss of split labels": (
        lambda x: op.nn.nll_loss(
            const(np.ones((3, 12))), op.astype(op.ceil(op.sum(x, axis=[1])), "int64"), reduction="none"
        ),
        0,
        r"its predictions of shape \(3, 12\) are whole on every shard",
    ),
    "attention to whole keys": (
        lambda x: op.nn.attention(heads(x), *[const(np.ones((1, 3, 12, 1)))] * 2),
        1,
        "query, key and value are split along axis 2, whole on every shard, whole on every shard",
    ),
    "attention by a split bias alone": (
        lambda x: op.nn.attention(
            *[const(np.ones((1, 3, 12, 1)))] * 3, op.expand_dims(op.permute_dims(x, [1, 0]), [0, 2])
        ),
        1,
        "query, key and value are whole on every shard, whole on every shard, whole on every shard",
    ),
    "attention of split positions": (
        lambda x: op.nn.attention(heads(x), heads(x), heads(x)),
        0,
        "query, key and value are split along axis 1, split along axis 1, split along axis 1",
    ),
    "product with a vector": (lambda x: op.matmul(x, const(np.ones(12))), 1, "it multiplies by a vector"),
    "transposed product": (
        lambda x: op.matmul(x, op.permute_dims(x, [1, 0])),
        0,
        "its rows and its columns are both split",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_rule_can_shard_is_refused_by_name_and_place(name, weighted):
    function, axis, message = REFUSED[name]
    model = weighted(function, [(3, 12)], training=False)
    (stage,) = build_stages(model, ())
    with pytest.raises(UnsupportedOperatorError, match=message):
        shard_stage(stage, {"p0": split_axis(axis, (3, 12)[axis], 2)}, 2)
