"""A convolution, a depthwise one, and a 1 x 1 one, row by row in one TVM kernel.

MobileNet's blocks widen an image, take a depthwise convolution of what they got, and narrow it. The wide
images are the largest data of the network, and one that fills more than the cache of a core takes as long to
write and to read again as to compute. Here a row of the result is computed as soon as its rows of the wide
image are there, of which no more are kept than the depthwise window covers. Threads share strips of rows; the
rows above a strip that its window covers are computed again. Checked in
tests/tuner/backends/cpu/kernels/test_inverted_residual.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels import depthwise, direct
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape
from tuner.backends.cpu.kernels.direct import DirectShape, Steps, emit_padding
from tuner.backends.cpu.kernels.memory import Operands, flat
from tuner.graph.relax_types import PrimFunc


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One of the convolutions.

    Attributes:
        bias_shape: of a bias with one element per filter, or None.
        activation: what is done to the results.
    """

    shape: DirectShape | DepthwiseShape
    bias_shape: Sequence[int] | None
    activation: Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Convolutions of which each reads the one before.

    Attributes:
        wide: the first, which is direct.
        depthwise: the second.
        narrow: the third, which is direct and pixelwise, or None.
        has_other: whether a tensor of the result's shape is added to the third's.
    """

    wide: Stage
    depthwise: Stage
    narrow: Stage | None
    has_other: bool = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those that there are."""
        first = (self.wide, self.depthwise)
        return first if self.narrow is None else (*first, self.narrow)


def block_kernel(block: Block, num_strips: int) -> PrimFunc:
    """Return the kernel of data, packed weights and bias of each stage, what else is added, and the result.

    Args:
        num_strips: into how many strips each image is cut.
    """
    shape, result_shape = _direct(block.wide), block.stages[-1].shape.result
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("inverted_residual")
        data = script.arg("data", script.buffer(shape.data_in_memory, "float32"))
        weights, biases = zip(*(_arguments(stage, i) for i, stage in enumerate(block.stages)), strict=True)
        more = script.arg("other", script.buffer(result_shape, "float32")) if block.has_other else None
        result = script.arg("result", script.buffer(result_shape, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source = flat(data, math.prod(shape.data))
            if shape.padding != (0, 0):
                padded = script.alloc_buffer((math.prod(shape.padded),), "float32")
                emit_padding(shape, source, padded)
                source = padded
            stages = [
                partial(
                    Operands,
                    weights=flat(packed, math.prod(stage.shape.packed_shape)),
                    bias=None if bias is None else flat(bias, stage.shape.result[3]),
                )
                for stage, packed, bias in zip(block.stages, weights, biases, strict=True)
            ]
            target = flat(result, math.prod(result_shape))
            other = None if more is None else flat(more, math.prod(result_shape))
            _emit_strips(block, num_strips, source, stages, other, target)
    return builder.get()


def _direct(stage: Stage) -> DirectShape:
    assert isinstance(stage.shape, DirectShape)
    return stage.shape


def _depthwise(stage: Stage) -> DepthwiseShape:
    assert isinstance(stage.shape, DepthwiseShape)
    return stage.shape


def _arguments(stage: Stage, index: int) -> tuple[Any, Any]:
    """Declare a stage's weights and its bias, which may be None."""
    packed = script.arg(f"packed_{index}", script.buffer(stage.shape.packed_shape, "float32"))
    if not stage.bias_shape:
        return packed, None
    return packed, script.arg(f"bias_{index}", script.buffer(tuple(stage.bias_shape), "float32"))


def _emit_strips(
    block: Block,
    num_strips: int,
    source: Any,
    stages: Sequence[Callable[..., Operands]],
    other: Any,
    target: Any,
) -> None:
    """Compute the results strip by strip, each row by row."""
    shape = _depthwise(block.depthwise)
    batch, rows, columns, channels = shape.result
    kept = shape.window[0] * math.prod(shape.data[2:])
    strip = -(-rows // num_strips)
    with script.parallel(batch * num_strips) as task:
        image = script.Bind(task // num_strips)
        first = script.Bind(script.min(task % num_strips * strip, rows))
        wide = script.alloc_buffer((kept,), "float32")
        wider = stages[0](data=source, result=wide)
        line = target if block.narrow is None else script.alloc_buffer((columns * channels,), "float32")
        between = stages[1](data=wide, result=line)
        with script.serial(script.min(strip, rows - first)) as step:
            row = script.Bind(first + step)
            _emit_wide_rows(block, wider, image, row, is_first=step == 0)
            pixel = script.Bind((image * rows + row) * columns)
            depthwise.emit_row(
                shape,
                between,
                block.depthwise.activation,
                row=row,
                vectors=(0, channels // shape.lanes),
                data_row=lambda y: y % shape.window[0],
                pixel=pixel if block.narrow is None else 0,
            )
            if block.narrow is not None:
                narrower = stages[2](data=line, result=target, other=other)
                activation = block.narrow.activation
                direct.emit_row(_direct(block.narrow), narrower, activation, start=0, pixel=pixel)


def _emit_wide_rows(block: Block, operands: Operands, image: Any, row: Any, *, is_first: Any) -> None:
    """Compute those rows of the wide image that a row of depthwise results is the first to need."""
    shape, wide = _depthwise(block.depthwise), _direct(block.wide)
    height, step = shape.window[0], shape.strides[0]
    top = row * step - shape.padding[0]
    end = script.Bind(script.max(0, script.min(top + height, shape.data[1])))
    known = script.max(0, script.min(top - step + height, shape.data[1]))
    start = script.Bind(script.max(script.max(0, top), script.Select(is_first, 0, known)))
    with script.serial(script.max(0, end - start)) as member:
        y = script.Bind(start + member)
        direct.emit_row(
            wide,
            operands,
            block.wide.activation,
            start=Steps(wide).of_row(image, y),
            pixel=y % height * wide.result[2],
        )
