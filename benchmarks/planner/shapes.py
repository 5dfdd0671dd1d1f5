"""Profiles of a transformer's proportions: an embedding, equal blocks, and a head of so many blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer's proportions.

    Attributes:
        name: of the profile.
        blocks: transformer blocks.
        block_us: forward of one block.
        head: forward of the head in blocks.
        block_mib: weights of one block.
        saved_mib: what a block keeps of a micro-batch.
        vocabulary_mib: weights of embedding and of head.
    """

    name: str
    blocks: int
    block_us: float
    head: float
    block_mib: int
    saved_mib: int
    vocabulary_mib: int


SHAPES = (
    Shape("small, light head", 24, 1500.0, 0.5, 25, 40, 100),
    Shape("small, heavy head", 24, 1500.0, 3.6, 25, 40, 200),
    Shape("medium, light head", 32, 3500.0, 1.0, 150, 120, 250),
    Shape("medium, heavy head", 32, 3500.0, 3.6, 150, 120, 500),
    Shape("large, light head", 48, 9000.0, 0.7, 400, 300, 500),
    Shape("large, heavy head", 48, 9000.0, 2.5, 400, 300, 1000),
    Shape("wide vocabulary", 26, 2300.0, 5.0, 100, 80, 800),
    Shape("tied embeddings", 36, 2000.0, 2.0, 60, 60, 300),
)


def synthetic_profile(shape: Shape) -> Profile:
    """Return an embedding, equal blocks and a head; the input half takes 1.05 forwards, the weight half 1."""

    def cost(blocks: float, weights_mib: int, saved_mib: float) -> StageCosts:
        forward = shape.block_us * blocks
        return StageCosts(
            forward_us=forward,
            backward_us=2.0 * forward,
            backward_input_us=1.05 * forward,
            backward_weight_us=forward,
            weight_bytes=weights_mib * MIB,
            saved_bytes=int(saved_mib * MIB),
            boundary_bytes=shape.saved_mib * MIB // 16,
        )

    tie = "vocabulary" if shape.name == "tied embeddings" else ""
    return Profile(
        name=shape.name,
        layers=(
            Layer("embedding", tie=tie),
            *(Layer(f"block{index}") for index in range(shape.blocks)),
            Layer("head", tie=tie),
        ),
        tables=(
            CostTable(
                micro_batch=1,
                tensor_parallel=1,
                costs=(
                    cost(0.1, shape.vocabulary_mib, shape.saved_mib / 16),
                    *(cost(1.0, shape.block_mib, shape.saved_mib) for _ in range(shape.blocks)),
                    cost(shape.head, shape.vocabulary_mib, shape.saved_mib / 4),
                ),
            ),
        ),
    )
