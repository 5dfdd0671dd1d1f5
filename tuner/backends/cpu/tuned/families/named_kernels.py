"""Built-in kernels from their names alone: the space of decisions, and the kernel itself.

A kernel that is made from its name has no bias, and reads from memory what a `joined` one makes itself.
Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

from functools import lru_cache

from cost_model.draft.packed_families import PackedFamily
from cost_model.draft.packed_space import (
    PackedSpace,
    attention_space,
    depthwise_space,
    direct_space,
    product_space,
    rowwise_space,
    winograd_space,
)
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.direct import DirectShape
from tuner.backends.cpu.kernels.inverted_residual import Block, Stage
from tuner.backends.cpu.kernels.packed_product import ProductShape
from tuner.backends.cpu.kernels.winograd_shape import choose_shape
from tuner.backends.cpu.tuned.families.attention_kernel import AttentionKernel, attention_shape_of
from tuner.backends.cpu.tuned.families.convolution_kernels import (
    DepthwiseKernel,
    DirectKernel,
    WinogradKernel,
)
from tuner.backends.cpu.tuned.families.kernel_names import (
    depthwise_shape_of,
    direct_shape_of,
    parse_kernel_name,
)
from tuner.backends.cpu.tuned.families.own_kernel import OwnKernel
from tuner.backends.cpu.tuned.families.product_kernel import ProductKernel
from tuner.backends.cpu.tuned.families.rowwise_kernel import RowwiseKernel
from tuner.targets.vector_registers import WIDE


@lru_cache(maxsize=1024)
def space_of(name: str, registers: int = WIDE) -> PackedSpace:
    """Return what may be decided about the kernel of a name.

    Args:
        name: of a kernel.
        registers: vectors of 16 that all registers hold; those of AVX-512 if left out, whose space has the
            candidates of every other.

    Raises:
        ValueError: there is no such kernel.
    """
    family, numbers, _ = parse_kernel_name(name)
    match family:
        case PackedFamily.PRODUCT:
            return product_space(*numbers, registers=registers)
        case PackedFamily.DIRECT:
            shape = direct_shape_of(name)
            lines, length = shape.lines
            return direct_space(
                lines=lines,
                length=length,
                channels=shape.data[3],
                filters=shape.filters,
                window=shape.window,
                stride=shape.strides[1],
                registers=registers,
            )
        case PackedFamily.DEPTHWISE:
            alone = depthwise_shape_of(numbers)
            batch, rows, columns, channels = alone.result
            return depthwise_space(
                lines=batch * rows,
                length=columns,
                channels=channels,
                window=alone.window,
                stride=alone.strides[1],
                registers=registers,
            )
        case PackedFamily.WINOGRAD:
            batch, channels, height, width, filters, above, left = numbers
            return winograd_space(
                images=batch,
                height=height + 2 * above - 2,
                width=width + 2 * left - 2,
                channels=channels,
                filters=filters,
                registers=registers,
            )
        case PackedFamily.ATTENTION:
            batch, heads, depth, queries, keys = numbers
            return attention_space(
                heads=batch * heads, depth=depth, queries=queries, keys=keys, registers=registers
            )
    wide = direct_shape_of(name)
    between = depthwise_shape_of((*wide.result, *numbers[11:17]))
    return rowwise_space(
        lines=wide.result[0] * wide.result[1],
        length=wide.result[2],
        channels=wide.data[3],
        window=wide.window,
        wide=wide.filters,
        result=between.result[2],
        narrow=numbers[17],
        registers=registers,
    )


def kernel_of(name: str, activation: Bounds, registers: int = WIDE) -> OwnKernel:
    """Return the kernel of a name, without a bias; what a `joined` one reads is in memory here.

    Args:
        name: of a kernel.
        activation: what a convolution does to its results.
        registers: vectors of 16 that all registers hold, which the kernel's rule cuts for.

    Raises:
        ValueError: there is no such kernel.
    """
    family, numbers, _ = parse_kernel_name(name)
    match family:
        case PackedFamily.PRODUCT:
            rows, depth, columns = numbers
            shape = ProductShape(rows=rows, depth=depth, columns=columns, registers=registers)
            return ProductKernel(shape=shape, data_shape=(rows, depth), result_shape=(rows, columns))
        case PackedFamily.DIRECT:
            return DirectKernel(
                shape=direct_shape_of(name, registers), bias_shape=None, activation=activation
            )
        case PackedFamily.DEPTHWISE:
            return DepthwiseKernel(
                shape=depthwise_shape_of(numbers, registers), bias_shape=None, activation=activation
            )
        case PackedFamily.WINOGRAD:
            batch, channels, height, width, filters, above, left = numbers
            cut = choose_shape((batch, channels, height, width), filters, (above, left), registers=registers)
            return WinogradKernel(shape=cut, bias_shape=None, activation=activation, registers=registers)
        case PackedFamily.ATTENTION:
            return AttentionKernel(shape=attention_shape_of(numbers, registers))
    wide = direct_shape_of(name, registers)
    between = depthwise_shape_of((*wide.result, *numbers[11:17]), registers)
    narrow = None
    if numbers[17]:
        last = DirectShape(
            data=between.result,
            filters=numbers[17],
            window=(1, 1),
            strides=(1, 1),
            padding=(0, 0),
            registers=registers,
        )
        narrow = Stage(shape=last, bias_shape=None, activation=activation)
    block = Block(
        wide=Stage(shape=wide, bias_shape=None, activation=activation),
        depthwise=Stage(shape=between, bias_shape=None, activation=activation),
        narrow=narrow,
    )
    return RowwiseKernel(block=block, num_strips=numbers[18])
