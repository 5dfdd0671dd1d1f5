"""Kernels of one product each, with a packed matrix.

Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_model.draft.packed_families import PackedFamily
from records.workload import Tensor
from tuner.backends.cpu.kernels import packed_product
from tuner.backends.cpu.kernels.packed_product import ProductShape, ProductTile
from tuner.backends.cpu.tuned.families.kernel_names import kernel_name
from tuner.backends.cpu.tuned.families.own_kernel import Decisions
from tuner.backends.library_call import Then
from tuner.graph.relax_types import PrimFunc
from tuner.runtime.library_calls import Activation


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
        return kernel_name(PackedFamily.PRODUCT, (self.shape.rows, self.shape.depth, self.shape.columns))

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return 2 * self.shape.rows * self.shape.depth * self.shape.columns

    @property
    def packed_bytes(self) -> int:
        """Bytes of its packed matrix."""
        return Tensor(self.shape.packed_shape, "float32").num_bytes

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
