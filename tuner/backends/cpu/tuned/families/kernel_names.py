"""Names of our own kernels, written from their shapes and read again: a family, numbers, and flags.

    product:ROWSxDEPTHxCOLUMNS
    direct:BATCHxHEIGHTxWIDTHxCHANNELSxFILTERS, window, strides and padding; flags planar and joined
    depthwise:BATCHxHEIGHTxWIDTHxCHANNELS, window, strides and padding
    winograd:BATCHxCHANNELSxHEIGHTxWIDTHxFILTERS and padding
    rowwise: as direct; window, strides and padding of depthwise; filters of the last or 0; strips
    attention:BATCHxHEADSxDEPTHxQUERIESxKEYS

Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from cost_model.draft.packed_families import PackedFamily
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape
from tuner.backends.cpu.kernels.direct import DirectShape
from tuner.targets.vector_registers import WIDE

BACKEND_BY_FAMILY: Mapping[PackedFamily, str] = {
    PackedFamily.PRODUCT: "packed_matmul",
    PackedFamily.DIRECT: "nhwc",
    PackedFamily.DEPTHWISE: "nhwc",
    PackedFamily.WINOGRAD: "nhwc",
    PackedFamily.ROWWISE: "nhwc",
    PackedFamily.ATTENTION: "attention",
}
"""Who runs the kernels of a family."""

_NAME = re.compile(r"(\w+):(\d+(?:x\d+)*)((?:,\w+)*)")

_NUMBERS = {
    PackedFamily.PRODUCT: 3,
    PackedFamily.DIRECT: 11,
    PackedFamily.DEPTHWISE: 10,
    PackedFamily.WINOGRAD: 7,
    PackedFamily.ROWWISE: 19,
    PackedFamily.ATTENTION: 5,
}

_MAX_NUMBER = 1 << 24


def kernel_name(family: PackedFamily, numbers: Sequence[int], flags: Sequence[str] = ()) -> str:
    """Return a kernel's name: its family, the numbers of its shape, and flags such as `planar`."""
    return ",".join((f"{family}:{'x'.join(map(str, numbers))}", *flags))


def family_of(name: str) -> PackedFamily:
    """Return the family of a kernel's name.

    Raises:
        ValueError: there is no such kernel.
    """
    return parse_kernel_name(name)[0]


@lru_cache(maxsize=4096)
def parse_kernel_name(name: str) -> tuple[PackedFamily, tuple[int, ...], tuple[str, ...]]:
    """Return the family, the numbers and the flags of a kernel's name.

    Raises:
        ValueError: there is no such kernel.
    """
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


def direct_shape_of(name: str, registers: int = WIDE) -> DirectShape:
    """Return the direct convolution that a name begins with: the kernel, or the first of a row-by-row one."""
    _, numbers, flags = parse_kernel_name(name)
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


def depthwise_shape_of(numbers: Sequence[int], registers: int = WIDE) -> DepthwiseShape:
    """Return the depthwise convolution of a name's numbers: data, window, strides and padding."""
    batch, height, width, channels, *rest = numbers
    return DepthwiseShape(
        data=(batch, height, width, channels),
        window=(rest[0], rest[1]),
        strides=(rest[2], rest[3]),
        padding=(rest[4], rest[5]),
        registers=registers,
    )


def direct_numbers(shape: DirectShape) -> tuple[int, ...]:
    """Return what a name says of a direct convolution."""
    return (*shape.data, shape.filters, *window_numbers(shape))


def window_numbers(shape: DirectShape | DepthwiseShape) -> tuple[int, ...]:
    """Return window, strides and padding, as names say them."""
    return (*shape.window, *shape.strides, *shape.padding)
