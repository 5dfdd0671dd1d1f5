"""Our own kernels for one shape each, with what may be decided about them.

A kernel has a name that says its family and all numbers that legal decisions depend on, but not what is done
with its results: bias, activation and what is added change little about which tile is fastest. Trials are
kept by name, so a name is enough to know the space of its trials (`space_of`). Without decisions a kernel
takes those of its own rule. Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from cost_model.draft.packed_families import PackedFamily
from cost_model.draft.packed_space import (
    PackedSpace,
    depthwise_space,
    direct_space,
    product_space,
    rowwise_space,
    winograd_space,
)
from tuner.backends.cpu.kernels import depthwise, direct, packed_product, winograd
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape, DepthwiseTile
from tuner.backends.cpu.kernels.direct import DirectShape, DirectTile
from tuner.backends.cpu.kernels.fused_concat_input import JoinedShape
from tuner.backends.cpu.kernels.inverted_residual import Block, Stage, block_kernel
from tuner.backends.cpu.kernels.packed_product import ProductShape, ProductTile
from tuner.backends.cpu.kernels.winograd_shape import WinogradShape, choose_shape
from tuner.backends.library_call import Activation, Then
from tuner.graph.relax_types import PrimFunc
from tuner.targets.vector_registers import WIDE

Decisions = Mapping[str, int]
"""The value of each decision by its name; those of the kernel's own rule if empty."""

BACKEND_BY_FAMILY: Mapping[PackedFamily, str] = {
    PackedFamily.PRODUCT: "packed_matmul",
    PackedFamily.DIRECT: "nhwc",
    PackedFamily.DEPTHWISE: "nhwc",
    PackedFamily.WINOGRAD: "nhwc",
    PackedFamily.ROWWISE: "nhwc",
}
"""Who runs the kernels of a family."""

_NAME = re.compile(r"(\w+):(\d+(?:x\d+)*)((?:,\w+)*)")

_NUMBERS = {
    PackedFamily.PRODUCT: 3,
    PackedFamily.DIRECT: 11,
    PackedFamily.DEPTHWISE: 10,
    PackedFamily.WINOGRAD: 7,
    PackedFamily.ROWWISE: 19,
}

_MAX_NUMBER = 1 << 24


class OwnKernel(Protocol):
    """One of our kernels for one shape, with what it does to its results."""

    @property
    def name(self) -> str:
        """Its family and shape."""
        ...

    @property
    def operations(self) -> int:
        """Additions and multiplications, as the convolution or product is defined."""
        ...

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule that its space names, which need not be in the space."""
        ...

    def with_decisions(self, decisions: Decisions) -> OwnKernel:
        """Return the kernel with a candidate's decisions.

        Raises:
            ValueError: there is no such kernel.
        """
        ...

    def function(self) -> PrimFunc:
        """Return the kernel of data, packed weights, and what else it reads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductKernel:
    """A product with a packed matrix.

    Attributes:
        shape: the product, and how it is cut.
        data_shape: of the data in memory.
        result_shape: of the result in memory.
        activation: what is done to the results.
        then: how another tensor is joined.
        bias_shape: of a bias with one element per column, or None.
    """

    shape: ProductShape
    data_shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    activation: Activation = ""
    then: Then = ""
    bias_shape: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Its family and shape."""
        return _name(PackedFamily.PRODUCT, (self.shape.rows, self.shape.depth, self.shape.columns))

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return 2 * self.shape.rows * self.shape.depth * self.shape.columns

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule."""
        plain = replace(self.shape, tile=None)
        return {
            "rows": plain.tile_rows,
            "vectors": plain.vectors,
            "lanes": plain.lanes,
            "block_rows": min(plain.rows, plain.block_tiles * plain.tile_rows),
            "depth_block": 0,
            "unroll": 1,
            "packs_data": 0,
            "shares_blocks": 0,
            "stores_sums": 0 if self.activation in ("", "relu") else 1,
        }

    def with_decisions(self, decisions: Decisions) -> ProductKernel:
        """Return the kernel with a candidate's decisions."""
        tile = None
        if decisions:
            rows = decisions["rows"]
            tile = ProductTile(
                rows=rows,
                vectors=decisions["vectors"],
                lanes=decisions["lanes"],
                block_tiles=max(1, decisions["block_rows"] // rows),
                depth_block=decisions["depth_block"],
                unroll=decisions["unroll"],
                packs_data=bool(decisions["packs_data"]),
                shares_blocks=bool(decisions["shares_blocks"]),
                stores_sums=bool(decisions["stores_sums"]),
            )
        return replace(self, shape=replace(self.shape, tile=tile))

    def function(self) -> PrimFunc:
        """Return the kernel of data, packed weights, bias, what is joined, and the result."""
        return packed_product.product_kernel(
            self.shape,
            (self.data_shape, self.result_shape),
            self.activation,
            self.then,
            bias_shape=self.bias_shape,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectKernel:
    """A direct convolution.

    Attributes:
        shape: the convolution, and how it is cut.
        bias_shape: of a bias with one element per filter, or None.
        activation: what is done to the results.
        has_other: whether a tensor is added.
        joined: how its data is made, where it is not in memory.
    """

    shape: DirectShape
    bias_shape: tuple[int, ...] | None
    activation: Bounds
    has_other: bool = False
    joined: JoinedShape | None = None

    @property
    def name(self) -> str:
        """Its family and shape."""
        flags = ("planar",) * self.shape.is_planar + ("joined",) * (self.joined is not None)
        return _name(PackedFamily.DIRECT, _direct_numbers(self.shape), flags)

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return _direct_operations(self.shape)

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule."""
        plain = replace(self.shape, tile=None)
        num_tiles = plain.lines[0] * -(-plain.lines[1] // plain.tile_rows)
        panels_first = direct.takes_panels_first(plain, num_tiles)
        return {
            "rows": plain.tile_rows,
            "vectors": plain.vectors,
            "lanes": plain.lanes,
            "block_tiles": 65536 if panels_first else 1,
            "unroll": 1,
        }

    def with_decisions(self, decisions: Decisions) -> DirectKernel:
        """Return the kernel with a candidate's decisions."""
        tile = DirectTile(**decisions) if decisions else None
        return replace(self, shape=replace(self.shape, tile=tile))

    def function(self) -> PrimFunc:
        """Return the kernel of data, packed weights, bias, what is added, and the result."""
        return direct.convolution_kernel(
            self.shape, self.bias_shape, self.activation, has_other=self.has_other, joined=self.joined
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseKernel:
    """A depthwise convolution.

    Attributes:
        shape: the convolution, and how it is cut.
        bias_shape: of a bias with one element per channel, or None.
        activation: what is done to the results.
    """

    shape: DepthwiseShape
    bias_shape: tuple[int, ...] | None
    activation: Bounds

    @property
    def name(self) -> str:
        """Its family and shape."""
        return _name(PackedFamily.DEPTHWISE, (*self.shape.data, *_window_numbers(self.shape)))

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return 2 * math.prod(self.shape.result) * math.prod(self.shape.window)

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule."""
        plain = replace(self.shape, tile=None)
        return {"pixels": plain.pixels, "lanes": plain.lanes, "group": plain.group}

    def with_decisions(self, decisions: Decisions) -> DepthwiseKernel:
        """Return the kernel with a candidate's decisions."""
        tile = DepthwiseTile(**decisions) if decisions else None
        return replace(self, shape=replace(self.shape, tile=tile))

    def function(self) -> PrimFunc:
        """Return the kernel of data, packed weights, bias, and the result."""
        return depthwise.convolution_kernel(self.shape, self.bias_shape, self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class WinogradKernel:
    """A convolution by Winograd's method.

    Attributes:
        shape: the convolution, and how it is cut.
        bias_shape: of a bias with one element per filter, or None.
        activation: what is done to the results.
        num_threads: that the rule cuts for.
        registers: likewise.
    """

    shape: WinogradShape
    bias_shape: tuple[int, ...] | None
    activation: Bounds
    num_threads: int = 1
    registers: int = WIDE

    @property
    def name(self) -> str:
        """Its family and shape."""
        shape = self.shape
        numbers = (shape.batch, shape.channels, shape.height, shape.width, shape.filters, *shape.padding)
        return _name(PackedFamily.WINOGRAD, numbers)

    @property
    def operations(self) -> int:
        """Additions and multiplications of the same convolution without this method."""
        shape = self.shape
        results = shape.batch * shape.result_height * shape.result_width
        return 18 * results * shape.channels * shape.filters

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule."""
        plain = self._by_rule()
        return {
            "tile": plain.tile,
            "rows": plain.rows,
            "vectors": plain.vectors,
            "lanes": plain.filter_lanes,
            "groups": plain.block // plain.rows,
            "unroll": 1,
        }

    def with_decisions(self, decisions: Decisions) -> WinogradKernel:
        """Return the kernel with a candidate's decisions."""
        plain = self._by_rule()
        if not decisions:
            return replace(self, shape=plain)
        cut = replace(
            plain,
            tile=decisions["tile"],
            rows=decisions["rows"],
            vectors=decisions["vectors"],
            lanes=decisions["lanes"],
            unroll=decisions["unroll"],
            block=decisions["rows"] * decisions["groups"],
        )
        return replace(self, shape=cut)

    def function(self) -> PrimFunc:
        """Return the kernel of data, packed weights, bias, and the result."""
        return winograd.convolution_kernel(self.shape, self.bias_shape, self.activation)

    def _by_rule(self) -> WinogradShape:
        shape = self.shape
        data = (shape.batch, shape.channels, shape.height, shape.width)
        return choose_shape(data, shape.filters, shape.padding, self.num_threads, registers=self.registers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowwiseKernel:
    """A direct, a depthwise and perhaps a pixelwise convolution, row by row.

    Attributes:
        block: the convolutions, and how they are cut.
        num_strips: into how many strips each image is cut.
    """

    block: Block
    num_strips: int

    @property
    def name(self) -> str:
        """Its family and shape."""
        wide, between, narrow = self._shapes()
        numbers = (
            *_direct_numbers(wide),
            *_window_numbers(between),
            0 if narrow is None else narrow.filters,
            self.num_strips,
        )
        return _name(PackedFamily.ROWWISE, numbers, ("planar",) * wide.is_planar)

    @property
    def operations(self) -> int:
        """Additions and multiplications, without rows that strips compute again."""
        wide, between, narrow = self._shapes()
        last = 0 if narrow is None else _direct_operations(narrow)
        return _direct_operations(wide) + 2 * math.prod(between.result) * math.prod(between.window) + last

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule."""
        wide, between, narrow = (
            None if each is None else replace(each, tile=None) for each in self._shapes()
        )
        assert isinstance(wide, DirectShape), "the first is direct"
        assert isinstance(between, DepthwiseShape), "the second is depthwise"
        found = {
            "rows": direct.tile_rows_of_row(wide),
            "vectors": wide.vectors,
            "lanes": wide.lanes,
            "pixels": between.pixels,
            "between_lanes": between.lanes,
            "last_rows": 0,
            "last_vectors": 0,
            "last_lanes": 0,
        }
        if isinstance(narrow, DirectShape):
            found |= {
                "last_rows": direct.tile_rows_of_row(narrow),
                "last_vectors": narrow.vectors,
                "last_lanes": narrow.lanes,
            }
        return found

    def with_decisions(self, decisions: Decisions) -> RowwiseKernel:
        """Return the kernel with a candidate's decisions."""
        wide, between, narrow = self._shapes()
        first = second = third = None
        if decisions:
            first = DirectTile(rows=decisions["rows"], vectors=decisions["vectors"], lanes=decisions["lanes"])
            lanes = decisions["between_lanes"]
            second = DepthwiseTile(pixels=decisions["pixels"], lanes=lanes, group=between.data[3] // lanes)
            if narrow is not None:
                third = DirectTile(
                    rows=decisions["last_rows"],
                    vectors=decisions["last_vectors"],
                    lanes=decisions["last_lanes"],
                )
        block = self.block
        cut = replace(
            block,
            wide=replace(block.wide, shape=replace(wide, tile=first)),
            depthwise=replace(block.depthwise, shape=replace(between, tile=second)),
            narrow=None
            if block.narrow is None or narrow is None
            else replace(block.narrow, shape=replace(narrow, tile=third)),
        )
        return replace(self, block=cut)

    def function(self) -> PrimFunc:
        """Return the kernel of data, packed weights and bias of each, what is added, and the result."""
        return block_kernel(self.block, self.num_strips)

    def _shapes(self) -> tuple[DirectShape, DepthwiseShape, DirectShape | None]:
        wide, between = self.block.wide.shape, self.block.depthwise.shape
        narrow = None if self.block.narrow is None else self.block.narrow.shape
        assert isinstance(wide, DirectShape), "the first is direct"
        assert isinstance(between, DepthwiseShape), "the second is depthwise"
        assert narrow is None or isinstance(narrow, DirectShape), "the third is direct"
        return wide, between, narrow


def family_of(name: str) -> PackedFamily:
    """Return the family of a kernel's name.

    Raises:
        ValueError: there is no such kernel.
    """
    return _parsed(name)[0]


@lru_cache(maxsize=1024)
def space_of(name: str) -> PackedSpace:
    """Return what may be decided about the kernel of a name.

    Raises:
        ValueError: there is no such kernel.
    """
    family, numbers, _ = _parsed(name)
    match family:
        case PackedFamily.PRODUCT:
            return product_space(*numbers)
        case PackedFamily.DIRECT:
            shape = _direct_of(name)
            lines, length = shape.lines
            return direct_space(
                lines=lines,
                length=length,
                channels=shape.data[3],
                filters=shape.filters,
                window=shape.window,
                stride=shape.strides[1],
            )
        case PackedFamily.DEPTHWISE:
            alone = _depthwise_of(numbers)
            batch, rows, columns, channels = alone.result
            return depthwise_space(
                lines=batch * rows,
                length=columns,
                channels=channels,
                window=alone.window,
                stride=alone.strides[1],
            )
        case PackedFamily.WINOGRAD:
            batch, channels, height, width, filters, above, left = numbers
            return winograd_space(
                images=batch,
                height=height + 2 * above - 2,
                width=width + 2 * left - 2,
                channels=channels,
                filters=filters,
            )
    wide = _direct_of(name)
    between = _depthwise_of((*wide.result, *numbers[11:17]))
    return rowwise_space(
        lines=wide.result[0] * wide.result[1],
        length=wide.result[2],
        channels=wide.data[3],
        window=wide.window,
        wide=wide.filters,
        result=between.result[2],
        narrow=numbers[17],
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
    family, numbers, _ = _parsed(name)
    match family:
        case PackedFamily.PRODUCT:
            rows, depth, columns = numbers
            shape = ProductShape(rows=rows, depth=depth, columns=columns, registers=registers)
            return ProductKernel(shape=shape, data_shape=(rows, depth), result_shape=(rows, columns))
        case PackedFamily.DIRECT:
            return DirectKernel(shape=_direct_of(name, registers), bias_shape=None, activation=activation)
        case PackedFamily.DEPTHWISE:
            return DepthwiseKernel(
                shape=_depthwise_of(numbers, registers), bias_shape=None, activation=activation
            )
        case PackedFamily.WINOGRAD:
            batch, channels, height, width, filters, above, left = numbers
            cut = choose_shape((batch, channels, height, width), filters, (above, left), registers=registers)
            return WinogradKernel(shape=cut, bias_shape=None, activation=activation, registers=registers)
    wide = _direct_of(name, registers)
    between = _depthwise_of((*wide.result, *numbers[11:17]), registers)
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


def _name(family: PackedFamily, numbers: Sequence[int], flags: Sequence[str] = ()) -> str:
    return ",".join((f"{family}:{'x'.join(map(str, numbers))}", *flags))


@lru_cache(maxsize=4096)
def _parsed(name: str) -> tuple[PackedFamily, tuple[int, ...], tuple[str, ...]]:
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in set(PackedFamily):
        raise ValueError(
            f"kernel {name!r} is none of ours; give a family of {', '.join(PackedFamily)}, a colon, and "
            "numbers"
        )
    family, numbers = PackedFamily(match[1]), tuple(map(int, match[2].split("x")))
    if len(numbers) != _NUMBERS[family] or max(numbers) > _MAX_NUMBER:
        raise ValueError(
            f"kernel {name!r} has {len(numbers)} numbers; {family} has {_NUMBERS[family]}, each at most "
            f"{_MAX_NUMBER}"
        )
    return family, numbers, tuple(each for each in match[3].split(",") if each)


def _direct_of(name: str, registers: int = WIDE) -> DirectShape:
    _, numbers, flags = _parsed(name)
    batch, height, width, channels, filters, *rest = numbers[:11]
    return DirectShape(
        data=(batch, height, width, channels),
        filters=filters,
        window=(rest[0], rest[1]),
        strides=(rest[2], rest[3]),
        padding=(rest[4], rest[5]),
        is_planar="planar" in flags,
        registers=registers,
    )


def _depthwise_of(numbers: Sequence[int], registers: int = WIDE) -> DepthwiseShape:
    batch, height, width, channels, *rest = numbers
    return DepthwiseShape(
        data=(batch, height, width, channels),
        window=(rest[0], rest[1]),
        strides=(rest[2], rest[3]),
        padding=(rest[4], rest[5]),
        registers=registers,
    )


def _direct_numbers(shape: DirectShape) -> tuple[int, ...]:
    return (*shape.data, shape.filters, *_window_numbers(shape))


def _window_numbers(shape: DirectShape | DepthwiseShape) -> tuple[int, ...]:
    return (*shape.window, *shape.strides, *shape.padding)


def _direct_operations(shape: DirectShape) -> int:
    return 2 * math.prod(shape.result) * math.prod(shape.window) * shape.data[3]
