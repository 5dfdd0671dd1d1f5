"""Group the operators of a sub-graph into kernels: convolutions with epilogues, or chains run row by row.

A chain is a convolution that there is a kernel for, with a bias, a tensor that is added, and ReLU or a clip,
each read by nobody else. A block is two or three chains that one kernel computes row by row: a direct one, a
depthwise one of its result, and a pixelwise one. Here it is decided; `tuner.backends.cpu.nhwc_writer`
writes the calls. Checked in tests/tuner/backends/cpu/test_nhwc.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypedDict

import tvm
from tvm import relax

from cost_model.register_tile import lanes_of
from tuner.backends.cpu.kernels.clamp import UNBOUNDED, Bounds, bounds_of
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape
from tuner.backends.library_call import shape_of
from tuner.graph.relax_types import Expression, RelaxFunction
from tuner.targets.target import Target

_MAX_AGAIN = 1 / 8
"""Rows that strips compute again, as a share, above which a kernel for each convolution is faster."""

_CACHED_BYTES = 1 << 21
"""Weights of a convolution that each row reads again."""


@dataclass(slots=True)
class Chain:
    """A convolution and what its kernel does besides.

    Attributes:
        last: the variable of the last operator.
        bias: what is added to each channel.
        other: a tensor that is added.
        activation: what is done to the results.
    """

    call: Expression
    last: Expression
    bias: Expression | None = None
    other: Expression | None = None
    activation: Bounds = UNBOUNDED


class Place(TypedDict):
    """What direct and depthwise kernels both ask for."""

    data: tuple[int, int, int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]


def find_chains(function: RelaxFunction) -> tuple[dict[Expression, Chain], set[Expression]]:
    """Return convolutions with what follows by the last variable of each, and the variables before those."""
    bindings, readers = bindings_of(function), _readers(function)
    results = set(relax.analysis.free_vars(function.body.body))
    chains: dict[Expression, Chain] = {}
    inside: set[Expression] = set()
    taken: set[Expression] = set()
    for binding in bindings:
        if not has_kernel(binding.value):
            continue
        chain = Chain(binding.value, binding.var)
        while chain.last not in results and len(readers.get(chain.last, ())) == 1:
            (reader,) = readers[chain.last]
            # Of two convolutions that are added the first one's kernel adds.
            if reader.var in taken or not _absorb(chain, reader.value):
                break
            taken.add(reader.var)
            inside.add(chain.last)
            chain.last = reader.var
            if chain.activation != UNBOUNDED:
                break
        chains[chain.last] = chain
    return chains, inside


def _absorb(chain: Chain, value: Expression) -> bool:
    """Note that the kernel of a convolution does this operator too, where it can."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    if (bounds := bounds_of(value)) is not None:
        chain.activation = bounds
        return True
    if value.op.name != "relax.add" or shape_of(value) != shape_of(chain.last):
        return False
    (added,) = [argument for argument in value.args if argument != chain.last] or (None,)
    if not isinstance(added, relax.Var):
        return False
    shape, filters = shape_of(added), shape_of(chain.last)[1]
    is_channels = shape[-3:] == (filters, 1, 1) and all(extent == 1 for extent in shape[:-3])
    if is_channels and chain.bias is None and chain.other is None:
        chain.bias = added
        return True
    if shape == shape_of(chain.last) and chain.other is None and _is_direct(chain.call):
        chain.other = added
        return True
    return False


def find_blocks(
    function: RelaxFunction, chains: dict[Expression, Chain], target: Target
) -> dict[Expression, tuple[Chain, ...]]:
    """Return convolutions that one kernel computes row by row, by the last variable of each.

    They are direct ones that a depthwise one alone reads, and pixelwise ones that alone read that one.
    """
    readers, results = _readers(function), set(relax.analysis.free_vars(function.body.body))
    chain_of = {chain.call: chain for chain in chains.values()}

    def reader(chain: Chain) -> Chain | None:
        found = readers.get(chain.last, [])
        if chain.last in results or len(found) != 1 or found[0].value not in chain_of:
            return None
        after = chain_of[found[0].value]
        return after if after.call.args[0] == chain.last and after.other != chain.last else None

    blocks: dict[Expression, tuple[Chain, ...]] = {}
    for chain in chains.values():
        depthwise = reader(chain)
        if depthwise is None or not is_depthwise(depthwise.call):
            continue
        shape = DepthwiseShape(**place_of(depthwise.call))
        if not _goes_by_rows(chain, shape, target):
            continue
        narrow = reader(depthwise)
        # Behind strides the third one measured slower in this kernel than in one of its own.
        if narrow is None or shape.strides != (1, 1) or not _is_pixelwise(narrow.call):
            blocks[depthwise.last] = (chain, depthwise)
        else:
            blocks[narrow.last] = (chain, depthwise, narrow)
    return blocks


def _goes_by_rows(chain: Chain, shape: DepthwiseShape, target: Target) -> bool:
    """Say whether a convolution is worth computing row by row, as the depthwise one after it reads it."""
    again = (num_strips(shape, target) - 1) * max(0, shape.window[0] - shape.strides[0])
    is_little = again <= _MAX_AGAIN * shape.data[1]
    is_plain = _is_direct(chain.call) and chain.other is None
    return is_plain and is_little and _is_cached(chain.call)


def num_strips(shape: DepthwiseShape, target: Target) -> int:
    """Return into how many strips an image's rows are cut, so that each thread has one."""
    return -(-target.num_threads // shape.data[0])


def has_kernel(value: Expression) -> bool:
    """Say whether there is a kernel for a value: a convolution of one group, or of one for each channel."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    if value.op.name != "relax.nn.conv2d" or str(value.ty.dtype) != "float32":
        return False
    attributes = value.attrs
    if (attributes.data_layout, attributes.kernel_layout) != ("NCHW", "OIHW"):
        return False
    top, left, bottom, right = (int(extent) for extent in attributes.padding)
    if int(attributes.groups) != 1 and not is_depthwise(value):
        return False
    is_plain = {int(step) for step in attributes.dilation} == {1}
    return is_plain and (top, left) == (bottom, right) and lanes_of(shape_of(value.args[1])[0]) > 0


def is_depthwise(call: Expression) -> bool:
    """Say whether each channel gives one of the result."""
    groups, (filters, channels, *_) = int(call.attrs.groups), shape_of(call.args[1])
    return groups > 1 and channels == 1 and groups == filters


def is_winograd(call: Expression) -> bool:
    """Say whether Winograd's method computes a convolution that there is a kernel for."""
    filters = shape_of(call.args[1])
    is_one = {int(step) for step in call.attrs.strides} == {1}
    return is_one and filters[2:] == (3, 3) and lanes_of(filters[1]) > 0 and int(call.attrs.groups) == 1


def _is_direct(call: Expression) -> bool:
    return not is_winograd(call) and not is_depthwise(call)


def _is_pixelwise(call: Expression) -> bool:
    place = place_of(call)
    is_one = (place["window"], place["strides"], place["padding"]) == ((1, 1), (1, 1), (0, 0))
    return is_one and _is_direct(call) and _is_cached(call)


def _is_cached(call: Expression) -> bool:
    """Say whether a convolution's weights stay in a core's cache, from where each row reads them."""
    return 4 * math.prod(shape_of(call.args[1])) <= _CACHED_BYTES


def place_of(call: Expression) -> Place:
    """Return what kernels of a convolution ask for; its data's shape in the order of NHWC."""
    batch, channels, height, width = shape_of(call.args[0])
    attributes = call.attrs
    return {
        "data": (batch, height, width, channels),
        "window": (shape_of(call.args[1])[2], shape_of(call.args[1])[3]),
        "strides": (int(attributes.strides[0]), int(attributes.strides[1])),
        "padding": (int(attributes.padding[0]), int(attributes.padding[1])),
    }


def filters_of(call: Expression) -> int:
    """Return how many channels a convolution's result has."""
    return shape_of(call.args[1])[0]


def bindings_of(function: RelaxFunction) -> list[Any]:
    """Return all bindings of a function in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def _readers(function: RelaxFunction) -> dict[Expression, list[Any]]:
    """Return the bindings that read each variable."""
    readers: dict[Expression, list[Any]] = {}
    for binding in bindings_of(function):
        for variable in relax.analysis.free_vars(binding.value):
            readers.setdefault(variable, []).append(binding)
    return readers
