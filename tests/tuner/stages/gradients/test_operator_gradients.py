"""Every operator's gradient is compared with central differences, in double precision where TVM can."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.model import InputSpec
from tuner.stages import build_stages
from tuner.stages.differentiate import differentiate
from tuner.stages.gradients.operator_gradients import GRADIENTS, gradient_of
from tuner.stages.program import Binding, operator_name, read_program

pytestmark = pytest.mark.tvm

SINGLE_ONLY = ("nn.layer_norm", "nn.rms_norm", "nn.group_norm", "nn.instance_norm", "nn.attention")
"""Operators that TVM computes in single precision at most."""


def const(value):
    return relax.const(value, "float64")


def zeros(length):
    return relax.const([0.0] * length, "float64")


def ones(length):
    return relax.const([1.5] * length, "float64")


def within_one(x):
    return op.multiply(const(0.5), op.tanh(x))


# Operator under test, as a function of its arguments, and their shapes.
CASES = {
    "abs": (op.abs, [(3, 4)]),
    "acos": (lambda x: op.acos(within_one(x)), [(3, 4)]),
    "acosh": (lambda x: op.acosh(op.add(op.multiply(x, x), const(1.5))), [(3, 4)]),
    "asin": (lambda x: op.asin(within_one(x)), [(3, 4)]),
    "asinh": (op.asinh, [(3, 4)]),
    "atan": (op.atan, [(3, 4)]),
    "atan2 with broadcast": (op.atan2, [(3, 4), (4,)]),
    "atanh": (lambda x: op.atanh(within_one(x)), [(3, 4)]),
    "cosh": (op.cosh, [(3, 4)]),
    "cumprod": (lambda x: op.cumprod(x, axis=1), [(2, 4, 3)]),
    "cumprod of the last axis, of which a factor is 0": (
        lambda x: op.cumprod(op.multiply(x, const([1.0, 0.0, 1.0, 1.0])), axis=-1),
        [(2, 4)],
    ),
    "flip": (lambda x: op.flip(x, 1), [(2, 3, 2)]),
    "floor_mod with broadcast": (op.floor_mod, [(3, 4), (3, 1)]),
    "power with broadcast": (lambda x, y: op.power(op.add(op.multiply(x, x), const(1.5)), y), [(3, 4), (4,)]),
    "power of some exponents that are 0, at 0": (
        lambda x: op.power(op.multiply(x, const([0.0, 1.0, 0.0, 1.0])), const([0.0, 2.0, 2.0, 0.0])),
        [(3, 4)],
    ),
    "prod": (lambda x: op.prod(x, axis=[1]), [(2, 4, 3)]),
    "prod of two axes, of which a factor is 0": (
        lambda x: op.prod(op.multiply(x, const([[[1.0, 0.0]], [[1.0, 1.0]]])), axis=[2, 0], keepdims=True),
        [(2, 3, 2)],
    ),
    "prod of all": (lambda x: op.reshape(op.prod(x), [1]), [(3, 2)]),
    "sinh": (op.sinh, [(3, 4)]),
    "tan": (lambda x: op.tan(within_one(x)), [(3, 4)]),
    "trunc": (op.trunc, [(3, 4)]),
    "ceil": (op.ceil, [(3, 4)]),
    "floor": (op.floor, [(3, 4)]),
    "round": (op.round, [(3, 4)]),
    "sign": (op.sign, [(3, 4)]),
    "clip": (lambda x: op.clip(x, -0.5, 0.5), [(3, 4)]),
    "erf": (op.erf, [(3, 4)]),
    "flatten": (op.flatten, [(2, 3, 2)]),
    "matmul": (op.matmul, [(2, 3, 4), (4, 5)]),
    "max": (lambda x: op.max(x, axis=[1]), [(3, 4)]),
    "maximum with broadcast": (op.maximum, [(3, 4), (3, 1)]),
    "min": (lambda x: op.min(x, axis=[0], keepdims=True), [(3, 4)]),
    "minimum": (op.minimum, [(3, 4), (3, 4)]),
    "nn.batch_flatten": (op.nn.batch_flatten, [(2, 3, 2)]),
    "nn.gelu": (op.nn.gelu, [(3, 4)]),
    "nn.gelu_tanh": (op.nn.gelu_tanh, [(3, 4)]),
    "nn.layer_norm": (lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), [(2, 3, 8), (8,), (8,)]),
    "nn.layer_norm over two axes": (
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-2, -1]),
        [(2, 3, 4), (3, 4), (3, 4)],
    ),
    "nn.adaptive_avg_pool2d": (lambda x: op.nn.adaptive_avg_pool2d(x, (2, 1)), [(1, 2, 4, 3)]),
    "nn.adaptive_avg_pool2d with windows that overlap": (
        lambda x: op.nn.adaptive_avg_pool2d(x, (3, 2)),
        [(1, 2, 5, 3)],
    ),
    "nn.adaptive_avg_pool1d": (lambda x: op.nn.adaptive_avg_pool1d(x, (3,)), [(2, 2, 7)]),
    "nn.adaptive_avg_pool3d": (lambda x: op.nn.adaptive_avg_pool3d(x, (2, 1, 2)), [(1, 2, 4, 3, 3)]),
    "nn.attention": (lambda q, k, v: op.nn.attention(q, k, v), [(2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4)]),
    "nn.attention causal": (
        lambda q, k, v: op.nn.attention(
            q, k, v, scale=tvm.tirx.FloatImm("float32", 0.3), causal_mask="TopLeft"
        ),
        [(1, 3, 2, 4)] * 3,
    ),
    "nn.attention_bias": (op.nn.attention, [(1, 3, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4), (1, 1, 3, 3)]),
    "nn.batch_norm": (
        lambda x, g, b: relax.TupleGetItem(
            op.nn.batch_norm(x, g, b, zeros(3), ones(3), axis=1, training=True), 0
        ),
        [(2, 3, 2, 2), (3,), (3,)],
    ),
    "nn.batch_norm with fixed statistics": (
        lambda x, g, b: relax.TupleGetItem(
            op.nn.batch_norm(x, g, b, ones(3), ones(3), axis=1, training=False), 0
        ),
        [(2, 3, 2, 2), (3,), (3,)],
    ),
    "nn.group_norm": (
        lambda x, g, b: op.nn.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[2, 3]),
        [(2, 4, 2, 2), (4,), (4,)],
    ),
    "nn.instance_norm": (
        lambda x, g, b: op.nn.instance_norm(x, g, b, channel_axis=1, axes=[2, 3]),
        [(2, 3, 2, 3), (3,), (3,)],
    ),
    "conv1d_transpose": (
        lambda x, w: op.nn.conv1d_transpose(x, w, strides=2, padding=(1, 0), output_padding=1),
        [(2, 2, 4), (2, 3, 3)],
    ),
    "conv2d_transpose": (
        lambda x, w: op.nn.conv2d_transpose(x, w, strides=(2, 1), padding=(1, 0)),
        [(2, 2, 3, 2), (2, 3, 3, 2)],
    ),
    "conv2d_transpose of groups": (
        lambda x, w: op.nn.conv2d_transpose(x, w, strides=(2, 3), groups=2, output_padding=(1, 2)),
        [(1, 4, 2, 3), (4, 2, 2, 3)],
    ),
    "conv2d_transpose with dilation": (
        lambda x, w: op.nn.conv2d_transpose(x, w, dilation=(1, 2)),
        [(1, 2, 3, 2), (2, 1, 2, 2)],
    ),
    "nn.leakyrelu": (lambda x: op.nn.leakyrelu(x, 0.1), [(3, 4)]),
    "nn.relu": (op.nn.relu, [(3, 4)]),
    "nn.rms_norm": (lambda x, g: op.nn.rms_norm(x, g, axes=[-1]), [(2, 3, 8), (8,)]),
    "nn.softplus": (lambda x: op.nn.softplus(x, beta=2.0), [(3, 4)]),
    "nn.softplus beyond its threshold": (lambda x: op.nn.softplus(x, beta=2.0, threshold=0.5), [(3, 4)]),
    "nn.pad": (lambda x: op.nn.pad(x, [0, 0, 1, 2]), [(3, 4)]),
    "repeat": (lambda x: op.repeat(x, 2, axis=0), [(3, 2)]),
    "repeat of a middle axis": (lambda x: op.repeat(x, 2, axis=1), [(2, 3, 2)]),
    "repeat of all": (lambda x: op.repeat(x, 2), [(3, 2)]),
    "rsqrt": (lambda x: op.rsqrt(op.add(op.multiply(x, x), const(1.0))), [(3, 4)]),
    "square": (op.square, [(3, 4)]),
    "squeeze": (lambda x: op.squeeze(x, axis=[1]), [(3, 1, 4)]),
    "stack": (lambda x, y: op.stack([x, y, x], axis=1), [(2, 3), (2, 3)]),
    "strided_slice": (lambda x: op.strided_slice(x, [0, 1], [1, -3], [3, 4]), [(4, 5)]),
    "strided_slice with steps": (
        lambda x: op.strided_slice(x, [0, 1], [1, 0], [6, 5], strides=[2, 3]),
        [(6, 5)],
    ),
    "strided_slice with a step that ends early": (
        lambda x: op.strided_slice(x, [1], [0], [4], strides=[2]),
        [(2, 7)],
    ),
    "topk": (lambda x: relax.TupleGetItem(op.topk(x, 2, axis=1), 0), [(3, 5)]),
    "topk of the smallest": (
        lambda x: relax.TupleGetItem(op.topk(x, 3, axis=0, largest=False, dtype="int64"), 0),
        [(4, 2)],
    ),
    "tril": (op.tril, [(4, 4)]),
    "triu": (lambda x: op.triu(x, 1), [(3, 4)]),
    # Operators whose gradients are TVM's: the tuples and broadcasts around them are ours.
    "matmul of two batches": (op.matmul, [(2, 3, 4), (2, 4, 5)]),
    "matmul of matrices": (op.matmul, [(3, 4), (4, 5)]),
    "add with broadcast": (op.add, [(2, 3, 4), (4,)]),
    "split, a field unused": (lambda x: op.exp(op.split(x, 3, axis=1)[1]), [(2, 6)]),
    "split, a field used twice": (
        lambda x: (lambda parts: op.multiply(parts[0], op.add(parts[2], parts[0])))(op.split(x, 3, axis=1)),
        [(2, 6)],
    ),
    "concat": (lambda x, y: op.concat([x, y, x], axis=1), [(2, 3), (2, 2)]),
    "softmax": (lambda x: op.nn.softmax(x, axis=-1), [(3, 4)]),
    "log_softmax": (lambda x: op.nn.log_softmax(x, axis=-1), [(3, 4)]),
    "conv1d with dilation": (
        lambda x, w: op.nn.conv1d(x, w, strides=3, padding=(1, 1), dilation=2, groups=2),
        [(1, 4, 8), (2, 2, 3)],
    ),
    "conv2d with dilation": (
        lambda x, w: op.nn.conv2d(x, w, padding=(2, 3, 2, 3), dilation=(2, 3)),
        [(1, 2, 4, 5), (2, 2, 3, 3)],
    ),
    "conv2d with a dilation of two": (
        lambda x, w: op.nn.conv2d(x, w, strides=(2, 2), padding=(1, 1, 0, 1), dilation=(2, 2)),
        [(1, 2, 6, 7), (2, 2, 2, 2)],
    ),
    "conv2d with dilation and strides": (
        lambda x, w: op.nn.conv2d(x, w, strides=(2, 2), padding=(1, 1, 0, 1), dilation=(2, 3)),
        [(1, 2, 5, 6), (1, 2, 2, 3)],
    ),
    "conv1d": (lambda x, w: op.nn.conv1d(x, w, padding=(1, 1)), [(2, 2, 5), (3, 2, 3)]),
    "conv1d of each channel": (
        lambda x, w: op.nn.conv1d(x, w, padding=(3, 3), groups=4),
        [(1, 4, 6), (4, 1, 4)],
    ),
    "conv1d with stride": (
        lambda x, w: op.nn.conv1d(x, w, strides=2, padding=(2, 0)),
        [(1, 2, 7), (2, 2, 3)],
    ),
    "conv2d": (lambda x, w: op.nn.conv2d(x, w, padding=(1, 1)), [(1, 2, 5, 5), (3, 2, 3, 3)]),
    "conv2d with groups": (
        lambda x, w: op.nn.conv2d(x, w, groups=2, strides=(2, 1), padding=(1, 0)),
        [(2, 4, 5, 4), (6, 2, 3, 3)],
    ),
    "conv2d with stride": (lambda x, w: op.nn.conv2d(x, w, strides=(2, 2)), [(1, 2, 5, 5), (3, 2, 3, 3)]),
    "max_pool2d": (lambda x: op.nn.max_pool2d(x, (2, 2), strides=(2, 2)), [(1, 2, 4, 4)]),
    "avg_pool2d": (lambda x: op.nn.avg_pool2d(x, (2, 2), strides=(2, 2)), [(1, 2, 4, 4)]),
    "nn.avg_pool3d": (
        lambda x: op.nn.avg_pool3d(
            x, (3, 2, 1), strides=(1, 2, 1), padding=(1, 0, 0), count_include_pad=False
        ),
        [(1, 2, 3, 5, 2)],
    ),
    "nn.avg_pool3d of the last axis": (
        lambda x: op.nn.avg_pool3d(x, (1, 1, 2), strides=(1, 1, 2)),
        [(1, 1, 2, 2, 4)],
    ),
    "nn.avg_pool3d that counts its padding": (
        lambda x: op.nn.avg_pool3d(
            x, (3, 2, 1), strides=(2, 2, 1), padding=(1, 1, 0), ceil_mode=True, count_include_pad=True
        ),
        [(1, 2, 4, 3, 2)],
    ),
    "avg_pool2d with a window beyond the image": (
        lambda x: op.nn.avg_pool2d(x, (5, 5), strides=(5, 5), ceil_mode=True, count_include_pad=True),
        [(1, 2, 2, 3)],
    ),
    "avg_pool2d with every window cut": (
        lambda x: op.nn.avg_pool2d(x, (2, 1), strides=(2, 1), ceil_mode=True, count_include_pad=True),
        [(1, 1, 1, 3)],
    ),
    "avg_pool2d with windows cut at the end": (
        lambda x: op.nn.avg_pool2d(x, (2, 2), strides=(2, 2), ceil_mode=True, count_include_pad=True),
        [(1, 2, 3, 5)],
    ),
    "avg_pool2d with windows that overlap": (
        lambda x: op.nn.avg_pool2d(
            x, (3, 3), strides=(2, 2), padding=(1, 1), ceil_mode=True, count_include_pad=True
        ),
        [(1, 2, 4, 5)],
    ),
    "max_pool2d with a window beyond the image": (
        lambda x: op.nn.max_pool2d(x, (5, 5), strides=(5, 5), ceil_mode=True),
        [(1, 2, 2, 3)],
    ),
    "avg_pool2d of channels that come last": (
        lambda x: op.nn.avg_pool2d(
            x, (2, 3), strides=(2, 3), ceil_mode=True, count_include_pad=True, layout="NHWC"
        ),
        [(1, 3, 4, 2)],
    ),
    "max_pool1d with windows that overlap": (
        lambda x: op.nn.max_pool1d(x, 3, strides=2, padding=(1, 1)),
        [(2, 2, 8)],
    ),
    "avg_pool1d": (
        lambda x: op.nn.avg_pool1d(x, 3, strides=2, padding=(1, 1), count_include_pad=False),
        [(2, 2, 8)],
    ),
    "avg_pool1d that counts its padding": (
        lambda x: op.nn.avg_pool1d(x, 3, strides=2, padding=(1, 1), ceil_mode=True, count_include_pad=True),
        [(1, 2, 6)],
    ),
    "nll_loss of log_softmax": (
        lambda x: op.nn.nll_loss(op.nn.log_softmax(x), relax.const([2, 0, 1], "int64"), reduction="mean"),
        [(3, 4)],
    ),
    "take": (lambda x: op.take(x, relax.const([2, 0, 2], "int64"), axis=0), [(4, 3)]),
    "take of a matrix of indices": (
        lambda x: op.take(x, relax.const([[2, 0], [1, 2]], "int64"), axis=1),
        [(2, 3, 2)],
    ),
    "take of one index": (lambda x: op.take(x, relax.const(1, "int64"), axis=1), [(2, 3, 2)]),
    "gather_elements": (
        lambda x: op.gather_elements(x, relax.const([[2, 0], [1, 1]], "int64"), axis=1),
        [(2, 3)],
    ),
    "scatter_elements that adds": (
        lambda x, y: op.scatter_elements(
            x, relax.const([[0, 1, 0], [0, 2, 1]], "int64"), y, axis=0, reduction="add"
        ),
        [(3, 3), (2, 3)],
    ),
    "scatter_elements that replaces": (
        lambda x, y: op.scatter_elements(x, relax.const([[2, 0], [1, 2]], "int64"), y, axis=1),
        [(2, 3), (2, 2)],
    ),
    "full_like within where": (
        lambda x: op.where(relax.const([True, False]), op.full_like(x, const(-2.0)), x),
        [(3, 2)],
    ),
    "zeros_like within maximum": (lambda x: op.maximum(x, op.zeros_like(x)), [(3, 4)]),
    "where": (lambda x, y: op.where(relax.const([True, False]), x, y), [(3, 2), (3, 2)]),
    "where with broadcast": (
        lambda x, y: op.where(relax.const([[True, False], [False, False]]), x, y),
        [(3, 1, 1, 2), (1, 2)],
    ),
    "variance": (lambda x: op.variance(x, axis=[-1], keepdims=True), [(3, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_the_finite_difference(name, make_model, compile_module):
    function, shapes = CASES[name]
    dtype = "float32" if name.startswith(SINGLE_ONLY) else "float64"
    step, tolerance = {"float32": (1e-2, 3e-3), "float64": (1e-5, 1e-6)}[dtype]
    stage = _weighted_sum_stage(function, shapes, make_model, dtype)
    rng = np.random.default_rng(0)
    draws = {info.name: rng.standard_normal(info.shape).astype(dtype) for info in stage.forward.inputs}
    forward = compile_module(stage.forward.module)

    def run_forward(tensors):
        results = forward([tensors[info.name] for info in stage.forward.inputs])
        return dict(zip([info.name for info in stage.forward.outputs], results, strict=True))

    known = draws | run_forward(draws)
    gradients = compile_module(stage.backward.module)([known[info.name] for info in stage.backward.inputs])
    assert [info.name for info in stage.backward.outputs] == [
        f"p{index}.grad" for index in range(len(shapes))
    ]
    for info, gradient in zip(stage.backward.outputs, gradients, strict=True):
        parameter = info.name.removesuffix(".grad")
        expected = _central_differences(draws, parameter, step, lambda tensors: run_forward(tensors)["loss"])
        np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=tolerance)


def _weighted_sum_stage(function, shapes, make_model, dtype="float64"):
    """Build the loss `sum(weights * function(arguments))`, so that every output counts differently."""
    names = {f"p{index}": (shape, dtype) for index, shape in enumerate(shapes)}
    output = _output_shape(function, shapes, dtype)

    def build(emit, weights, *arguments):
        return op.sum(emit(op.multiply(weights, emit(function(*arguments)))))

    model = make_model(build, inputs=[InputSpec(name="w", shape=output, dtype=dtype)], parameters=names)
    (stage,) = build_stages(model, ())
    return stage


def _output_shape(function, shapes, dtype):
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"p{index}", relax.TensorType(shape, dtype)) for index, shape in enumerate(shapes)]
    with builder.function("main", arguments):
        result = builder.emit(function(*arguments))
        builder.emit_func_output(result)
    return tuple(int(extent) for extent in result.ty.shape)


def _central_differences(tensors, name, step, loss):
    expected = np.zeros_like(tensors[name])
    for position in np.ndindex(*expected.shape):
        above, below = tensors[name].copy(), tensors[name].copy()
        above[position] += step
        below[position] -= step
        expected[position] = (loss(tensors | {name: above}) - loss(tensors | {name: below})) / (2 * step)
    return expected


def test_every_gradient_of_our_own_is_tried():
    assert set(GRADIENTS) <= {name.split(" ")[0] for name in CASES}


def test_an_operator_without_gradient_is_named(make_model):
    def build(emit, x, w):
        return op.sum(emit(op.sort(emit(op.multiply(x, w)), axis=0)))

    model = make_model(
        build,
        inputs=[InputSpec(name="x", shape=(4,), dtype="float32")],
        parameters={"w": ((4,), "float32")},
    )
    with pytest.raises(UnsupportedOperatorError, match=r"operator 'sort', which computes"):
        build_stages(model, ())


def test_a_function_from_elsewhere_has_no_gradient():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    call = relax.Call(relax.ExternFunc("somewhere.else"), [x], None, [x.ty])
    result = relax.Var("result", x.ty)
    with pytest.raises(UnsupportedOperatorError, match="which computes 'result', has no gradient"):
        gradient_of(result, call, x, relax.BlockBuilder())


@pytest.mark.parametrize(
    "attribute", [{"causal_mask": "BottomRight"}, {"causal_mask": "TopLeft", "window_size": 2}]
)
def test_attention_of_other_masks_has_no_gradient(attribute):
    query = relax.Var("query", relax.TensorType((1, 2, 2, 4), "float32"))
    call = relax.op.nn.attention(query, query, query, **attribute)
    with pytest.raises(
        UnsupportedOperatorError, match=r"'nn.attention'.* has no gradient for these attributes"
    ):
        gradient_of(relax.Var("result", query.ty), call, query, relax.BlockBuilder())


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("nn.max_pool1d", lambda x: op.nn.max_pool1d(op.reshape(x, (1, 1, 4)), 2, dilation=2)),
        ("nn.max_pool2d", lambda x: op.nn.max_pool2d(op.reshape(x, (1, 1, 1, 4)), (1, 2), dilation=(1, 2))),
        ("strided_slice", lambda x: op.strided_slice(x, [0], [3], [0], strides=[-1])),
        (
            "strided_slice",
            lambda x: op.strided_slice(op.reshape(x, (2, 2)), [0, 1], [1, 0], [0, 2], strides=[-1, 1]),
        ),
        ("nn.pad", lambda x: op.nn.pad(x, [1, 1], "reflect")),
        (
            "scatter_elements",
            lambda x: op.scatter_elements(x, relax.const([0], "int64"), zeros(1), 0, "mul"),
        ),
    ],
)
def test_a_use_of_an_operator_that_has_no_gradient_is_named(name, function, make_model):
    with pytest.raises(UnsupportedOperatorError, match=f"operator '{name}'.* for these attributes"):
        _weighted_sum_stage(function, [(4,)], make_model)


@pytest.mark.parametrize("wanted", [(), ("x",), ("w",), ("x", "w")])
def test_nothing_is_computed_for_a_gradient_that_nobody_asked_for(wanted, make_model):
    model = make_model(
        lambda emit, x, w: op.sum(emit(op.matmul(x, w))),
        inputs=[InputSpec(name="x", shape=(2, 3), dtype="float32")],
        parameters={"w": ((3, 4), "float32")},
    )
    program = read_program(model)
    variables = {program.names[each]: each for each in (*program.inputs, *program.parameters)}
    found = differentiate(
        program.bindings,
        seeds={program.outputs[0]: relax.const(1.0, "float32")},
        wanted=[variables[name] for name in wanted],
    )
    assert {program.names[each] for each in found.gradients} == set(wanted)
    operators = [operator_name(binding.value) for binding in found.bindings]
    assert operators.count("matmul") == len(wanted)
    assert "reshape" not in operators  # of matrices, as of batches


def test_equal_maxima_share_the_gradient(make_model, compile_module):
    stage = _weighted_sum_stage(lambda x: op.max(x, axis=[0]), [(4,)], make_model)
    known = {"w": np.array(6.0), "p0": np.array([1.0, 3.0, 3.0, 2.0])}
    results = compile_module(stage.forward.module)([known[info.name] for info in stage.forward.inputs])
    known |= dict(zip([info.name for info in stage.forward.outputs], results, strict=True))
    (gradient,) = compile_module(stage.backward.module)([known[info.name] for info in stage.backward.inputs])
    np.testing.assert_array_equal(gradient, [0.0, 3.0, 3.0, 0.0])


def test_a_gradient_passes_names_and_tuples():
    """As an importer may write them: a builder of blocks would read through both."""
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    same = relax.Var("same", x.ty)
    pair = relax.Var("pair", relax.TupleType([x.ty, x.ty]))
    field = relax.Var("field", x.ty)
    bindings = (
        Binding(same, x, (x,)),
        Binding(pair, relax.Tuple([x, same]), (x, same)),
        Binding(field, relax.TupleGetItem(pair, 1), (pair,)),
    )
    found = differentiate(bindings, seeds={field: relax.const(np.ones(4, "float32"))}, wanted=[x])
    assert set(found.gradients) == {x}
