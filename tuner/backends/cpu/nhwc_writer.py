"""Rewrite a contiguous sub-graph of a convolutional network in channels-last layout, as kernel calls.

Data is transposed on entry and on exit. Batch normalisation becomes one product and one sum. These,
concatenations, activations and average pools are deferred until their results are read: a pixelwise
convolution applies them as it reads (`tuner.backends.cpu.kernels.fused_concat_input`), for others they are
written to memory. Operators with axes of their own that are not listed here get their data as it was. Checked
in tests/tuner/backends/cpu/test_nhwc.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from cost_model.register_tile import lanes_of
from tuner.backends.cpu.convolution_chains import (
    Chain,
    bindings_of,
    filters_of,
    find_blocks,
    find_chains,
    is_depthwise,
    is_winograd,
    num_strips,
    place_of,
)
from tuner.backends.cpu.kernels import depthwise, direct, winograd
from tuner.backends.cpu.kernels.clamp import RELU, UNBOUNDED, Bounds, bounds_of
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape
from tuner.backends.cpu.kernels.direct import DirectShape
from tuner.backends.cpu.kernels.fused_concat_input import JoinedShape, joining_kernel
from tuner.backends.cpu.kernels.inverted_residual import Block, Stage, block_kernel
from tuner.backends.cpu.kernels.winograd_shape import choose_shape
from tuner.backends.library_call import shape_of
from tuner.backends.tvm.schedule import as_finished
from tuner.graph.relax_types import Expression, IRModule, PrimFunc, RelaxFunction
from tuner.targets.target import Target
from tuner.targets.vector_registers import vector_registers

_LAST = (0, 2, 3, 1)
_FIRST = (0, 3, 1, 2)
"""Axes of NCHW data in the order of NHWC, and back."""

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


def with_channels_last(function: RelaxFunction, target: Target) -> IRModule:
    """Return a module whose `main` does what the function does, with finished kernels of its convolutions.

    Parameters and results stay as they are, channels first. Operators that are no convolutions are left to
    TVM's legalisation, with channels last where they can be.

    Args:
        function: of static shapes; `tuner.backends.cpu.convolution_chains` says which convolutions have
            kernels.
        target: the CPU whose threads share the kernels' work.
    """
    return _Writer(function, target).lowered()


@dataclass(frozen=True, slots=True)
class _Joined:
    """Channels-last data that is not materialised: a kernel of its own writes it, or its reader computes it.

    Attributes:
        parts: tensors with channels last whose channels are joined.
        scales: factor and shift of each channel; none, or both.
        activation: what is done to the data then.
        window: rows and columns whose mean makes a pixel, after all that.
    """

    parts: tuple[Expression, ...]
    scales: tuple[Expression, ...] = ()
    activation: Bounds = UNBOUNDED
    window: tuple[int, int] = (1, 1)

    @property
    def is_plain(self) -> bool:
        """Whether parts are joined, and that is all."""
        return not self.scales and self.activation == UNBOUNDED and self.window == (1, 1)

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


class _Writer:
    """Writes a function again with channels last."""

    def __init__(self, function: RelaxFunction, target: Target) -> None:
        self.function = function
        self.target = target
        self.registers = vector_registers(target)
        self.builder = relax.BlockBuilder()
        self.first: dict[Expression, Expression] = {}
        self.last: dict[Expression, Expression] = {}
        self.joined: dict[Expression, _Joined] = {}
        self.normalised: dict[Expression, Expression] = {}

    def lowered(self) -> IRModule:
        """Return a module whose `main` does what the function does, with finished kernels of convolutions."""
        parameters = [relax.Var(parameter.name, parameter.ty) for parameter in self.function.params]
        self.first.update(zip(self.function.params, parameters, strict=True))
        chains, inside = find_chains(self.function)
        blocks = find_blocks(self.function, chains, self.target)
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
        activation = bounds_of(call)
        if activation is not None and found.activation == UNBOUNDED and found.window == (1, 1):
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
        return data if joined.activation == UNBOUNDED else emit(op.clip(data, lower, upper))

    def _convolved(self, chain: Chain) -> Expression:
        """Return the call of the kernel of a convolution and what follows it."""
        bias_shape = None if chain.bias is None else shape_of(chain.bias)
        data = chain.call.args[0]
        if is_winograd(chain.call):
            padding = (int(chain.call.attrs.padding[0]), int(chain.call.attrs.padding[1]))
            cut = choose_shape(
                shape_of(data),
                filters_of(chain.call),
                padding,
                self.target.num_threads,
                registers=self.registers,
            )
            source = self._channels_last(data)
            kernel = winograd.convolution_kernel(cut, bias_shape, chain.activation)
            operands = self._weights_and_bias(chain, winograd.weights_kernel(cut), cut.packed_shape)
            return self._called(kernel, [source, *operands], chain)
        if is_depthwise(chain.call):
            alone = DepthwiseShape(**place_of(chain.call), registers=self.registers)
            source = self._channels_last(data)
            kernel = depthwise.convolution_kernel(alone, bias_shape, chain.activation)
            operands = self._weights_and_bias(chain, depthwise.weights_kernel(alone), alone.packed_shape)
            return self._called(kernel, [source, *operands], chain)
        return self._direct(chain, bias_shape)

    def _direct(self, chain: Chain, bias_shape: tuple[int, ...] | None) -> Expression:
        """Return the call of a direct convolution's kernel, which makes joined data as it reads it."""
        data, shape = chain.call.args[0], self._direct_shape(chain).laid_down
        joined = self.joined.get(data) if shape.sees_one_line and data not in self.last else None
        kernel = direct.convolution_kernel(
            shape,
            bias_shape,
            chain.activation,
            has_other=chain.other is not None,
            joined=None if joined is None else joined.shape,
        )
        if joined is not None:
            sources = [*joined.parts, *joined.scales]
        else:
            source = self._channels_first(data) if shape.is_planar else self._channels_last(data)
            sources = [self._shaped(source, shape.data_in_memory)]
        operands = self._weights_and_bias(
            chain, direct.weights_kernel(shape), shape.packed_shape, window=shape.window
        )
        return self._called(kernel, [*sources, *operands], chain, shape=shape.result)

    def _block(self, chains: Sequence[Chain]) -> Expression:
        """Return the call of the kernel that computes convolutions row by row, as `find_blocks` found."""
        wide, between, *narrow = chains
        shape = self._direct_shape(wide)
        alone = DepthwiseShape(**place_of(between.call), registers=self.registers)
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
        for chain, stage in zip(chains, stages, strict=True):
            each = stage.shape
            if isinstance(each, DepthwiseShape):
                pack = depthwise.weights_kernel(each)
            else:
                pack = direct.weights_kernel(each)
            operands += self._weights_and_bias(chain, pack, each.packed_shape)
        return self._called(block_kernel(block, num_strips(alone, self.target)), operands, last)

    def _direct_shape(self, chain: Chain) -> DirectShape:
        data = chain.call.args[0]
        # Few channels, as an image's colours, would be slow to turn and make no vectors.
        is_planar = not self._is_last(data) and not lanes_of(shape_of(data)[1])
        return DirectShape(
            **place_of(chain.call),
            filters=filters_of(chain.call),
            is_planar=is_planar,
            registers=self.registers,
        )

    def _shaped(self, expression: Expression, shape: Sequence[int]) -> Expression:
        """Return a tensor in a shape of as many elements in the same order."""
        if shape_of(expression) == tuple(shape):
            return expression
        return self.builder.emit(relax.op.reshape(expression, tuple(shape)))

    def _weights_and_bias(
        self,
        chain: Chain,
        pack: PrimFunc,
        packed_shape: Sequence[int],
        *,
        window: tuple[int, int] | None = None,
    ) -> list[Expression]:
        """Return a convolution's packed weights, laid to a window if given, and its bias where it has one."""
        name = self.builder.add_func(as_finished(pack), "pack_weights")
        weights = self._channels_first(chain.call.args[1])
        if window is not None:
            weights = self._shaped(weights, (*shape_of(weights)[:2], *window))
        packed = relax.call_tir(name, [weights], relax.TensorType(tuple(packed_shape), "float32"))
        bias = [] if chain.bias is None else [self._channels_first(chain.bias)]
        return [self.builder.emit(packed), *bias]

    def _called(
        self,
        kernel: PrimFunc,
        operands: Sequence[Expression],
        chain: Chain,
        *,
        shape: tuple[int, ...] | None = None,
    ) -> Expression:
        """Return the result of a kernel that ends with a chain, whose other tensor it adds.

        Args:
            operands: before that tensor.
            shape: in which the kernel has the result; None for that which it has with channels last.
        """
        batch, filters, height, width = shape_of(chain.last)
        last = (batch, height, width, filters)
        shape = shape or last
        other = [] if chain.other is None else [self._shaped(self._channels_last(chain.other), shape)]
        name = self.builder.add_func(as_finished(kernel), "convolution")
        result = relax.TensorType(shape, "float32")
        return self._shaped(self.builder.emit(relax.call_tir(name, [*operands, *other], result)), last)

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


def _read_bindings(function: RelaxFunction) -> list[Any]:
    """Return the bindings that the result depends on: not what else normalisations return, if nobody asks."""
    read = set(relax.analysis.free_vars(function.body.body))
    found = []
    for binding in reversed(bindings_of(function)):
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
