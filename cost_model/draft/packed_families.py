"""Decisions of each family of packed kernels: what is legal, how loops are cut, and features.

Values are numbers of rows, vectors, lanes and the like, by name; a tile need not divide its extent, since a
last tile may repeat results of the one before. Checked in tests/cost_model/draft/test_packed_space.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Values: TypeAlias = Mapping[str, npt.NDArray[np.int64]]
"""The value of each decision, by its name, of many candidates."""

MAX_REGISTERS = 32
"""Accumulators of 8 elements; a tile beyond is slow on AVX2."""

MAX_WIDE_REGISTERS = 60
"""The same where registers are as many as AVX-512 has and vectors fill them: two are left for operands."""

WIDE = 32
"""Vectors of 16 elements that the registers of AVX-512 hold."""

_ATTENTION_LANES = 16
"""Elements of a vector of attention's kernel."""

_MAX_REPEATED = 2.0
"""Most results that tiles compute over those that are wanted."""


class PackedFamily(enum.StrEnum):
    """Kernels of our own, most of which read packed weights."""

    PRODUCT = "product"
    DIRECT = "direct"
    DEPTHWISE = "depthwise"
    WINOGRAD = "winograd"
    ROWWISE = "rowwise"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class FamilyRules:
    """What the values of a family's decisions mean; arguments are these values, and the extents by name.

    Attributes:
        is_legal: says of each candidate whether there is such a kernel, and no better one of the same kind.
        factors: how each loop is cut, in the order of SSRSRS, reductions in two.
        extras: further features, by name.
    """

    is_legal: Callable[[Values, Mapping[str, int]], npt.NDArray[np.bool_]]
    factors: Callable[[Mapping[str, Array], Mapping[str, int]], list[Sequence[Array | float]]]
    extras: Callable[[Mapping[str, Array], Mapping[str, int]], dict[str, Array | float]]


def _parts(extent: int | Array, tile: Array | npt.NDArray[np.int64]) -> Array:
    return np.asarray(np.ceil(extent / tile), dtype=np.float64)


def _accumulators(count: npt.NDArray[np.int64], lanes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many accumulators of 8 elements some vectors are; a shorter one takes as much."""
    return np.asarray(count * np.maximum(lanes // 8, 1))


def _most(lanes: npt.NDArray[np.int64], extents: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return how many accumulators of 8 elements a tile may have."""
    has_wide = extents["registers"] >= WIDE
    return np.where(has_wide & (lanes >= 16), MAX_WIDE_REGISTERS, MAX_REGISTERS)


def _fits(
    count: npt.NDArray[np.int64], lanes: npt.NDArray[np.int64], extents: Mapping[str, int]
) -> npt.NDArray[np.bool_]:
    """Say which vectors of sums fit into registers."""
    return np.asarray(_accumulators(count, lanes) <= _most(lanes, extents))


def _is_short(
    count: npt.NDArray[np.int64],
    lanes: npt.NDArray[np.int64],
    unroll: npt.NDArray[np.int64],
    extents: Mapping[str, int],
) -> npt.NDArray[np.bool_]:
    """Say which steps that are written out are no more code than three tiles that fill the registers."""
    return np.asarray(_accumulators(count, lanes) * unroll <= 3 * _most(lanes, extents))


def _is_tile(
    values: Values, rows: int, columns: int, extents: Mapping[str, int], prefix: str = ""
) -> npt.NDArray[np.bool_]:
    """Say which tiles fit into registers and results, and repeat few of these."""
    tile_rows, panel = values[f"{prefix}rows"], values[f"{prefix}vectors"] * values[f"{prefix}lanes"]
    vectors = tile_rows * values[f"{prefix}vectors"]
    computed = _parts(rows, tile_rows) * tile_rows * _parts(columns, panel) * panel
    return np.asarray(
        (panel <= columns)
        & (tile_rows <= rows)
        & _fits(vectors, values[f"{prefix}lanes"], extents)
        & (computed <= _MAX_REPEATED * rows * columns)
    )


def _tile_extras(
    values: Mapping[str, Array], rows: int, columns: int, prefix: str = ""
) -> dict[str, Array | float]:
    tile_rows, lanes = values[f"{prefix}rows"], values[f"{prefix}lanes"]
    panel = values[f"{prefix}vectors"] * lanes
    vectors = values[f"{prefix}vectors"] * np.ceil(lanes / 8)
    computed = _parts(rows, tile_rows) * tile_rows * _parts(columns, panel) * panel
    return {
        "lanes": np.log2(lanes),
        "registers": tile_rows * vectors,
        "loads_a_product": (tile_rows + vectors) / (tile_rows * vectors),
        "repeated": np.log2(computed / (rows * columns)),
    }


def _product_is_legal(values: Values, extents: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    rows = values["rows"]
    steps = np.where(values["depth_block"] > 0, values["depth_block"], extents["depth"])
    needs_blocks = (values["depth_block"] > 0) | (values["packs_data"] > 0)
    # A block is a whole number of tiles; of two sizes with as many tiles one is left out.
    tiles = np.maximum(values["block_rows"] // rows, 1)
    is_named = (values["block_rows"] >= rows) | (values["block_rows"] == values["block_rows"].min(initial=1))
    is_last = (tiles * rows < extents["rows"]) | (values["block_rows"] == extents["rows"])
    return np.asarray(
        _is_tile(values, extents["rows"], extents["columns"], extents)
        & ~(needs_blocks & (values["shares_blocks"] == 0))
        & (steps % values["unroll"] == 0)
        & _is_short(rows * values["vectors"], values["lanes"], values["unroll"], extents)
        & is_named
        & is_last
    )


def _product_factors(
    values: Mapping[str, Array], extents: Mapping[str, int]
) -> list[Sequence[Array | float]]:
    rows, panel = values["rows"], values["vectors"] * values["lanes"]
    tiles = np.maximum(values["block_rows"] // rows, 1)
    blocks = _parts(extents["rows"], tiles * rows)
    panels = _parts(extents["columns"], panel)
    shares = values["shares_blocks"] > 0
    block = np.where(values["depth_block"] > 0, values["depth_block"], extents["depth"])
    return [
        (blocks, np.where(shares, 1, tiles), np.where(shares, tiles, 1), rows),
        (np.where(shares, 1, panels), 1.0, np.where(shares, panels, 1), panel),
        (extents["depth"] / block, block),
    ]


def _product_extras(values: Mapping[str, Array], extents: Mapping[str, int]) -> dict[str, Array | float]:
    return {
        **_tile_extras(values, extents["rows"], extents["columns"]),
        "depth_block": np.log2(values["depth_block"] + 1),
        "packs_data": values["packs_data"],
        "shares_blocks": values["shares_blocks"],
        "stores_sums": values["stores_sums"],
        "written_out": np.log2(values["unroll"]),
        "multiplications": 1.0,
    }


def _direct_is_legal(values: Values, extents: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    tiles = extents["lines"] * _parts(extents["length"], values["rows"])
    # All tiles at once have one number.
    is_last = (values["block_tiles"] < tiles) | (values["block_tiles"] == 65536)
    return np.asarray(
        _is_tile(values, extents["length"], extents["filters"], extents)
        & _is_short(values["rows"] * values["vectors"], values["lanes"], values["unroll"], extents)
        & is_last
    )


def _direct_factors(values: Mapping[str, Array], extents: Mapping[str, int]) -> list[Sequence[Array | float]]:
    rows, panel = values["rows"], values["vectors"] * values["lanes"]
    of_line = _parts(extents["length"], rows)
    tiles = np.minimum(values["block_tiles"], of_line * extents["lines"])
    lines = np.maximum(tiles / of_line, 1.0)
    return [
        (extents["lines"] / lines, lines, 1.0, 1.0),
        (_parts(of_line, np.minimum(tiles, of_line)), np.minimum(tiles, of_line), 1.0, rows),
        (_parts(extents["filters"], panel), 1.0, 1.0, panel),
        (1.0, 1.0),
        (1.0, 1.0),
        (extents["channels"] / values["unroll"], values["unroll"]),
    ]


def _direct_extras(values: Mapping[str, Array], extents: Mapping[str, int]) -> dict[str, Array | float]:
    return {
        **_tile_extras(values, extents["length"], extents["filters"]),
        "written_out": np.log2(values["unroll"]),
        "multiplications": 1.0,
    }


def _depthwise_is_legal(values: Values, extents: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    pixels, lanes = values["pixels"], values["lanes"]
    computed = _parts(extents["length"], pixels) * pixels
    vectors = extents["channels"] // lanes
    return np.asarray(
        _fits(pixels, lanes, extents)
        & (computed <= _MAX_REPEATED * extents["length"])
        & (extents["channels"] % lanes == 0)
        & (vectors % values["group"] == 0)
    )


def _depthwise_factors(
    values: Mapping[str, Array], extents: Mapping[str, int]
) -> list[Sequence[Array | float]]:
    groups = extents["channels"] / values["lanes"] / values["group"]
    return [
        (float(extents["lines"]), 1.0, 1.0, 1.0),
        (1.0, _parts(extents["length"], values["pixels"]), 1.0, values["pixels"]),
        (groups, 1.0, values["group"], values["lanes"]),
        (1.0, 1.0),
        (1.0, 1.0),
    ]


def _depthwise_extras(values: Mapping[str, Array], extents: Mapping[str, int]) -> dict[str, Array | float]:
    registers = values["pixels"] * np.ceil(values["lanes"] / 8)
    computed = _parts(extents["length"], values["pixels"]) * values["pixels"]
    return {
        "lanes": np.log2(values["lanes"]),
        "registers": registers,
        "loads_a_product": ((values["pixels"] - 1) * extents["stride"] + extents["window"])
        / (values["pixels"] * extents["window"]),
        "repeated": np.log2(computed / extents["length"]),
        "passes": np.log2(extents["channels"] / values["lanes"] / values["group"]),
        "multiplications": 1.0,
    }


def _winograd_tiles(values: Mapping[str, Array] | Values, extents: Mapping[str, int]) -> Array:
    tile = values["tile"]
    tiles = extents["images"] * _parts(extents["height"], tile) * _parts(extents["width"], tile)
    return np.asarray(tiles, dtype=np.float64)


def _winograd_is_legal(values: Values, extents: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    tiles, block = _winograd_tiles(values, extents), values["rows"] * values["groups"]
    vectors, lanes = values["rows"] * values["vectors"], values["lanes"]
    computed = _parts(tiles, block) * block
    panel = values["vectors"] * values["lanes"]
    return np.asarray(
        (values["rows"] <= tiles)
        & (computed <= _MAX_REPEATED * tiles)
        & (extents["filters"] % panel == 0)
        & _fits(vectors, lanes, extents)
        & _is_short(vectors, lanes, values["unroll"], extents)
    )


def _winograd_factors(
    values: Mapping[str, Array], extents: Mapping[str, int]
) -> list[Sequence[Array | float]]:
    block, panel = values["rows"] * values["groups"], values["vectors"] * values["lanes"]
    points = (values["tile"] + 2) ** 2
    return [
        (1.0, 1.0, points, 1.0),
        (_parts(_winograd_tiles(values, extents), block), 1.0, values["groups"], values["rows"]),
        (1.0, 1.0, extents["filters"] / panel, panel),
        (extents["channels"] / values["unroll"], values["unroll"]),
    ]


def _winograd_extras(values: Mapping[str, Array], extents: Mapping[str, int]) -> dict[str, Array | float]:
    tiles, block = _winograd_tiles(values, extents), values["rows"] * values["groups"]
    computed = _parts(tiles, block) * block
    vectors = values["vectors"] * np.ceil(values["lanes"] / 8)
    results = extents["images"] * extents["height"] * extents["width"]
    return {
        "lanes": np.log2(values["lanes"]),
        "registers": values["rows"] * vectors,
        "loads_a_product": (values["rows"] + vectors) / (values["rows"] * vectors),
        "repeated": np.log2(computed / tiles),
        "written_out": np.log2(values["unroll"]),
        "winograd_tile": values["tile"],
        "multiplications": computed * (values["tile"] + 2) ** 2 / (9.0 * results),
    }


def _rowwise_is_legal(values: Values, extents: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    pixels, between = values["pixels"], values["between_lanes"]
    first = _accumulators(values["rows"] * values["vectors"], values["lanes"])
    # Two convolutions share the code, so that each has half of what fits.
    found = (
        _is_tile(values, extents["length"], extents["filters"], extents)
        & (_accumulators(pixels, between) <= _most(between, extents) // 2)
        & (_parts(extents["result"], pixels) * pixels <= 1.4 * extents["result"])
        & (first <= _most(values["lanes"], extents) // 2)
        & (first >= 4)
    )
    if extents["narrow"]:
        last = _accumulators(values["last_rows"] * values["last_vectors"], values["last_lanes"])
        found &= _is_tile(values, extents["result"], extents["narrow"], extents, "last_")
        found &= last <= _most(values["last_lanes"], extents) // 2
        found &= (last >= 4) | (last >= last.max(initial=0))
    return np.asarray(found)


def _rowwise_factors(
    values: Mapping[str, Array], extents: Mapping[str, int]
) -> list[Sequence[Array | float]]:
    panel = values["vectors"] * values["lanes"]
    return [
        (float(extents["lines"]), 1.0, 1.0, 1.0),
        (1.0, _parts(extents["length"], values["rows"]), 1.0, values["rows"]),
        (1.0, _parts(extents["filters"], panel), 1.0, panel),
        (1.0, 1.0),
        (1.0, 1.0),
        (1.0, float(extents["channels"])),
    ]


def _rowwise_extras(values: Mapping[str, Array], extents: Mapping[str, int]) -> dict[str, Array | float]:
    last = values["last_rows"] * values["last_vectors"] * np.ceil(values["last_lanes"] / 8)
    return {
        **_tile_extras(values, extents["length"], extents["filters"]),
        "second_registers": last,
        "depth_block": values["pixels"] * np.ceil(values["between_lanes"] / 8),
        "multiplications": 1.0,
    }


def _attention_is_legal(values: Values, extents: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    rows, queries, keys = values["rows"], extents["queries"], extents["keys"]
    lanes = np.full_like(rows, _ATTENTION_LANES)
    panel = values["key_vectors"] * _ATTENTION_LANES
    computed = _parts(queries, rows) * rows * _parts(keys, panel) * panel
    return np.asarray(
        (rows <= queries)
        & (panel <= keys)
        & (extents["depth"] % (values["value_vectors"] * _ATTENTION_LANES) == 0)
        & _fits(rows * values["key_vectors"], lanes, extents)
        & _fits(rows * values["value_vectors"], lanes, extents)
        & (computed <= _MAX_REPEATED * queries * keys)
    )


def _attention_factors(
    values: Mapping[str, Array], extents: Mapping[str, int]
) -> list[Sequence[Array | float]]:
    rows, panel = values["rows"], values["key_vectors"] * _ATTENTION_LANES
    return [
        (float(extents["heads"]), 1.0, 1.0, 1.0),
        (1.0, _parts(extents["queries"], rows), 1.0, rows),
        (1.0, _parts(extents["keys"], panel), 1.0, panel),
        (1.0, float(extents["depth"])),
    ]


def _attention_extras(values: Mapping[str, Array], extents: Mapping[str, int]) -> dict[str, Array | float]:
    rows, queries, keys = values["rows"], extents["queries"], extents["keys"]
    panel = values["key_vectors"] * _ATTENTION_LANES
    computed = _parts(queries, rows) * rows * _parts(keys, panel) * panel
    words = _ATTENTION_LANES // 8
    return {
        "lanes": np.log2(_ATTENTION_LANES),
        "registers": rows * values["key_vectors"] * words,
        "second_registers": rows * values["value_vectors"] * words,
        "loads_a_product": (rows + values["key_vectors"]) / (rows * values["key_vectors"]),
        "repeated": np.log2(computed / (queries * keys)),
        "multiplications": 1.0,
    }


RULES: Mapping[PackedFamily, FamilyRules] = MappingProxyType(
    {
        PackedFamily.PRODUCT: FamilyRules(_product_is_legal, _product_factors, _product_extras),
        PackedFamily.DIRECT: FamilyRules(_direct_is_legal, _direct_factors, _direct_extras),
        PackedFamily.DEPTHWISE: FamilyRules(_depthwise_is_legal, _depthwise_factors, _depthwise_extras),
        PackedFamily.WINOGRAD: FamilyRules(_winograd_is_legal, _winograd_factors, _winograd_extras),
        PackedFamily.ROWWISE: FamilyRules(_rowwise_is_legal, _rowwise_factors, _rowwise_extras),
        PackedFamily.ATTENTION: FamilyRules(_attention_is_legal, _attention_factors, _attention_extras),
    }
)
