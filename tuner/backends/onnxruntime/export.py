"""Write a partition's Relax function as an ONNX graph, for runtimes that read one.

One Relax operator becomes one ONNX operator or a few. Weights are written without their values, which the
runtime is given when it loads the graph. What has no conversion is refused by name. Checked in
tests/tuner/backends/onnxruntime/test_export.py against TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tuner.backends.library_call import shape_of
from tuner.graph.relax_types import RelaxFunction
from tuner.runtime.library_calls import input_name, output_name

OPSET = 20
"""The first with one operator for GELU."""

_IR_VERSION = 9

_DTYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "bool": TensorProto.BOOL,
}

WEIGHT_FILE = "weights"
"""The name under which weights without values are said to lie; the runtime gets them from memory."""


def onnx_refusal(function: RelaxFunction) -> str | None:
    """Say what of a function cannot be written, or None."""
    for binding in _bindings(function):
        value = binding.value
        if not isinstance(value, relax.Call):
            continue
        name = getattr(value.op, "name", "a call of a function")
        if name not in _CONVERTERS:
            return f"{str(name).removeprefix('relax.')} has no conversion to ONNX"
    for tensor in (*function.params, *(binding.var for binding in _bindings(function))):
        for kind in _tensor_types(tensor.ty):
            if str(kind.dtype) not in _DTYPES:
                return f"tensors of {kind.dtype} have no conversion to ONNX"
    try:
        to_onnx(function, weights=())
    except _Refused as refusal:
        return str(refusal)
    return None


def to_onnx(function: RelaxFunction, *, weights: Collection[int]) -> bytes:
    """Return the function as a serialised ONNX model.

    Args:
        function: a partition's function; `onnx_refusal` says None of it.
        weights: positions of parameters that are weights: initialisers whose values lie elsewhere.
    """
    writer = _Writer()
    inputs = []
    for index, parameter in enumerate(function.params):
        writer.names[parameter] = input_name(index)
        if index in weights:
            kind = _DTYPES[str(parameter.ty.dtype)]
            writer.initializers.append(as_weight(input_name(index), shape_of(parameter), kind))
        else:
            inputs.append(_value_info(input_name(index), parameter.ty))
    for binding in _bindings(function):
        writer.bind(binding.var, binding.value)
    body = function.body.body
    results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    bound = writer.names.get(body)
    result_names = list(bound) if isinstance(bound, tuple) else [writer.name(result) for result in results]
    types = _tensor_types(function.ret_ty)
    for index, name in enumerate(result_names):
        writer.nodes.append(helper.make_node("Identity", [name], [output_name(index)]))
    graph = helper.make_graph(
        writer.nodes,
        "partition",
        inputs,
        [_value_info(output_name(index), kind) for index, kind in enumerate(types)],
        writer.initializers,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION, producer_name="tessel"
    )
    return bytes(model.SerializeToString())


class _Refused(Exception):
    """Says what of a call cannot be written."""


@dataclass(slots=True)
class _Writer:
    """Nodes and constants written so far, and the name of each Relax variable: of a tuple, one per field.

    None names a value that nothing may read.
    """

    nodes: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)
    names: dict[Any, Any] = field(default_factory=dict)

    def bind(self, variable: Any, value: Any) -> None:
        if isinstance(value, relax.Call):
            self.names[variable] = _CONVERTERS[value.op.name](self, value)
        elif isinstance(value, relax.TupleGetItem):
            self.names[variable] = self.names[value.tuple_value][value.index]
        elif isinstance(value, relax.Tuple):
            self.names[variable] = tuple(self.name(item) for item in value.fields)
        else:
            self.names[variable] = self.name(value)

    def name(self, expression: Any) -> Any:
        if isinstance(expression, tvm.ir.Constant):
            return self.constant(expression.value.numpy())
        found = self.names[expression]
        if found is None:
            raise _Refused("a second result of a normalisation has no conversion to ONNX")
        return found

    def constant(self, array: np.ndarray) -> str:
        name = f"constant{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(self, operator: str, inputs: Sequence[str], num_outputs: int = 1, **attributes: Any) -> Any:
        outputs = [f"value{len(self.nodes)}_{number}" for number in range(num_outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, **attributes))
        return outputs[0] if num_outputs == 1 else tuple(outputs)

    def arguments(self, call: Any) -> list[str]:
        return [self.name(argument) for argument in call.args]


_Converter = Callable[[_Writer, Any], Any]


def _plain(operator: str, **attributes: Any) -> _Converter:
    """Return the converter of an operator that has the same meaning, whatever its arguments."""
    return lambda writer, call: writer.node(operator, writer.arguments(call), **attributes)


_CONVOLUTION_LAYOUTS = {("NCW", "OIW"), ("NCHW", "OIHW")}

_POOLING_LAYOUTS = {"NCW", "NCHW"}


def _convolution(writer: _Writer, call: Any) -> str:
    attributes = call.attrs
    if (attributes.data_layout, attributes.kernel_layout) not in _CONVOLUTION_LAYOUTS:
        raise _Refused(f"convolutions of {attributes.data_layout} have no conversion to ONNX")
    return writer.node(
        "Conv",
        writer.arguments(call),
        strides=_ints(attributes.strides),
        pads=_ints(attributes.padding),
        dilations=_ints(attributes.dilation),
        group=int(attributes.groups),
    )


def _pool(operator: str) -> _Converter:
    def convert(writer: _Writer, call: Any) -> str:
        attributes = call.attrs
        if attributes.layout not in _POOLING_LAYOUTS:
            raise _Refused(f"pooling of {attributes.layout} has no conversion to ONNX")
        extra = {"count_include_pad": int(attributes.count_include_pad)} if operator == "AveragePool" else {}
        return writer.node(
            operator,
            writer.arguments(call),
            kernel_shape=_ints(attributes.pool_size),
            strides=_ints(attributes.strides),
            pads=_ints(attributes.padding),
            dilations=_ints(attributes.dilation),
            ceil_mode=int(attributes.ceil_mode),
            **extra,
        )

    return convert


def _adaptive_average(writer: _Writer, call: Any) -> str:
    if call.attrs.layout not in _POOLING_LAYOUTS or set(shape_of(call)[2:]) != {1}:
        raise _Refused("adaptive pooling to more than one element has no conversion to ONNX")
    return writer.node("GlobalAveragePool", writer.arguments(call))


def _batch_norm(writer: _Writer, call: Any) -> Any:
    attributes = call.attrs
    if attributes.training or int(attributes.axis) != 1:
        raise _Refused("this batch normalisation has no conversion to ONNX")
    if not (attributes.center and attributes.scale):
        raise _Refused("batch normalisation without scale or shift has no conversion to ONNX")
    found = writer.node("BatchNormalization", writer.arguments(call), epsilon=float(attributes.epsilon))
    return found, None, None


def _layer_norm(writer: _Writer, call: Any) -> str:
    attributes, rank = call.attrs, len(shape_of(call))
    axes = sorted(int(axis) % rank for axis in attributes.axes)
    if axes != list(range(rank - len(axes), rank)) or not (attributes.center and attributes.scale):
        raise _Refused("this layer normalisation has no conversion to ONNX")
    return writer.node(
        "LayerNormalization", writer.arguments(call), axis=axes[0], epsilon=float(attributes.epsilon)
    )


def _axis_attribute(operator: str) -> _Converter:
    return lambda writer, call: writer.node(operator, writer.arguments(call), axis=int(call.attrs.axis))


def _clip(writer: _Writer, call: Any) -> str:
    dtype = str(call.ty.dtype)
    bounds = [
        writer.constant(np.asarray(float(getattr(bound, "value", bound)), dtype)) for bound in call.args[1:]
    ]
    return writer.node("Clip", [writer.name(call.args[0]), *bounds])


def _reshape(writer: _Writer, call: Any) -> str:
    """Write whatever only gives a tensor another shape, by the shape that it gets."""
    shape = writer.constant(np.asarray(shape_of(call), dtype="int64"))
    return writer.node("Reshape", [writer.name(call.args[0]), shape])


def _broadcast(writer: _Writer, call: Any) -> str:
    shape = writer.constant(np.asarray(shape_of(call), dtype="int64"))
    return writer.node("Expand", [writer.name(call.args[0]), shape])


def _transpose(writer: _Writer, call: Any) -> str:
    rank = len(shape_of(call))
    axes = call.attrs.axes
    order = list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]
    return writer.node("Transpose", [writer.name(call.args[0])], perm=order)


def _concat(writer: _Writer, call: Any) -> str:
    fields = call.args[0]
    names = (
        [writer.name(item) for item in fields.fields]
        if isinstance(fields, relax.Tuple)
        else writer.names[fields]
    )
    return writer.node("Concat", list(names), axis=int(call.attrs.axis))


def _split(writer: _Writer, call: Any) -> Any:
    axis = int(call.attrs.axis)
    sizes = [int(item.shape[axis]) for item in call.ty.fields]
    inputs = [writer.name(call.args[0]), writer.constant(np.asarray(sizes, dtype="int64"))]
    found = writer.node("Split", inputs, len(sizes), axis=axis)
    return found if isinstance(found, tuple) else (found,)


def _take(writer: _Writer, call: Any) -> str:
    axis = call.attrs.axis
    if axis is None or call.attrs.mode != "clip":
        raise _Refused("a look-up that does not clip its indices along an axis has no conversion to ONNX")
    table, indices = writer.arguments(call)
    rows = shape_of(call.args[0])[int(axis)]
    dtype = str(call.args[1].ty.dtype)
    # ONNX leaves indices out of bounds undefined.
    bounds = [writer.constant(np.asarray(bound, dtype)) for bound in (0, rows - 1)]
    return writer.node("Gather", [table, writer.node("Clip", [indices, *bounds])], axis=int(axis))


def _strided_slice(writer: _Writer, call: Any) -> str:
    if call.attrs.assume_inbound:
        raise _Refused("a slice assumed to be within bounds has no conversion to ONNX")
    values = [
        [int(getattr(item, "value", item)) for item in argument.fields]
        if isinstance(argument, relax.Tuple)
        else None
        for argument in call.args[1:]
    ]
    if any(value is None for value in values[:3]):
        raise _Refused("a slice whose bounds are computed has no conversion to ONNX")
    axes, begins, ends = values[:3]
    steps = values[3] if len(values) > 3 and values[3] is not None else [1] * len(axes or [])
    inputs = [writer.constant(np.asarray(value, dtype="int64")) for value in (begins, ends, axes, steps)]
    return writer.node("Slice", [writer.name(call.args[0]), *inputs])


def _reduction(name: str) -> _Converter:
    """Return the converter of a reduction over axes, all of them where none are named."""

    def convert(writer: _Writer, call: Any) -> str:
        rank, axis = len(shape_of(call.args[0])), call.attrs.axis
        axes = list(range(rank)) if axis is None else [int(each) % rank for each in axis]
        inputs = [writer.name(call.args[0]), writer.constant(np.asarray(axes, dtype="int64"))]
        return writer.node(name, inputs, keepdims=int(call.attrs.keepdims))

    return convert


def _place(name: str) -> _Converter:
    """Return the converter of the place of an extremum along one axis, the first of equals."""

    def convert(writer: _Writer, call: Any) -> str:
        axis = call.attrs.axis
        if axis is None or str(call.ty.dtype) != "int64":
            raise _Refused("the place of an extremum of all elements has no conversion to ONNX")
        return writer.node(name, writer.arguments(call), axis=int(axis), keepdims=int(call.attrs.keepdims))

    return convert


def _not_equal(writer: _Writer, call: Any) -> str:
    return writer.node("Not", [writer.node("Equal", writer.arguments(call))])


def _square(writer: _Writer, call: Any) -> str:
    (x,) = writer.arguments(call)
    return writer.node("Mul", [x, x])


def _reciprocal_root(writer: _Writer, call: Any) -> str:
    return writer.node("Reciprocal", [writer.node("Sqrt", writer.arguments(call))])


def _silu(writer: _Writer, call: Any) -> str:
    (x,) = writer.arguments(call)
    return writer.node("Mul", [x, writer.node("Sigmoid", [x])])


def _cast(writer: _Writer, call: Any) -> str:
    return writer.node("Cast", writer.arguments(call), to=_DTYPES[str(call.ty.dtype)])


_CONVERTERS: Mapping[str, _Converter] = {
    f"relax.{name}": converter
    for name, converter in {
        "add": _plain("Add"),
        "subtract": _plain("Sub"),
        "multiply": _plain("Mul"),
        "divide": _plain("Div"),
        "power": _plain("Pow"),
        "maximum": _plain("Max"),
        "minimum": _plain("Min"),
        "matmul": _plain("MatMul"),
        "less": _plain("Less"),
        "less_equal": _plain("LessOrEqual"),
        "greater": _plain("Greater"),
        "greater_equal": _plain("GreaterOrEqual"),
        "equal": _plain("Equal"),
        "not_equal": _not_equal,
        "logical_and": _plain("And"),
        "logical_or": _plain("Or"),
        "logical_not": _plain("Not"),
        "where": _plain("Where"),
        "exp": _plain("Exp"),
        "log": _plain("Log"),
        "erf": _plain("Erf"),
        "tanh": _plain("Tanh"),
        "sigmoid": _plain("Sigmoid"),
        "sqrt": _plain("Sqrt"),
        "negative": _plain("Neg"),
        "abs": _plain("Abs"),
        "floor": _plain("Floor"),
        "ceil": _plain("Ceil"),
        "sin": _plain("Sin"),
        "cos": _plain("Cos"),
        "square": _square,
        "isnan": _plain("IsNaN"),
        "isinf": _plain("IsInf"),
        "rsqrt": _reciprocal_root,
        "nn.relu": _plain("Relu"),
        "nn.gelu": _plain("Gelu"),
        "nn.gelu_tanh": _plain("Gelu", approximate="tanh"),
        "nn.silu": _silu,
        "nn.softmax": _axis_attribute("Softmax"),
        "nn.log_softmax": _axis_attribute("LogSoftmax"),
        "nn.conv1d": _convolution,
        "nn.conv2d": _convolution,
        "nn.max_pool1d": _pool("MaxPool"),
        "nn.max_pool2d": _pool("MaxPool"),
        "nn.avg_pool1d": _pool("AveragePool"),
        "nn.avg_pool2d": _pool("AveragePool"),
        "nn.adaptive_avg_pool1d": _adaptive_average,
        "nn.adaptive_avg_pool2d": _adaptive_average,
        "nn.batch_norm": _batch_norm,
        "nn.layer_norm": _layer_norm,
        "clip": _clip,
        "reshape": _reshape,
        "expand_dims": _reshape,
        "squeeze": _reshape,
        "flatten": _reshape,
        "broadcast_to": _broadcast,
        "permute_dims": _transpose,
        "concat": _concat,
        "split": _split,
        "take": _take,
        "strided_slice": _strided_slice,
        "mean": _reduction("ReduceMean"),
        "sum": _reduction("ReduceSum"),
        "max": _reduction("ReduceMax"),
        "min": _reduction("ReduceMin"),
        "argmax": _place("ArgMax"),
        "argmin": _place("ArgMin"),
        "astype": _cast,
    }.items()
}


def _bindings(function: RelaxFunction) -> Sequence[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _tensor_types(kind: Any) -> list[Any]:
    """Return the tensor types in a type, flattened."""
    if isinstance(kind, relax.TupleType):
        return [leaf for item in kind.fields for leaf in _tensor_types(item)]
    return [kind] if isinstance(kind, relax.TensorType) else []


def _value_info(name: str, kind: Any) -> Any:
    return helper.make_tensor_value_info(name, _DTYPES[str(kind.dtype)], [int(n) for n in kind.shape])


def as_weight(name: str, shape: Sequence[int], data_type: int) -> Any:
    """Return a weight whose values the runtime is given in memory."""
    tensor = TensorProto(name=name, data_type=data_type, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=WEIGHT_FILE)
    return tensor


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values]
