"""Features of a workload: what a sub-graph computes, on which shapes, by which backend, on which device.

Groups: work (operations, bytes, roofline times), the anchor's canonical shape, its layout (which operands are
transposed, which vectors and tiles its extents allow), structure, and the system. Everything comes from
records, so a change here needs no new measurement, only a higher `FEATURES_VERSION`. Tensor values and memory
alignment are ignored. Checked in tests/cost_model/test_features.py.

Source: the groups follow TenSet (Zheng et al., NeurIPS 2021, section 4) and nn-Meter (Zhang et al., MobiSys
2021, section 5), with the anchor's shape and the roofline bound in place of per-loop statistics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.product_tile import ProductTile, product_tile, transpositions
from cost_model.register_tile import largest_divisor
from cost_model.roofline import DeviceSpeed, bound_us, roofline_us
from records import Operator, Tensor, Workload

FEATURES_VERSION = 4

BACKENDS = ("tvm", "metaschedule", "blas", "torch", "onnxruntime", "cublas", "cudnn", "mix")
"""Backends with a column of their own; others share one."""

OPERATORS = (
    "matmul", "nn.conv2d", "nn.conv1d", "nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.relu",
    "nn.gelu", "nn.max_pool2d", "nn.avg_pool2d", "nn.batch_norm", "nn.attention", "add", "subtract",
    "multiply", "divide", "exp", "log", "erf", "tanh", "sigmoid", "sqrt", "rsqrt", "power", "sum",
    "mean", "max", "variance", "take", "where", "reshape", "permute_dims", "concat", "split",
    "strided_slice", "broadcast_to", "expand_dims", "astype", "maximum", "negative", "collapse_sum_to",
    "scatter_elements", "one_hot", "copy",
)  # fmt: skip
"""Operators with a column of their own; others share one."""

TRANSCENDENTAL = frozenset(
    ("exp", "log", "erf", "tanh", "sigmoid", "power", "sqrt", "rsqrt", "divide", "nn.gelu", "nn.gelu_tanh",
     "nn.softmax", "nn.log_softmax", "nn.silu")
)  # fmt: skip
"""Operators that take many instructions an element."""

_KINDS = 9
_ELEMENTWISE_KINDS, _INJECTIVE_KIND, _REDUCTION_KIND = (0, 1), 2, 3
_REMAINDERS = (8, 16, 64)
_VECTOR = 16

_WORK = (
    "log_flops",
    "log_anchor_flops",
    "log_input_bytes",
    "log_weight_bytes",
    "log_output_bytes",
    "log_intermediate_bytes",
    "log_intensity",
    "log_compute_us",
    "log_traffic_us",
    "log_roofline_us",
    "log_working_set",
    "log_unfused_us",
    "log_elementwise",
    "log_transcendental",
    "log_moved_bytes",
    "log_reduced",
    "log_strided_bytes",
    "log_reduced_in_rows",
    "log_reduced_across_rows",
    "log_longest_row",
)
_ANCHOR = (
    "anchor_is_matmul",
    "anchor_is_conv",
    "anchor_is_reduction",
    "log_m",
    "log_n",
    "log_k",
    "log_batch",
    *(f"{axis}_mod_{modulus}" for axis in "mnk" for modulus in _REMAINDERS),
    "kernel_height",
    "kernel_width",
    "stride",
    "log_groups",
    "log_reduction",
    "log_largest_output",
    "weights_are_constant",
    "log_in_channels",
    "log_out_channels",
    "log_out_height",
    "log_out_width",
    "log_group_channels",
    "padding",
    "is_transposed",
    "out_width_mod_16",
    "in_channels_mod_16",
    "group_channels_mod_16",
    "is_depthwise",
)
_LAYOUT = (
    "left_is_transposed",
    "right_is_transposed",
    "right_is_shared",
    "log_rows",
    "log_products",
    *(f"twos_in_{axis}" for axis in ("rows", "n", "k")),
    "log_smaller_extent",
    *(f"tile_{name}" for name in ProductTile._fields),
    "tile_registers",
    "output_lanes",
    "input_lanes",
    "log_output_row",
    "twos_in_output_row",
)
_STRUCTURE = (
    "num_operators",
    "depth",
    "num_results",
    "num_inputs",
    *(f"kind_{kind}" for kind in range(_KINDS)),
    *(f"operator_{name}" for name in OPERATORS),
    "operator_other",
)
_SYSTEM = (
    *(f"backend_{name}" for name in BACKENDS),
    "backend_other",
    "log_trials",
    "log_threads",
    "log_peak_gflops",
    "log_bandwidth",
    "log_call_us",
)

FEATURE_NAMES: tuple[str, ...] = (*_WORK, *_ANCHOR, *_LAYOUT, *_STRUCTURE, *_SYSTEM)

FEATURE_GROUPS: dict[str, tuple[str, ...]] = {
    "work": _WORK,
    "anchor": _ANCHOR,
    "layout": _LAYOUT,
    "structure": _STRUCTURE,
    "system": _SYSTEM,
}
"""The features by what they say; for ablations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One thing to be priced: a workload, who runs it, and where.

    Attributes:
        settings: the backend's settings, such as `trials=64`.
        num_threads: threads it may use.
        speed: what the device can do at best.
    """

    workload: Workload
    backend: str
    settings: str
    num_threads: int
    speed: DeviceSpeed


def feature_matrix(queries: Sequence[Query]) -> npt.NDArray[np.float32]:
    """Return features of every query, shape (num_queries, num_features), in the order of `FEATURE_NAMES`.

    What depends on the workload and its device is computed once for each, as is what depends on the backend.
    """
    matrix = np.zeros((len(queries), len(FEATURE_NAMES)), dtype=np.float32)
    first_system = len(FEATURE_NAMES) - len(_SYSTEM)
    # Equal workloads are usually the same object here, and hashing one is slower than its features.
    rows: dict[tuple[int, int], npt.NDArray[np.float32]] = {}
    systems: dict[tuple[str, str, int, int], npt.NDArray[np.float32]] = {}
    for index, query in enumerate(queries):
        key = id(query.workload), id(query.speed)
        if key not in rows:
            rows[key] = np.asarray(_workload_features(query.workload, query.speed), dtype=np.float32)
        system = query.backend, query.settings, query.num_threads, id(query.speed)
        if system not in systems:
            systems[system] = np.asarray(_system_features(query), dtype=np.float32)
        matrix[index, :first_system] = rows[key]
        matrix[index, first_system:] = systems[system]
    return matrix


def roofline_vector(queries: Sequence[Query]) -> npt.NDArray[np.float64]:
    """Return the roofline bound of every query in microseconds, shape (num_queries,)."""
    bounds: dict[tuple[int, int], float] = {}
    for query in queries:
        key = id(query.workload), id(query.speed)
        if key not in bounds:
            bounds[key] = roofline_us(query.workload, query.speed)
    return np.array([bounds[id(query.workload), id(query.speed)] for query in queries], dtype=np.float64)


def anchor_of(workload: Workload) -> Operator | None:
    """Return the operator that does most work, the first of equals; None where there is no operator."""
    return max(workload.operators, key=lambda operator: operator.flops, default=None)


def shape_key(workload: Workload) -> str:
    """Name the workload's operators without any shape: equal for the same combination at other shapes.

    A convolution in groups is another operator than a dense one: its loops, and who is good at them, differ.
    """
    return ";".join(
        f"{operator.name}{'/groups' if _is_grouped(operator) else ''}{operator.inputs}"
        for operator in workload.operators
    )


def _is_grouped(operator: Operator) -> bool:
    return "conv" in operator.name and _first_number(dict(operator.attributes).get("groups", "")) > 1


def anchor_key(workload: Workload) -> str:
    """Name the anchor with its shapes: equal for sub-graphs whose most expensive operator is the same."""
    anchor = anchor_of(workload)
    if anchor is None:
        return "none"
    values = workload.values
    given = [values[number].shape for number in anchor.inputs]
    return f"{anchor.name}{given}{[tensor.shape for tensor in anchor.outputs]}{anchor.attributes}"


def _workload_features(workload: Workload, speed: DeviceSpeed) -> list[float]:
    values = workload.values
    anchor = anchor_of(workload)
    return [
        *_work_features(workload, values, speed, anchor),
        *_anchor_features(workload, values, anchor),
        *_layout_features(workload, values, anchor),
        *_structure_features(workload),
    ]


def _work_features(
    workload: Workload, values: Sequence[Tensor], speed: DeviceSpeed, anchor: Operator | None
) -> list[float]:
    results = set(workload.results)
    num_bytes = [tensor.num_bytes for tensor in values]
    first_output = len(workload.inputs)
    weights = sum(size for size, tensor in zip(num_bytes, workload.inputs, strict=False) if tensor.constant)
    inputs = sum(num_bytes[:first_output]) - weights
    outputs = sum(num_bytes[number] for number in workload.results)
    intermediate = sum(
        size for number, size in enumerate(num_bytes) if number >= first_output and number not in results
    )
    flops, traffic = workload.flops, inputs + weights + outputs
    return [
        _log(flops),
        _log(0 if anchor is None else anchor.flops),
        _log(inputs),
        _log(weights),
        _log(outputs),
        _log(intermediate),
        math.log2((flops + 1) / (traffic + 1)),
        math.log2(flops / speed.peak_gflops / 1e3 + 1e-3),
        math.log2(traffic / speed.bandwidth_gb_s / 1e3 + 1e-3),
        math.log2(bound_us(flops, traffic, speed)),
        _log(traffic + intermediate),
        *_operator_work(workload, values, num_bytes, speed),
    ]


def _operator_work(
    workload: Workload, values: Sequence[Tensor], num_bytes: Sequence[int], speed: DeviceSpeed
) -> list[float]:
    """Add up what operators do one by one, as a library runs them and as a compiler's loops do."""
    made = len(workload.inputs)
    unfused_us = elementwise = transcendental = moved_bytes = reduced = 0.0
    for operator in workload.operators:
        read = sum(num_bytes[number] for number in operator.inputs)
        written = sum(num_bytes[made : made + len(operator.outputs)])
        made += len(operator.outputs)
        elements = sum(tensor.num_elements for tensor in operator.outputs)
        unfused_us += speed.call_us + max(
            operator.flops / speed.peak_gflops / 1e3, (read + written) / speed.bandwidth_gb_s / 1e3
        )
        if operator.kind in _ELEMENTWISE_KINDS:
            elementwise += elements
        elif operator.kind == _INJECTIVE_KIND:
            moved_bytes += written
        elif operator.kind == _REDUCTION_KIND:
            reduced += max((values[number].num_elements for number in operator.inputs), default=0)
        if operator.name in TRANSCENDENTAL:
            transcendental += elements
    return [
        math.log2(unfused_us + 1e-3),
        _log(elementwise),
        _log(transcendental),
        _log(moved_bytes),
        _log(reduced),
        *_access(workload, values),
    ]


def _access(workload: Workload, values: Sequence[Tensor]) -> list[float]:
    """Say how memory is walked: what is read with a stride, what is summed along rows and across them."""
    strided_bytes = in_rows = across_rows = longest_row = 0.0
    for operator in workload.operators:
        given = values[operator.inputs[0]] if operator.inputs else None
        if given is None or not given.shape:
            continue
        rank = len(given.shape)
        attributes = dict(operator.attributes)
        longest_row = max(longest_row, given.shape[-1])
        if operator.name == "permute_dims":
            axes = _numbers(attributes.get("axes", "")) or list(range(rank))[::-1]
            strided_bytes += given.num_bytes * (axes[-1] % rank != rank - 1)
        elif operator.kind == _REDUCTION_KIND:
            axes = _numbers(attributes.get("axis", "")) or _collapsed_axes(given, operator.outputs[0])
            if rank - 1 in [axis % rank for axis in axes]:
                in_rows += given.num_elements
            if any(axis % rank != rank - 1 for axis in axes):
                across_rows += given.num_elements
    return [_log(strided_bytes), _log(in_rows), _log(across_rows), _log(longest_row)]


def _collapsed_axes(given: Tensor, output: Tensor) -> list[int]:
    """Return the axes that a sum to a smaller shape runs over."""
    padded = (1,) * (len(given.shape) - len(output.shape)) + output.shape
    return [axis for axis, (old, new) in enumerate(zip(given.shape, padded, strict=True)) if old != new]


def _anchor_features(workload: Workload, values: Sequence[Tensor], anchor: Operator | None) -> list[float]:
    if anchor is None:
        return [0.0] * len(_ANCHOR)
    inputs = [values[number] for number in anchor.inputs]
    m, n, k, batch = _canonical_extents(anchor, inputs)
    attributes = dict(anchor.attributes)
    is_conv = "conv" in anchor.name
    kernel = inputs[1].shape[-2:] if is_conv and len(inputs) > 1 else ()
    largest = max(tensor.num_elements for operator in workload.operators for tensor in operator.outputs)
    return [
        float(anchor.name == "matmul"),
        float(is_conv),
        float(anchor.kind == 3),
        _log(m),
        _log(n),
        _log(k),
        _log(batch),
        *(float(extent % modulus) for extent in (m, n, k) for modulus in _REMAINDERS),
        float(kernel[0]) if len(kernel) > 1 else 0.0,
        float(kernel[-1]) if kernel else 0.0,
        _first_number(attributes.get("strides", "")),
        _log(_first_number(attributes.get("groups", ""))),
        _log(k),
        _log(largest),
        float(len(inputs) > 1 and inputs[1].constant),
        *_convolution_features(anchor, inputs, attributes),
    ]


def _convolution_features(
    anchor: Operator, inputs: Sequence[Tensor], attributes: Mapping[str, str]
) -> list[float]:
    output = anchor.outputs[0].shape
    if "conv" not in anchor.name or len(inputs) < 2 or len(output) < 3 or len(inputs[0].shape) < 3:
        return [0.0] * 11
    channels = inputs[0].shape[1]
    groups = max(_first_number(attributes.get("groups", "")), 1.0)
    return [
        _log(channels),
        _log(output[1]),
        _log(output[2]),
        _log(output[-1]),
        _log(channels / groups),
        _first_number(attributes.get("padding", "")),
        float("transpose" in anchor.name),
        float(output[-1] % 16),
        float(channels % 16),
        float(channels // int(groups) % 16),
        float(groups == channels > 1),
    ]


def _layout_features(workload: Workload, values: Sequence[Tensor], anchor: Operator | None) -> list[float]:
    """Say how the anchor's operands lie in memory, and what its extents allow loops and vectors to be."""
    if anchor is None or not anchor.inputs:
        return [0.0] * len(_LAYOUT)
    inputs = [values[number] for number in anchor.inputs]
    m, n, k, batch = _canonical_extents(anchor, inputs)
    left, right, shared = False, False, False
    if anchor.name == "matmul" and len(inputs) == 2:
        left, right = transpositions(workload, anchor)
        shared = len(inputs[1].shape) == 2
    # One operand for a whole batch makes the batch rows of a single product, as an image's pixels are.
    is_one = shared or "conv" in anchor.name
    rows, products = (m * batch, 1) if is_one else (m, batch)
    tile = product_tile(workload, anchor)
    given, made = (tensor.shape[-1] if tensor.shape else 1 for tensor in (inputs[0], anchor.outputs[0]))
    return [
        float(left),
        float(right),
        float(shared),
        _log(rows),
        _log(products),
        *(float(_twos(extent)) for extent in (rows, n, k)),
        _log(min(rows, n)),
        *map(float, tile),
        float(tile.rows * tile.vectors),
        float(largest_divisor(made, _VECTOR)),
        float(largest_divisor(given, _VECTOR)),
        _log(made),
        float(_twos(made)),
    ]


def _twos(extent: int) -> int:
    """Return how often two divides an extent: rows a power of two apart share lines of a cache."""
    return min((extent & -extent).bit_length() - 1, 12) if extent else 0


def _canonical_extents(anchor: Operator, inputs: Sequence[Tensor]) -> tuple[int, int, int, int]:
    """Return M, N, K and the batch of the matrix product that the anchor is, or is most like."""
    output = anchor.outputs[0].shape
    if anchor.name == "matmul" and len(inputs) == 2 and inputs[0].shape and output:
        k = inputs[0].shape[-1]
        m = output[-2] if len(output) > 1 else 1
        return m, output[-1], k, math.prod(output[:-2])
    if "conv" in anchor.name and len(inputs) > 1 and len(output) > 2:
        weight = inputs[1].shape
        return math.prod(output[2:]), output[1], math.prod(weight[1:]), output[0]
    elements = math.prod(output)
    given = max((tensor.num_elements for tensor in inputs), default=elements)
    last = output[-1] if output else 1
    return elements // max(last, 1), last, max(given // max(elements, 1), 1), 1


def _structure_features(workload: Workload) -> list[float]:
    names = [operator.name for operator in workload.operators]
    known = {name: names.count(name) for name in set(names)}
    kinds = [0.0] * _KINDS
    for operator in workload.operators:
        kinds[min(max(operator.kind, 0), _KINDS - 1)] += 1
    return [
        float(len(names)),
        float(_depth(workload)),
        float(len(workload.results)),
        float(len(workload.inputs)),
        *kinds,
        *(float(known.get(name, 0)) for name in OPERATORS),
        float(sum(count for name, count in known.items() if name not in OPERATORS)),
    ]


def _depth(workload: Workload) -> int:
    depths = [0] * len(workload.inputs)
    for operator in workload.operators:
        depth = 1 + max((depths[number] for number in operator.inputs), default=0)
        depths += [depth] * len(operator.outputs)
    return max(depths, default=0)


def _system_features(query: Query) -> list[float]:
    return [
        *(float(query.backend == name) for name in BACKENDS),
        float(query.backend not in BACKENDS),
        _log(_trials(query.settings)),
        math.log2(query.num_threads),
        math.log2(query.speed.peak_gflops),
        math.log2(query.speed.bandwidth_gb_s),
        math.log2(query.speed.call_us + 0.1),
    ]


def _trials(settings: str) -> int:
    for setting in settings.replace("&", ",").split(","):
        name, _, value = setting.partition("=")
        if name.strip() == "trials" and value.strip().isdigit():
            return int(value)
    return 0


def _first_number(text: str) -> float:
    numbers = _numbers(text)
    return float(abs(numbers[0])) if numbers else 0.0


def _numbers(text: str) -> list[int]:
    """Return the whole numbers in an attribute's text, such as `[0, 1]`."""
    return [int(number) for number in re.findall(r"-?\d+", text)]


def _log(value: float) -> float:
    return math.log2(value + 1)
