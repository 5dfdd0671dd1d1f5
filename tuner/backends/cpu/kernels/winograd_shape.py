"""Cuts of a 3 x 3 convolution with stride 1 by Winograd's method: tiles, blocks and panels of filters.

The choice between tiles of 2 x 2 and 4 x 4 results and the block is made by a model of multiplications and of
bytes of weights. Checked in
tests/tuner/backends/cpu/kernels/test_winograd.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_model.register_tile import lanes_of
from tuner.backends.cpu.kernels.accumulators import AVX2, MIN_ROWS, WIDE, tile_vectors

_LANES = 16
"""Elements of a vector of AVX-512."""

TILES = (2, 4)
"""Sides of a tile of results, for which `tuner.backends.cpu.kernels.winograd_transforms` has matrices."""

_NUM_ACCUMULATORS = {32: 28, 8: 6, 4: 2}
"""Vectors of 16 for partial results, by how many all registers hold: AVX-512, AVX2, SSE."""

_FLOPS_PER_S = 1.1e11
_BYTES_PER_S = 2.4e10
"""What one core multiplies, and reads of weights that no near cache holds; only their ratio counts. With it
14 x 14 pixels of 256 channels are in tiles of 4 x 4, which ResNet-50 runs a little faster."""

_NEAR_BYTES, _NEAR_BYTES_PER_S = 1 << 20, 1e11
"""Weights that a near cache keeps, and what is read of these: 7 x 7 pixels take 0.6 of the time in tiles of
4 x 4, which need half of the multiplications and twice the weights (DenseNet's blocks)."""

_BEST_ROWS, _MOST_ROWS = 8, 14
"""Tiles whose results are in registers at once, where vectors fill those of AVX-512 or are several."""

_CACHED_BYTES, _AVX2_CACHED_BYTES = 8 << 20, 12 << 20
"""Transformed weights above this are read once for all tiles, not once per block; with AVX2 products take
longer, so that more are read again: 14 x 14 pixels of 256 channels take 0.8 of the time."""

_AVX2_LOADS = 1.5
"""What a step's vector costs with AVX2, in tiles: 196 tiles take 0.9 of the time by six, not four."""

_MAX_BLOCK = 64
"""Tiles of a block at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WinogradShape:
    """A 3 x 3 convolution with stride 1 of NCHW data, and how it is cut.

    Attributes:
        batch: images.
        filters: channels of the result.
        height: rows of an image.
        width: columns of an image.
        padding: rows of zeros above and below, columns left and right.
        tile: m, the side of a tile of results.
        block: tiles worked on at a time, a multiple of `rows`.
        rows: tiles whose partial results are in registers at once.
        vectors: vectors of filters whose partial results are.
    """

    batch: int
    channels: int
    filters: int
    height: int
    width: int
    padding: tuple[int, int]
    tile: int
    block: int
    rows: int
    vectors: int

    @property
    def filter_lanes(self) -> int:
        """Filters of a vector."""
        return lanes_of(self.filters)

    @property
    def channel_lanes(self) -> int:
        """Channels of a vector."""
        return lanes_of(self.channels)

    @property
    def side(self) -> int:
        """Rows and columns of a patch."""
        return self.tile + 2

    @property
    def points(self) -> int:
        """Products of matrices."""
        return self.side**2

    @property
    def result_height(self) -> int:
        """Rows of the result."""
        return self.height + 2 * self.padding[0] - 2

    @property
    def result_width(self) -> int:
        """Columns of the result."""
        return self.width + 2 * self.padding[1] - 2

    @property
    def tile_rows(self) -> int:
        """Tiles in a column of an image."""
        return -(-self.result_height // self.tile)

    @property
    def tile_columns(self) -> int:
        """Tiles in a row of an image."""
        return -(-self.result_width // self.tile)

    @property
    def num_tiles(self) -> int:
        """Tiles of all images."""
        return self.batch * self.tile_rows * self.tile_columns

    @property
    def num_blocks(self) -> int:
        """Blocks of tiles; the last may be filled up."""
        return -(-self.num_tiles // self.block)

    @property
    def panel(self) -> int:
        """Filters whose transformed weights lie together."""
        return self.vectors * self.filter_lanes

    @property
    def packed_shape(self) -> tuple[int, int, int, int]:
        """The shape of the transformed weights: points, panels, channels, filters of a panel."""
        return (self.points, self.filters // self.panel, self.channels, self.panel)


def choose_shape(
    data: Sequence[int],
    filters: int,
    padding: tuple[int, int],
    num_threads: int = 1,
    *,
    registers: int = 32,
) -> WinogradShape:
    """Return the shape with the tile that takes least by the model, and of equals the smaller.

    Args:
        data: batch, channels, height, width.
        filters: channels of the result.
        padding: rows and columns of zeros on each side.
        num_threads: threads that share the blocks.
        registers: vectors of 16 that all registers hold (`tuner.targets.vector_registers`).
    """
    shapes = (_cut(data, filters, padding, tile, num_threads, registers) for tile in TILES)
    return min(shapes, key=_estimated_s)


def _cut(
    data: Sequence[int],
    filters: int,
    padding: tuple[int, int],
    tile: int,
    num_threads: int,
    registers: int,
) -> WinogradShape:
    batch, channels, height, width = data
    lanes = lanes_of(filters)
    is_wide = registers >= WIDE
    fitting = [count for count in ((2, 3) if is_wide else (2,)) if filters % (count * lanes) == 0]
    vectors = tile_vectors(fitting[0] if fitting else 1, lanes, registers)
    whole = WinogradShape(
        batch=batch,
        channels=channels,
        filters=filters,
        height=height,
        width=width,
        padding=padding,
        tile=tile,
        block=1,
        rows=1,
        vectors=vectors,
    )
    num_tiles = whole.num_tiles
    most = _NUM_ACCUMULATORS[registers] // vectors
    if not is_wide:  # a shorter vector is fewer registers
        most = _NUM_ACCUMULATORS[registers] * 16 // (vectors * lanes)
    least, best = most // 2 + 1, most
    if is_wide and vectors * lanes >= _LANES:
        least, most, best = MIN_ROWS, min(most, _MOST_ROWS), _BEST_ROWS
    choices = range(min(least, num_tiles), min(most, num_tiles) + 1)
    loads = _AVX2_LOADS if registers == AVX2 else 0
    rows = min(choices, key=lambda rows: (-(-num_tiles // rows) * (rows + loads), abs(rows - best)))
    block = rows
    weight_bytes = 4 * whole.points * channels * filters
    if weight_bytes > (_AVX2_CACHED_BYTES if registers == AVX2 else _CACHED_BYTES):
        share = -(-num_tiles // num_threads)
        block = rows * max(1, min(-(-share // rows), _MAX_BLOCK // rows))
    return replace(whole, block=block, rows=rows)


def _estimated_s(shape: WinogradShape) -> float:
    products = shape.points * shape.channels * shape.filters
    num_multiplied = 2 * products * shape.num_blocks * shape.block
    near = min(4 * products, _NEAR_BYTES)
    return num_multiplied / _FLOPS_PER_S + near / _NEAR_BYTES_PER_S + (4 * products - near) / _BYTES_PER_S
