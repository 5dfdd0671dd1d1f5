"""Kernels of one convolution each: direct, depthwise, or by Winograd's method.

Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cost_model.draft.packed_families import PackedFamily
from records.workload import Tensor
from tuner.backends.cpu.kernels import depthwise, direct, winograd
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape, DepthwiseTile
from tuner.backends.cpu.kernels.direct import DirectShape, DirectTile
from tuner.backends.cpu.kernels.fused_concat_input import JoinedShape
from tuner.backends.cpu.kernels.winograd_shape import WinogradShape, choose_shape
from tuner.backends.cpu.tuned.families.kernel_names import direct_numbers, kernel_name, window_numbers
from tuner.backends.cpu.tuned.families.own_kernel import Decisions
from tuner.graph.relax_types import PrimFunc
from tuner.targets.vector_registers import WIDE


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
        return kernel_name(PackedFamily.DIRECT, direct_numbers(self.shape), flags)

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return direct_operations(self.shape)

    @property
    def packed_bytes(self) -> int:
        """Bytes of its packed weights."""
        return Tensor(self.shape.packed_shape, "float32").num_bytes

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
        return kernel_name(PackedFamily.DEPTHWISE, (*self.shape.data, *window_numbers(self.shape)))

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return 2 * math.prod(self.shape.result) * math.prod(self.shape.window)

    @property
    def packed_bytes(self) -> int:
        """Bytes of its packed weights."""
        return Tensor(self.shape.packed_shape, "float32").num_bytes

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
        return kernel_name(PackedFamily.WINOGRAD, numbers)

    @property
    def operations(self) -> int:
        """Additions and multiplications of the same convolution without this method."""
        shape = self.shape
        results = shape.batch * shape.result_height * shape.result_width
        return 18 * results * shape.channels * shape.filters

    @property
    def packed_bytes(self) -> int:
        """Bytes of its packed weights."""
        return Tensor(self.shape.packed_shape, "float32").num_bytes

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


def direct_operations(shape: DirectShape) -> int:
    """Count the additions and multiplications of a direct convolution."""
    return 2 * math.prod(shape.result) * math.prod(shape.window) * shape.data[3]
