"""The standard pipeline placements, drawn one device per row, ready to search or modify.

A shape is one micro-batch. Forward blocks are named `f0, f1, …` in stage order and their backward blocks `b0,
b1, …`; a split backward has `b3_input` and `b3_weight`, recomputation `r3`. In the drawings a column is a
point in time, `f` and `b` are blocks, and a letter on every row of a column is one tensor-parallel block that
holds all devices. Blocks stand in the placement in topological order.

Every shape takes the same options (`ShapeOptions`). The numbers are options; a stage's real spans come from
measurements. Checked in tests/tessel/test_shapes.py.

    >>> from tessel.shapes import vshape
    >>> [block.name for block in vshape(2).blocks]
    ['f0', 'f1', 'b1', 'b0']

Source: Lin et al., Tessel (HPCA 2024), section 6, for v, x, m, nn and k and what their blocks cost; Narayanan
et al. (SC 2021) for interleaving; Qi et al., Pipeline Parallelism with Controllable Memory (2024), for the V
of two chunks per device. Here any number of devices is allowed: an odd one gives k two unequal halves.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, Unpack

from tessel.placement import Placement
from tessel.placement_builder import PlacementBuilder, ShapeOptions


class ShapeFunction(Protocol):
    """A function from a number of devices to a placement."""

    def __call__(self, num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
        """Return the placement."""
        ...


class ShapeOfChunks(Protocol):
    """A function from a number of devices, and of stages on each, to a placement."""

    def __call__(self, num_devices: int, *, chunks: int = 2, **options: Unpack[ShapeOptions]) -> Placement:
        """Return the placement."""
        ...


def vshape(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return one chain, stage i on device i, the backward in reverse.

    ```text
    device 0   f . . . . . . b
    device 1   . f . . . . b .
    device 2   . . f . . b . .
    device 3   . . . f b . . .
    ```
    """
    return _chain_placement(num_devices, range(num_devices), options)


def xshape(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return two chains in each micro-batch, stages 0..P-1 down the devices and P..2P-1 up.

    ```text
    device 0   f . . f b . . b
    device 1   . f f . . b b .
    device 2   . f f . . b b .
    device 3   f . . f b . . b
    ```
    """
    builder = PlacementBuilder(num_devices, options)
    down = [builder.stage(device) for device in range(num_devices)]
    up = [builder.stage(device) for device in reversed(range(num_devices))]
    builder.link(down)
    builder.link(up)
    return builder.placement()


def mshape(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return a chain that begins, and ends its backward, with a tensor-parallel block (GPT's embedding).

    ```text
    device 0   f f . . . . . . b b
    device 1   f . f . . . . b . b
    device 2   f . . f . . b . . b
    device 3   f . . . f b . . . b
    ```
    """
    return _chain_placement(num_devices, [_EVERY, *range(num_devices)], options)


def nnshape(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return an mshape with a second tensor-parallel block in the middle of the chain (encoder and decoder).

    ```text
    device 0   f f . f . . . . b . b b
    device 1   f . f f . . . . b b . b
    device 2   f . . f f . . b b . . b
    device 3   f . . f . f b . b . . b
    ```
    """
    half = num_devices // 2
    stages = [_EVERY, *range(half), _EVERY, *range(half, num_devices)]
    return _chain_placement(num_devices, stages, options)


def kshape(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return two branches on the two halves of the devices that meet in one tensor-parallel block.

    That block adds a unit on every device and its backward frees it. With an odd number of devices the second
    branch has one stage more.

        device 0   f . f b . b
        device 1   . f f b b .
        device 2   f . f b . b
        device 3   . f f b b .

    Raises:
        ValueError: fewer than two devices.
    """
    if num_devices < 2:
        raise ValueError(f"kshape has {num_devices} devices; it needs at least 2, one for each branch")
    builder = PlacementBuilder(num_devices, options)
    half = num_devices // 2
    left = [builder.stage(device) for device in range(half)]
    right = [builder.stage(device) for device in range(half, num_devices)]
    joined = builder.tensor_parallel(memory=0 if options.get("infer") else 1)
    builder.link([*left, joined])
    builder.link([*right, joined])
    return builder.placement()


def finetune(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return an mshape whose frozen first block has no backward.

    ```text
    device 0   f f . . . . . . b
    device 1   f . f . . . . b .
    device 2   f . . f . . b . .
    device 3   f . . . f b . . .
    ```
    """
    builder = PlacementBuilder(num_devices, options)
    first = builder.tensor_parallel(has_backward=False)
    builder.link([first, *(builder.stage(device) for device in range(num_devices))])
    return builder.placement()


def mllm(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return a chain between two tensor-parallel blocks: embedding first, output head and loss last.

    ```text
    device 0   f f . . . f b . . . b b
    device 1   f . f . . f b . . b . b
    device 2   f . . f . f b . b . . b
    device 3   f . . . f f b b . . . b
    ```
    """
    return _chain_placement(num_devices, [_EVERY, *range(num_devices), _EVERY], options)


def alphafold(num_devices: int, **options: Unpack[ShapeOptions]) -> Placement:
    """Return three forward passes down the devices, of which only the last is kept for the backward.

    ```text
    device 0   f . . . f . . . f . . . . . . b
    device 1   . f . . . f . . . f . . . . b .
    device 2   . . f . . . f . . . f . . b . .
    device 3   . . . f . . . f . . . f b . . .
    ```
    """
    builder = PlacementBuilder(num_devices, options)
    recycled = [builder.stage(device % num_devices, is_kept=False) for device in range(2 * num_devices)]
    last = [builder.stage(device) for device in range(num_devices)]
    builder.link([*recycled, *last])
    return builder.placement()


def interleaved(num_devices: int, *, chunks: int = 2, **options: Unpack[ShapeOptions]) -> Placement:
    """Return one chain that goes round the devices `chunks` times, stage s on device s mod P.

        device 0   f . f . . . b . b        two devices, two chunks: stages 0 and 2, then 1 and 3
        device 1   . f . f . b . b .

    Raises:
        ValueError: fewer than one chunk.
    """
    _check_chunks(chunks)
    return _chain_placement(num_devices, list(range(num_devices)) * chunks, options)


def zbv(num_devices: int, *, chunks: int = 2, **options: Unpack[ShapeOptions]) -> Placement:
    """Return one chain that turns round at the ends, so that device 0 holds the first and last stage.

        device 0   f . . f b . . b        two devices, two chunks: a V
        device 1   . f f . . b b .

    Raises:
        ValueError: fewer than one chunk.
    """
    _check_chunks(chunks)
    there = range(num_devices)
    stages = [device for chunk in range(chunks) for device in (there if chunk % 2 == 0 else there[::-1])]
    return _chain_placement(num_devices, stages, options)


SHAPES: Mapping[str, ShapeFunction] = MappingProxyType(
    {
        "vshape": vshape,
        "xshape": xshape,
        "mshape": mshape,
        "nnshape": nnshape,
        "kshape": kshape,
        "finetune": finetune,
        "mllm": mllm,
        "alphafold": alphafold,
        "interleaved": interleaved,
        "zbv": zbv,
    }
)
"""Every shape by its name."""

SHAPES_OF_CHUNKS: Mapping[str, ShapeOfChunks] = MappingProxyType({"interleaved": interleaved, "zbv": zbv})
"""Those of several stages per device, which can be chosen."""


def make_shape(
    name: str, num_devices: int, *, chunks: int | None = None, **options: Unpack[ShapeOptions]
) -> Placement:
    """Return the shape of that name.

    Args:
        name: a key of `SHAPES`.
        num_devices: number of devices, >= 1.
        chunks: stages a device holds, for `interleaved` and `zbv` only; 2 unless given.
        options: costs and variants.

    Raises:
        ValueError: the name is unknown (the nearest one is suggested), or an option does not apply.
    """
    if name not in SHAPES:
        near = [f"{name}shape"] if f"{name}shape" in SHAPES else difflib.get_close_matches(name, SHAPES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"shape {name!r} is unknown; {hint}there are {', '.join(SHAPES)}")
    if chunks is None:
        return SHAPES[name](num_devices, **options)
    if name not in SHAPES_OF_CHUNKS:
        raise ValueError(
            f"shape {name!r} has no chunks, {chunks} were given; leave them out, or use 'interleaved' or "
            "'zbv'"
        )
    return SHAPES_OF_CHUNKS[name](num_devices, chunks=chunks, **options)


def _check_chunks(chunks: int) -> None:
    if chunks < 1:
        raise ValueError(f"{chunks} chunks per device were asked for; a device holds at least 1")


_EVERY = None
"""Stands for all devices where stages are listed by device."""


def _chain_placement(num_devices: int, stages: Sequence[int | None], options: ShapeOptions) -> Placement:
    """Return one chain; `_EVERY` in place of a device makes a tensor-parallel block."""
    builder = PlacementBuilder(num_devices, options)
    builder.link(
        [builder.tensor_parallel() if device is _EVERY else builder.stage(device) for device in stages]
    )
    return builder.placement()
