"""Kernels of attention of several heads.

Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_model.draft.packed_families import PackedFamily
from tuner.backends.cpu.kernels.attention import AttentionShape, AttentionTile, Rows, attention_kernel
from tuner.backends.cpu.tuned.families.kernel_names import kernel_name
from tuner.backends.cpu.tuned.families.own_kernel import Decisions
from tuner.graph.relax_types import PrimFunc
from tuner.targets.vector_registers import WIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """Attention of several heads.

    Attributes:
        shape: the attention, where its operands lie, and how it is cut.
    """

    shape: AttentionShape

    @property
    def name(self) -> str:
        """Its family and shape."""
        shape = self.shape
        numbers = (shape.batch, shape.heads, shape.depth, shape.queries, shape.keys)
        return kernel_name(PackedFamily.ATTENTION, numbers)

    @property
    def operations(self) -> int:
        """Additions and multiplications of both products."""
        shape = self.shape
        return 4 * shape.batch * shape.heads * shape.queries * shape.keys * shape.depth

    @property
    def packed_bytes(self) -> int:
        """None: it has no weights."""
        return 0

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule."""
        plain = replace(self.shape, tile=None)
        return {
            "rows": plain.tile_rows,
            "key_vectors": plain.key_vectors,
            "value_vectors": plain.value_vectors,
        }

    def with_decisions(self, decisions: Decisions) -> AttentionKernel:
        """Return the kernel with a candidate's decisions."""
        tile = AttentionTile(**decisions) if decisions else None
        return replace(self, shape=replace(self.shape, tile=tile))

    def function(self) -> PrimFunc:
        """Return the kernel of the operands, the mask where there is one, and the result."""
        return attention_kernel(self.shape)


def attention_shape_of(numbers: tuple[int, ...], registers: int = WIDE) -> AttentionShape:
    """Return the attention of a name's numbers, with operands of their own and without a mask."""
    batch, heads, depth, queries, keys = numbers
    width = heads * depth
    return AttentionShape(
        batch=batch,
        heads=heads,
        depth=depth,
        queries=queries,
        keys=keys,
        scale=depth**-0.5,
        operands=((batch, queries, width), (batch, keys, width), (batch, keys, width)),
        rows=(
            Rows(operand=0, stride=width, offset=0),
            Rows(operand=1, stride=width, offset=0),
            Rows(operand=2, stride=width, offset=0),
        ),
        mask=None,
        registers=registers,
    )
