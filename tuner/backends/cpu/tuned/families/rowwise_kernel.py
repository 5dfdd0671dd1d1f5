"""Kernels of two or three convolutions each, computed row by row so that what is between them stays in cache.

Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cost_model.draft.packed_families import PackedFamily
from records.workload import Tensor
from tuner.backends.cpu.kernels import direct
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape, DepthwiseTile
from tuner.backends.cpu.kernels.direct import DirectShape, DirectTile
from tuner.backends.cpu.kernels.inverted_residual import Block, block_kernel
from tuner.backends.cpu.tuned.families.convolution_kernels import direct_operations
from tuner.backends.cpu.tuned.families.kernel_names import direct_numbers, kernel_name, window_numbers
from tuner.backends.cpu.tuned.families.own_kernel import Decisions
from tuner.graph.relax_types import PrimFunc


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
            *direct_numbers(wide),
            *window_numbers(between),
            0 if narrow is None else narrow.filters,
            self.num_strips,
        )
        return kernel_name(PackedFamily.ROWWISE, numbers, ("planar",) * wide.is_planar)

    @property
    def operations(self) -> int:
        """Additions and multiplications, without rows that strips compute again."""
        wide, between, narrow = self._shapes()
        last = 0 if narrow is None else direct_operations(narrow)
        return direct_operations(wide) + 2 * math.prod(between.result) * math.prod(between.window) + last

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights of all its convolutions."""
        return sum(
            Tensor(each.packed_shape, "float32").num_bytes for each in self._shapes() if each is not None
        )

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
