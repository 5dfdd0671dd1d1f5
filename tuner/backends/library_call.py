"""Recognise a partition as one library call: linear, convolution, attention, layer norm, softmax.

A library has fixed entry points, each for several operators at once. This module reads a partition's Relax
function from its result backwards and says which entry point it is, with which settings and operands, or
that it is none. What is recognised must be the whole function. Checked in
tests/tuner/backends/test_library_call.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import relax

from tuner.graph.relax_types import RelaxFunction
from tuner.runtime.library_calls import Activation, Attention, Call, Convolution, LayerNorm, Linear, Softmax

ACTIVATIONS: dict[str, Activation] = {
    "relax.nn.relu": "relu",
    "relax.nn.gelu": "gelu",
    "relax.nn.gelu_tanh": "gelu_tanh",
    "relax.nn.silu": "silu",
    "relax.sigmoid": "sigmoid",
    "relax.tanh": "tanh",
}


Then = Literal["", "add", "multiply"]
"""What is done to a product with a further tensor of its result's shape; nothing if empty."""

JOINS: dict[str, Then] = {"relax.add": "add", "relax.multiply": "multiply"}


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A call with the Relax expressions that it reads, in the order that the call documents."""

    call: Call
    operands: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A linear layer, and what joins it with another tensor after its activation.

    Attributes:
        operands: left, right, the bias where there is one, and the other tensor where there is one.
        then: how the other tensor is joined.
    """

    linear: Linear
    operands: tuple[Any, ...]
    then: Then


def recognise_call(function: RelaxFunction) -> LibraryCall | None:
    """Return the one library call that a partition's function is, or None."""
    reader = CallReader(function)
    for read in (read_attention, read_linear, read_convolution, read_layer_norm, read_softmax):
        reader.used.clear()
        found = read(reader, reader.result)
        if found is not None and reader.used == reader.bound:
            return found
    return None


def recognise_product(function: RelaxFunction) -> ProductCall | None:
    """Return the linear layer that a function is, with a sum or product after it, or None."""
    found = recognise_call(function)
    if found is not None:
        return ProductCall(found.call, found.operands, "") if isinstance(found.call, Linear) else None
    reader = CallReader(function)
    joined = reader.call(reader.result, *JOINS)
    if joined is None:
        return None
    before = set(reader.used)
    for product, other in (joined.args, reversed(joined.args)):
        reader.used = set(before)
        found = read_linear(reader, product)
        is_whole = found is not None and reader.used == reader.bound and other not in reader.values
        if found is not None and is_whole and shape_of(other) == shape_of(product) == shape_of(joined):
            assert isinstance(found.call, Linear)
            return ProductCall(found.call, (*found.operands, other), JOINS[joined.op.name])
    return None


class CallReader:
    """Follows variables to what binds them, and notes what has been used."""

    def __init__(self, function: RelaxFunction) -> None:
        bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self.values = {binding.var: binding.value for binding in bindings}
        self.result = function.body.body
        self.bound = {binding.var for binding in bindings if not isinstance(binding.value, relax.Var)}
        self.used: set[Any] = set()

    def call(self, expression: Any, *names: str) -> Any:
        """Return the call of one of the operators that an expression is bound to, and note its use."""
        while isinstance(self.values.get(expression), relax.Var):
            expression = self.values[expression]
        value = self.values.get(expression)
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        if value.op.name not in names:
            return None
        self.used.add(expression)
        return value

    def transposed(self, expression: Any) -> tuple[Any, bool]:
        """Return what is behind a swap of the last two axes, and whether there is one."""
        before = set(self.used)
        call = self.call(expression, "relax.permute_dims")
        if call is not None and swaps_last_axes(call):
            return call.args[0], True
        self.used = before
        return expression, False


def read_linear(reader: CallReader, result: Any) -> LibraryCall | None:
    """Return the linear layer of float32 that an expression is bound to, if any, and note what it uses."""
    result, activation = _without_activation(reader, result)
    product, bias = _without_bias(reader, result, "relax.matmul")
    if product is None or str(product.ty.dtype) != "float32":
        return None
    if bias is not None and not _is_along_last_axis(bias, product):
        return None
    left, left_transposed = reader.transposed(product.args[0])
    right, right_transposed = reader.transposed(product.args[1])
    call = Linear(left_transposed, right_transposed, bias is not None, activation)
    return LibraryCall(call, (left, right) if bias is None else (left, right, bias))


def read_convolution(reader: CallReader, result: Any) -> LibraryCall | None:
    """Return the convolution of float32 that an expression is bound to, if any, and note what it uses."""
    result, activation = _without_activation(reader, result)
    convolution, bias = _without_bias(reader, result, "relax.nn.conv2d")
    if convolution is None or str(convolution.ty.dtype) != "float32":
        return None
    attributes = convolution.attrs
    if attributes.data_layout != "NCHW" or attributes.kernel_layout != "OIHW":
        return None
    if bias is not None and not _is_along_channels(bias, convolution):
        return None
    top, left, bottom, right = (int(extent) for extent in attributes.padding)
    if (top, left) != (bottom, right):
        return None
    call = Convolution(
        strides=tuple(int(step) for step in attributes.strides),
        padding=(top, left),
        dilation=tuple(int(step) for step in attributes.dilation),
        groups=int(attributes.groups),
        has_bias=bias is not None,
        activation=activation,
    )
    operands = tuple(convolution.args)
    return LibraryCall(call, operands if bias is None else (*operands, bias))


def read_attention(reader: CallReader, result: Any) -> LibraryCall | None:
    """Return the attention that an expression is bound to, if any, and note what it uses."""
    product = reader.call(result, "relax.matmul")
    weights = None if product is None else reader.call(product.args[0], "relax.nn.softmax")
    if weights is None or not _is_last_axis(weights.attrs.axis, weights):
        return None
    scores, mask, scale = weights.args[0], None, 1.0
    added = reader.call(scores, "relax.add")
    if added is not None:
        scores, mask = added.args
    scaled = reader.call(scores, "relax.multiply", "relax.divide")
    if scaled is not None:
        number = _scalar(scaled.args[1])
        if number is None or number == 0.0:
            return None
        scale = number if scaled.op.name == "relax.multiply" else 1.0 / number
        scores = scaled.args[0]
    similarity = reader.call(scores, "relax.matmul")
    if similarity is None or str(product.ty.dtype) != "float32":
        return None
    query, (key, key_transposed), value = (
        similarity.args[0],
        reader.transposed(similarity.args[1]),
        product.args[1],
    )
    if len({len(operand.ty.shape) for operand in (query, key, value)}) > 1 or _rank(query) < 3:
        return None
    if mask is not None and _rank(mask) > _rank(query):
        return None
    call = Attention(scale, mask is not None, key_transposed)
    return LibraryCall(call, (query, key, value) if mask is None else (query, key, value, mask))


def read_layer_norm(reader: CallReader, result: Any) -> LibraryCall | None:
    """Return the layer norm of float32 that an expression is bound to, if any, and note what it uses."""
    call = reader.call(result, "relax.nn.layer_norm")
    if call is None or str(call.ty.dtype) != "float32":
        return None
    rank = _rank(call)
    axes = sorted(int(axis) % rank for axis in call.attrs.axes)
    if axes != list(range(rank - len(axes), rank)) or not (call.attrs.center and call.attrs.scale):
        return None
    return LibraryCall(LayerNorm(len(axes), float(call.attrs.epsilon)), tuple(call.args))


def read_softmax(reader: CallReader, result: Any) -> LibraryCall | None:
    """Return the softmax of float32 that an expression is bound to, if any, and note what it uses."""
    call = reader.call(result, "relax.nn.softmax", "relax.nn.log_softmax")
    if call is None or str(call.ty.dtype) != "float32":
        return None
    logarithm = call.op.name == "relax.nn.log_softmax"
    return LibraryCall(Softmax(int(call.attrs.axis) % _rank(call), logarithm), tuple(call.args))


def _without_activation(reader: CallReader, result: Any) -> tuple[Any, Activation]:
    call = reader.call(result, *ACTIVATIONS)
    return (result, "") if call is None else (call.args[0], ACTIVATIONS[call.op.name])


def _without_bias(reader: CallReader, result: Any, operator: str) -> tuple[Any, Any]:
    """Return the operator's call and what is added to it, on either side, or None."""
    added = reader.call(result, "relax.add")
    if added is None:
        return reader.call(result, operator), None
    for core, bias in (added.args, reversed(added.args)):
        call = reader.call(core, operator)
        if call is not None:
            return call, bias
    return None, None


def _is_along_last_axis(bias: Any, product: Any) -> bool:
    *outer, last = shape_of(bias) or (0,)
    return all(extent == 1 for extent in outer) and last == shape_of(product)[-1]


def _is_along_channels(bias: Any, convolution: Any) -> bool:
    shape = shape_of(bias)
    channels = shape_of(convolution)[1]
    return shape[-3:] == (channels, 1, 1) and all(extent == 1 for extent in shape[:-3])


def _is_last_axis(axis: int, call: Any) -> bool:
    return int(axis) % _rank(call) == _rank(call) - 1


def _scalar(expression: Any) -> float | None:
    """Return the value of a constant of one element."""
    if not isinstance(expression, tvm.ir.Constant):
        return None
    value = expression.value.numpy()
    return float(value.reshape(())) if value.size == 1 else None


def _rank(expression: Any) -> int:
    return len(expression.ty.shape)


def shape_of(expression: Any) -> tuple[int, ...]:
    """Return the static shape of an expression."""
    return tuple(int(extent) for extent in expression.ty.shape)


def swaps_last_axes(call: Any) -> bool:
    """Say whether a call of `permute_dims` swaps the last two axes and nothing else."""
    rank = _rank(call.args[0])
    if rank < 2:
        return False
    axes: Sequence[Any] | None = call.attrs.axes
    order = [int(axis) % rank for axis in axes] if axes is not None else list(reversed(range(rank)))
    return order == [*range(rank - 2), rank - 1, rank - 2]
