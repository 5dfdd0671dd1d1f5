"""Stretches of convolutional networks with channels last inside, as TVM kernels that cost no tuning.

A partition becomes kernels on NHWC tensors; data is turned where it enters and leaves. 3 x 3 convolutions
with stride 1 go by Winograd's method, others of one group by direct kernels, and those with a group for each
channel by depthwise ones, each with its bias, a tensor that is added, and ReLU or a clip in one kernel. A
direct convolution, a depthwise one of its result and a pixelwise one are one kernel, which goes row by row.
Batch normalisation becomes one product and one sum. These, concatenations, activations and average pools
wait until somebody reads their results: a pixelwise convolution does them as it reads
(`tuner.backends.joined_data`), for others they are written to memory. Operators with axes of their own that
are not listed here get their data as it was. Weights are packed once where they never change. Checked in
tests/tuner/backends/test_channels_last.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypedDict

import tvm
from tvm import relax

from tuner.backends import depthwise_kernel, direct_kernel, winograd_kernel
from tuner.backends.activation import NONE, RELU, Activation, activation_of
from tuner.backends.depthwise_kernel import DepthwiseShape
from tuner.backends.direct_kernel import DirectShape
from tuner.backends.inverted_residual_kernel import Block, Stage, block_kernel
from tuner.backends.joined_data import JoinedShape, joining_kernel
from tuner.backends.kernel_schedule import as_finished, schedule_kernels
from tuner.backends.library_call import shape_of
from tuner.backends.pools_first import with_pools_first
from tuner.backends.protocol import IRModule, RelaxFunction
from tuner.backends.register_tile import lanes_of
from tuner.backends.tvm_native import fuse_as_tvm_does, replace_function
from tuner.backends.winograd_shape import choose_shape
from tuner.rules.protocol import Rule
from tuner.rules.segments import Segments, WithPackedWeights
from tuner.target import Target

Expression: TypeAlias = Any
"""A Relax expression; TVM ships no types."""

PrimFunc: TypeAlias = Any
"""A `tvm.tirx.PrimFunc`; TVM ships no types."""

_LAST = (0, 2, 3, 1)
_FIRST = (0, 3, 1, 2)
"""Axes of NCHW data in the order of NHWC, and back."""

_MAX_AGAIN = 1 / 8
"""Rows that strips compute again, as a share, above which a kernel for each convolution is faster."""

_CACHED_BYTES = 1 << 21
"""Weights of a convolution that each row reads again."""

_POOLS: Mapping[str, Callable[..., Expression]] = {
    "relax.nn.max_pool2d": relax.op.nn.max_pool2d,
    "relax.nn.avg_pool2d": relax.op.nn.avg_pool2d,
}

_MAX_PARTS = 64
"""Tensors that a kernel joins as it reads them, at most."""

_MAX_MEAN = 16
"""Pixels whose mean a kernel takes as it reads them, at most."""

_ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "sigmoid", "tanh",
        "nn.relu", "nn.gelu", "nn.silu",
    )
)  # fmt: skip


class ChannelsLast:
    """Runs stretches of convolutional networks with channels last inside, 3 x 3 by Winograd's method."""

    name = "channels_last"
    settings = ""
    reference = "channels_last"
    packs_weights = True
    takes_stretches = True

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return nothing: TVM's own version is in every environment."""
        return ()

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that its kernels are written for a CPU's vectors."""
        return None if target.kind == "cpu" else "its kernels are for a CPU"

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes stretches of a model that is not trained."""
        return WithPackedWeights(Segments(self.name))

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function has no convolution that its kernels are for."""
        if any(_is_ours(binding.value) for binding in _bindings(function)):
            return None
        return "it has no convolution of float32 in one group, or a group a channel, that fills vectors of 4"

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as kernels on tensors with channels last."""
        for name in functions:
            turned = _Turned(with_pools_first(module[name]), target).lowered()
            kernels = fuse_as_tvm_does(relax.transform.LegalizeOps()(turned))
            module = replace_function(module, name, schedule_kernels(kernels, target))
        return module


@dataclass(slots=True)
class _Chain:
    """A convolution and what its kernel does besides.

    Attributes:
        call: the convolution.
        last: the variable of the last operator.
        bias: what is added to each channel.
        other: a tensor that is added.
        activation: what is done to the results.
    """

    call: Expression
    last: Expression
    bias: Expression | None = None
    other: Expression | None = None
    activation: Activation = NONE


@dataclass(frozen=True, slots=True)
class _Joined:
    """Data with channels last that is not in memory as it is: a kernel makes it, or makes it as it reads it.

    Attributes:
        parts: tensors with channels last whose channels are joined.
        scales: factor and shift of each channel; none, or both.
        activation: what is done to the data then.
        window: rows and columns whose mean makes a pixel, after all that.
    """

    parts: tuple[Expression, ...]
    scales: tuple[Expression, ...] = ()
    activation: Activation = NONE
    window: tuple[int, int] = (1, 1)

    @property
    def is_plain(self) -> bool:
        """Whether parts are joined, and that is all."""
        return not self.scales and self.activation == NONE and self.window == (1, 1)

    @property
    def shape(self) -> JoinedShape:
        """What its kernels ask for."""
        extents = [shape_of(part) for part in self.parts]
        return JoinedShape(
            pixels=(extents[0][0], extents[0][1], extents[0][2]),
            channels=tuple(extent[3] for extent in extents),
            is_scaled=bool(self.scales),
            activation=self.activation,
            window=self.window,
        )


class _Place(TypedDict):
    """What direct and depthwise kernels both ask for."""

    data: tuple[int, int, int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]


class _Turned:
    """Writes a function again with channels last."""

    def __init__(self, function: RelaxFunction, target: Target) -> None:
        self.function = function
        self.target = target
        self.builder = relax.BlockBuilder()
        self.first: dict[Expression, Expression] = {}
        self.last: dict[Expression, Expression] = {}
        self.joined: dict[Expression, _Joined] = {}
        self.normalised: dict[Expression, Expression] = {}

    def lowered(self) -> IRModule:
        """Return a module whose `main` does what the function does, with finished kernels of convolutions."""
        parameters = [relax.Var(parameter.name, parameter.ty) for parameter in self.function.params]
        self.first.update(zip(self.function.params, parameters, strict=True))
        chains, inside = _chains(self.function)
        blocks = _blocks(self.function, chains, self.target)
        inside |= {chain.last for block in blocks.values() for chain in block[:-1]}
        result = self.function.body.body
        with self.builder.function("main", parameters):
            with self.builder.dataflow():
                for binding in _read_bindings(self.function):
                    if binding.var in blocks:
                        self.last[binding.var] = self._block(blocks[binding.var])
                    elif binding.var in chains and binding.var not in inside:
                        self.last[binding.var] = self._convolved(chains[binding.var])
                    elif binding.var not in inside:
                        self._bind(binding.var, binding.value)
                found = self.builder.emit_output(self._as_was(result))
            self.builder.emit_func_output(found)
        return self.builder.get()

    def _bind(self, variable: Expression, value: Expression) -> None:
        """Write one operator, with channels last where its data is so already and it can be."""
        if isinstance(value, relax.Var):
            for known in (self.first, self.last, self.joined):
                if value in known:
                    known[variable] = known[value]
            return
        is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
        name = value.op.name if is_call else ""
        if name == "relax.nn.batch_norm" and _is_inference(value) and self._is_last(value.args[0]):
            self.normalised[variable] = value
        elif (
            isinstance(value, relax.TupleGetItem)
            and value.tuple_value in self.normalised
            and value.index == 0
        ):
            self._bind_normalised(variable, self.normalised[value.tuple_value])
        elif is_call and (joined := self._joined(name, value)) is not None:
            self.joined[variable] = joined
        elif is_call and (turned := self._turned(name, value)) is not None:
            self.last[variable] = self.builder.emit(turned)
        else:
            self.first[variable] = self.builder.emit(self._as_was(value))

    def _turned(self, name: str, call: Expression) -> Expression | None:
        """Return the operator with channels last, or None where it must stay as it was."""
        if name == "relax.concat":
            fields = _tensors_of(call)
            is_known = any(self._is_last(each) for each in fields) and int(call.attrs.axis) in (1, -3)
            if not is_known or any(len(shape_of(each)) != 4 for each in fields):
                return None
            return relax.op.concat([self._channels_last(each) for each in fields], axis=3)
        if not any(self._is_last(argument) for argument in call.args):
            return None
        attributes = call.attrs
        if name in _POOLS and attributes.layout == "NCHW":
            return _pooled(name, self._channels_last(call.args[0]), attributes)
        if name == "relax.nn.adaptive_avg_pool2d" and attributes.layout == "NCHW":
            data = self._channels_last(call.args[0])
            return relax.op.nn.adaptive_avg_pool2d(data, attributes.output_size, "NHWC")
        tensors = [argument for argument in call.args if hasattr(argument.ty, "shape")]
        if name in _ELEMENTWISE and all(len(shape_of(tensor)) == 4 for tensor in tensors):
            arguments = [self._channels_last(each) if each in tensors else each for each in call.args]
            return relax.Call(call.op, arguments, call.attrs)
        return None

    def _joined(self, name: str, call: Expression) -> _Joined | None:
        """Return what an operator makes of data, where that may wait until the data is read."""
        if name == "relax.concat":
            fields = _tensors_of(call)
            is_known = any(self._is_last(each) for each in fields) and int(call.attrs.axis) in (1, -3)
            if not is_known or not all(_fills_vectors(each) for each in fields):
                return None
            parts = tuple(part for each in fields for part in self._plain_parts(each))
            return _Joined(parts) if len(parts) <= _MAX_PARTS else None
        found = self.joined.get(call.args[0]) if call.args else None
        if found is None or call.args[0] in self.last:
            return None
        activation = activation_of(call)
        if activation is not None and found.activation == NONE and found.window == (1, 1):
            return replace(found, activation=activation)
        if found.window == (1, 1) and (window := _mean_of(name, call)) is not None:
            return replace(found, window=window)
        if name in _POOLS and call.attrs.layout == "NCHW" and found.is_plain:
            return _Joined(tuple(self.builder.emit(_pooled(name, part, call.attrs)) for part in found.parts))
        return None

    def _plain_parts(self, expression: Expression) -> tuple[Expression, ...]:
        """Return tensors in memory whose channels, joined, are an expression's."""
        found = self.joined.get(expression)
        if found is None or not found.is_plain or expression in self.last:
            return (self._channels_last(expression),)
        return found.parts

    def _bind_normalised(self, variable: Expression, call: Expression) -> None:
        """Write batch normalisation as a product and a sum, whose factors come of weights."""
        data, *parameters = call.args
        gamma, beta, mean, variance = (self._channels_first(parameter) for parameter in parameters)
        emit, op, attributes = self.builder.emit, relax.op, call.attrs
        spread = emit(op.sqrt(emit(op.add(variance, relax.const(float(attributes.epsilon), "float32")))))
        one = relax.const(1.0, "float32")
        factor = emit(op.divide(gamma if attributes.scale else one, spread))
        shift = emit(op.multiply(mean, factor))
        shift = emit(op.subtract(beta, shift) if attributes.center else op.negative(shift))
        if _fills_vectors(data):
            self.joined[variable] = _Joined(self._plain_parts(data), (factor, shift))
        else:
            product = emit(op.multiply(self._channels_last(data), factor))
            self.last[variable] = emit(op.add(product, shift))

    def _in_memory(self, joined: _Joined) -> Expression:
        """Return the data, written by a kernel of its own, or by one that TVM fuses with others."""
        emit, op = self.builder.emit, relax.op
        if len(joined.parts) > 1 or joined.window != (1, 1):
            result = relax.TensorType(joined.shape.result, "float32")
            name = self.builder.add_func(as_finished(joining_kernel(joined.shape)), "join")
            return emit(relax.call_tir(name, [*joined.parts, *joined.scales], result))
        (data,) = joined.parts
        if joined.scales:
            data = emit(op.add(emit(op.multiply(data, joined.scales[0])), joined.scales[1]))
        lower, upper = joined.activation.lower, joined.activation.upper
        if joined.activation == RELU:
            return emit(op.nn.relu(data))
        return data if joined.activation == NONE else emit(op.clip(data, lower, upper))

    def _convolved(self, chain: _Chain) -> Expression:
        """Return the call of the kernel of a convolution and what follows it."""
        bias_shape = None if chain.bias is None else shape_of(chain.bias)
        data = chain.call.args[0]
        is_planar, joined = False, None
        if _is_winograd(chain.call):
            padding = (int(chain.call.attrs.padding[0]), int(chain.call.attrs.padding[1]))
            cut = choose_shape(shape_of(data), _filters_of(chain.call), padding, self.target.num_threads)
            pack = winograd_kernel.weights_kernel(cut)
            kernel = winograd_kernel.convolution_kernel(cut, bias_shape, chain.activation, channels_last=True)
            packed_shape: Sequence[int] = cut.packed_shape
        elif _is_depthwise(chain.call):
            alone = DepthwiseShape(**_place_of(chain.call))
            pack = depthwise_kernel.weights_kernel(alone)
            kernel = depthwise_kernel.convolution_kernel(alone, bias_shape, chain.activation)
            packed_shape = alone.packed_shape
        else:
            shape = self._direct_shape(chain)
            is_planar = shape.is_planar
            pack = direct_kernel.weights_kernel(shape)
            has_other = chain.other is not None
            if shape.sees_one_line and data not in self.last:
                joined = self.joined.get(data)
            kernel = direct_kernel.convolution_kernel(
                shape,
                bias_shape,
                chain.activation,
                has_other=has_other,
                joined=None if joined is None else joined.shape,
            )
            packed_shape = shape.packed_shape
        if joined is not None:
            sources = [*joined.parts, *joined.scales]
        else:
            sources = [self._channels_first(data) if is_planar else self._channels_last(data)]
        operands = self._weights_and_bias(chain, pack, packed_shape)
        return self._called(kernel, [*sources, *operands], chain)

    def _block(self, chains: Sequence[_Chain]) -> Expression:
        """Return the call of the kernel that computes convolutions row by row, as `_blocks` found them."""
        wide, depthwise, *narrow = chains
        shape, alone = self._direct_shape(wide), DepthwiseShape(**_place_of(depthwise.call))
        shapes: list[DirectShape | DepthwiseShape] = [shape, alone]
        shapes += [self._direct_shape(chain) for chain in narrow]
        stages = [
            Stage(
                shape=each,
                bias_shape=None if chain.bias is None else shape_of(chain.bias),
                activation=chain.activation,
            )
            for chain, each in zip(chains, shapes, strict=True)
        ]
        last = chains[-1]
        block = Block(
            wide=stages[0],
            depthwise=stages[1],
            narrow=stages[2] if narrow else None,
            has_other=last.other is not None,
        )
        data = wide.call.args[0]
        operands = [self._channels_first(data) if shape.is_planar else self._channels_last(data)]
        for chain, each in zip(chains, shapes, strict=True):
            if isinstance(each, DepthwiseShape):
                pack = depthwise_kernel.weights_kernel(each)
            else:
                pack = direct_kernel.weights_kernel(each)
            operands += self._weights_and_bias(chain, pack, each.packed_shape)
        return self._called(block_kernel(block, _strips(alone, self.target)), operands, last)

    def _direct_shape(self, chain: _Chain) -> DirectShape:
        data = chain.call.args[0]
        # Few channels, as an image's colours, would be slow to turn and make no vectors.
        is_planar = not self._is_last(data) and not lanes_of(shape_of(data)[1])
        return DirectShape(**_place_of(chain.call), filters=_filters_of(chain.call), is_planar=is_planar)

    def _weights_and_bias(
        self, chain: _Chain, pack: PrimFunc, packed_shape: Sequence[int]
    ) -> list[Expression]:
        """Return a convolution's packed weights, and its bias where it has one."""
        name = self.builder.add_func(as_finished(pack), "pack_weights")
        weights = self._channels_first(chain.call.args[1])
        packed = relax.call_tir(name, [weights], relax.TensorType(tuple(packed_shape), "float32"))
        bias = [] if chain.bias is None else [self._channels_first(chain.bias)]
        return [self.builder.emit(packed), *bias]

    def _called(self, kernel: PrimFunc, operands: Sequence[Expression], chain: _Chain) -> Expression:
        """Return the result of a kernel that ends with a chain, whose other tensor it adds."""
        other = [] if chain.other is None else [self._channels_last(chain.other)]
        batch, filters, height, width = shape_of(chain.last)
        result = relax.TensorType((batch, height, width, filters), "float32")
        name = self.builder.add_func(as_finished(kernel), "convolution")
        return self.builder.emit(relax.call_tir(name, [*operands, *other], result))

    def _is_last(self, expression: Expression) -> bool:
        return expression in self.last or expression in self.joined

    def _channels_last(self, expression: Expression) -> Expression:
        if expression not in self.last and expression in self.joined:
            self.last[expression] = self._in_memory(self.joined[expression])
        elif expression not in self.last:
            turned = relax.op.permute_dims(self._channels_first(expression), list(_LAST))
            self.last[expression] = self.builder.emit(turned)
        return self.last[expression]

    def _channels_first(self, expression: Expression) -> Expression:
        if not isinstance(expression, relax.Var):
            return expression
        if expression not in self.first:
            if expression in self.normalised:  # what else a normalisation returns is asked for
                source = self._as_was(self.normalised[expression])
            else:
                source = relax.op.permute_dims(self._channels_last(expression), list(_FIRST))
            self.first[expression] = self.builder.emit(source)
        return self.first[expression]

    def _as_was(self, value: Expression) -> Expression:
        """Return a value that reads what it read, channels first."""
        if isinstance(value, relax.Var):
            return self._channels_first(value)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._as_was(each) for each in value.fields])
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self._as_was(value.tuple_value), value.index)
        if isinstance(value, relax.Call):
            return relax.Call(
                value.op, [self._as_was(each) for each in value.args], value.attrs, value.ty_args
            )
        return value


def _bindings(function: RelaxFunction) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _read_bindings(function: RelaxFunction) -> list[Any]:
    """Return the bindings that the result depends on: not what else normalisations return, if nobody asks."""
    read = set(relax.analysis.free_vars(function.body.body))
    found = []
    for binding in reversed(_bindings(function)):
        if binding.var in read:
            read |= set(relax.analysis.free_vars(binding.value))
            found.append(binding)
    return found[::-1]


def _tensors_of(call: Expression) -> list[Expression]:
    """Return what a call of `concat` joins; none where that is no tuple written out."""
    return list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []


def _pooled(name: str, data: Expression, attributes: Any) -> Expression:
    """Return a pool of data with channels last."""
    return _POOLS[name](
        data,
        attributes.pool_size,
        attributes.strides,
        attributes.padding,
        attributes.dilation,
        bool(attributes.ceil_mode),
        bool(attributes.count_include_pad),
        "NHWC",
    )


def _mean_of(name: str, call: Expression) -> tuple[int, int] | None:
    """Return the window of an average pool that reads each pixel once; None for any other operator."""
    if name != "relax.nn.avg_pool2d" or call.attrs.layout != "NCHW":
        return None
    rows, columns = (int(extent) for extent in call.attrs.pool_size)
    _, _, height, width = shape_of(call.args[0])
    is_apart = tuple(int(step) for step in call.attrs.strides) == (rows, columns)
    is_inside = {int(extent) for extent in call.attrs.padding} == {0} and not height % rows | width % columns
    is_dense = {int(step) for step in call.attrs.dilation} == {1}
    return (rows, columns) if is_apart and is_inside and is_dense and rows * columns <= _MAX_MEAN else None


def _fills_vectors(tensor: Expression) -> bool:
    """Say whether a tensor's channels fill vectors of float32."""
    extents = shape_of(tensor)
    return len(extents) == 4 and str(tensor.ty.dtype) == "float32" and lanes_of(extents[1]) > 0


def _is_inference(call: Expression) -> bool:
    """Say whether a batch normalisation of axis 1 uses the statistics that it is given."""
    return int(call.attrs.axis) == 1 and not bool(call.attrs.training)


def _is_ours(value: Expression) -> bool:
    """Say whether there is a kernel for a value: a convolution of one group, or of one for each channel."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    if value.op.name != "relax.nn.conv2d" or str(value.ty.dtype) != "float32":
        return False
    attributes = value.attrs
    if (attributes.data_layout, attributes.kernel_layout) != ("NCHW", "OIHW"):
        return False
    top, left, bottom, right = (int(extent) for extent in attributes.padding)
    if int(attributes.groups) != 1 and not _is_depthwise(value):
        return False
    is_plain = {int(step) for step in attributes.dilation} == {1}
    return is_plain and (top, left) == (bottom, right) and lanes_of(shape_of(value.args[1])[0]) > 0


def _is_depthwise(call: Expression) -> bool:
    """Say whether each channel gives one of the result."""
    groups, (filters, channels, *_) = int(call.attrs.groups), shape_of(call.args[1])
    return groups > 1 and channels == 1 and groups == filters


def _is_winograd(call: Expression) -> bool:
    filters = shape_of(call.args[1])
    is_one = {int(step) for step in call.attrs.strides} == {1}
    return is_one and filters[2:] == (3, 3) and lanes_of(filters[1]) > 0 and int(call.attrs.groups) == 1


def _is_direct(call: Expression) -> bool:
    return not _is_winograd(call) and not _is_depthwise(call)


def _is_pixelwise(call: Expression) -> bool:
    place = _place_of(call)
    is_one = (place["window"], place["strides"], place["padding"]) == ((1, 1), (1, 1), (0, 0))
    return is_one and _is_direct(call) and _is_cached(call)


def _goes_by_rows(chain: _Chain, shape: DepthwiseShape, target: Target) -> bool:
    """Say whether a convolution is worth computing row by row, as the depthwise one after it reads it."""
    again = (_strips(shape, target) - 1) * max(0, shape.window[0] - shape.strides[0])
    is_little = again <= _MAX_AGAIN * shape.data[1]
    is_plain = _is_direct(chain.call) and chain.other is None
    return is_plain and is_little and _is_cached(chain.call)


def _is_cached(call: Expression) -> bool:
    """Say whether a convolution's weights stay in a core's cache, from where each row reads them."""
    return 4 * math.prod(shape_of(call.args[1])) <= _CACHED_BYTES


def _strips(shape: DepthwiseShape, target: Target) -> int:
    """Return into how many strips an image's rows are cut, so that each thread has one."""
    return -(-target.num_threads // shape.data[0])


def _place_of(call: Expression) -> _Place:
    batch, channels, height, width = shape_of(call.args[0])
    attributes = call.attrs
    return {
        "data": (batch, height, width, channels),
        "window": (shape_of(call.args[1])[2], shape_of(call.args[1])[3]),
        "strides": (int(attributes.strides[0]), int(attributes.strides[1])),
        "padding": (int(attributes.padding[0]), int(attributes.padding[1])),
    }


def _filters_of(call: Expression) -> int:
    return shape_of(call.args[1])[0]


def _readers(function: RelaxFunction) -> dict[Expression, list[Any]]:
    """Return the bindings that read each variable."""
    readers: dict[Expression, list[Any]] = {}
    for binding in _bindings(function):
        for variable in relax.analysis.free_vars(binding.value):
            readers.setdefault(variable, []).append(binding)
    return readers


def _chains(function: RelaxFunction) -> tuple[dict[Expression, _Chain], set[Expression]]:
    """Return convolutions with what follows by the last variable of each, and the variables before those."""
    bindings, readers = _bindings(function), _readers(function)
    results = set(relax.analysis.free_vars(function.body.body))
    chains: dict[Expression, _Chain] = {}
    inside: set[Expression] = set()
    taken: set[Expression] = set()
    for binding in bindings:
        if not _is_ours(binding.value):
            continue
        chain = _Chain(binding.value, binding.var)
        while chain.last not in results and len(readers.get(chain.last, ())) == 1:
            (reader,) = readers[chain.last]
            # Of two convolutions that are added the first one's kernel adds.
            if reader.var in taken or not _absorb(chain, reader.value):
                break
            taken.add(reader.var)
            inside.add(chain.last)
            chain.last = reader.var
            if chain.activation != NONE:
                break
        chains[chain.last] = chain
    return chains, inside


def _blocks(
    function: RelaxFunction, chains: dict[Expression, _Chain], target: Target
) -> dict[Expression, tuple[_Chain, ...]]:
    """Return convolutions that one kernel computes row by row, by the last variable of each.

    They are direct ones that a depthwise one alone reads, and pixelwise ones that alone read that one.
    """
    readers, results = _readers(function), set(relax.analysis.free_vars(function.body.body))
    chain_of = {chain.call: chain for chain in chains.values()}

    def reader(chain: _Chain) -> _Chain | None:
        found = readers.get(chain.last, [])
        if chain.last in results or len(found) != 1 or found[0].value not in chain_of:
            return None
        after = chain_of[found[0].value]
        return after if after.call.args[0] == chain.last and after.other != chain.last else None

    blocks: dict[Expression, tuple[_Chain, ...]] = {}
    for chain in chains.values():
        depthwise = reader(chain)
        if depthwise is None or not _is_depthwise(depthwise.call):
            continue
        shape = DepthwiseShape(**_place_of(depthwise.call))
        if not _goes_by_rows(chain, shape, target):
            continue
        narrow = reader(depthwise)
        # Behind strides the third one measured slower in this kernel than in one of its own.
        if narrow is None or shape.strides != (1, 1) or not _is_pixelwise(narrow.call):
            blocks[depthwise.last] = (chain, depthwise)
        else:
            blocks[narrow.last] = (chain, depthwise, narrow)
    return blocks


def _absorb(chain: _Chain, value: Expression) -> bool:
    """Note that the kernel of a convolution does this operator too, where it can."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    if (bounds := activation_of(value)) is not None:
        chain.activation = bounds
        return True
    if value.op.name != "relax.add" or shape_of(value) != shape_of(chain.last):
        return False
    (added,) = [argument for argument in value.args if argument != chain.last] or (None,)
    if not isinstance(added, relax.Var):
        return False
    shape, filters = shape_of(added), shape_of(chain.last)[1]
    is_channels = shape[-3:] == (filters, 1, 1) and all(extent == 1 for extent in shape[:-3])
    if is_channels and chain.bias is None and chain.other is None:
        chain.bias = added
        return True
    if shape == shape_of(chain.last) and chain.other is None and _is_direct(chain.call):
        chain.other = added
        return True
    return False
