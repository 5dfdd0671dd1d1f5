"""A workload seen as one of the five kernels that fill transformers: what it computes on which extents.

Checked in tests/cost_model/gpu/test_kernels.py.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

from cost_model.errors import CostModelError
from cost_model.gpu.typed.kernels import Product, TypedKernel
from records import Operator, Tensor, Workload


class Family(enum.StrEnum):
    """Kernels that share a forest; their latencies depend on different extents."""

    BATCHED_PRODUCT = "batched product"
    LINEAR = "linear"
    ELEMENTWISE = "elementwise"
    LAYER_NORM = "layer norm"
    SOFTMAX = "softmax"


class GpuKernel(NamedTuple):
    """One kernel.

    Attributes:
        family: its forest.
        extents: (batch, rows, inner, columns) of a product; (1, rows, 1, length of a row) of the others.
        num_bytes: bytes that it reads and writes at least.
        flops: operations; an element of what is no product counts as one.
        is_costly: whether an element takes many instructions (powers, hyperbolic functions, error functions).
        typed: the kernel as `cost_model.gpu.typed` prices it, for products and attention in 16 bits, which
            run on tensor cores; None for what float32 kernels tell of.
    """

    family: Family
    extents: tuple[int, int, int, int]
    num_bytes: int
    flops: int
    is_costly: bool = False
    typed: TypedKernel | None = None


HALVES = frozenset(("bfloat16", "float16"))

COSTLY = frozenset(("power", "tanh", "nn.gelu", "nn.gelu_tanh", "erf", "exp", "log", "divide", "sigmoid"))
"""Operators of many instructions an element."""

ROW_OPERATORS = {
    "nn.layer_norm": Family.LAYER_NORM,
    "nn.rms_norm": Family.LAYER_NORM,
    "nn.softmax": Family.SOFTMAX,
    "nn.log_softmax": Family.SOFTMAX,
}
"""Operators that a library runs row by row, and the family that their latencies are like."""

_OPERATIONS_BY_FAMILY = {Family.ELEMENTWISE: 1, Family.LAYER_NORM: 6, Family.SOFTMAX: 5}
_FREE = frozenset(("permute_dims", "reshape", "expand_dims", "broadcast_to"))
"""Operators that a kernel takes as another way to read its operands."""


def kernel_of(workload: Workload) -> GpuKernel:
    """Return the kernel that the workload is.

    Raises:
        CostModelError: it is none of the families: no operator, several anchors, or one that none has.
    """
    values = workload.values
    operators = [operator for operator in workload.operators if operator.name not in _FREE]
    anchors = [operator for operator in operators if operator.kind >= 4 or operator.name in ROW_OPERATORS]
    if not operators or len(anchors) > 1:
        raise refusal(workload.operators)
    if any(tensor.num_elements == 0 for tensor in values):
        raise CostModelError("a kernel with no element to compute has no latency to predict; leave it out")
    num_bytes = workload.input_bytes + workload.constant_bytes + workload.output_bytes
    anchor = anchors[0] if anchors else None
    if anchor is not None and anchor.name == "matmul":
        return product_kernel(anchor, values, num_bytes)
    if anchor is not None and anchor.name not in ROW_OPERATORS:
        raise refusal(workload.operators)
    family = Family.ELEMENTWISE if anchor is None else ROW_OPERATORS[anchor.name]
    largest = max((values[number].shape for number in workload.results), key=math.prod)
    columns = largest[-1] if largest else 1
    elements = math.prod(largest)
    return GpuKernel(
        family,
        (1, max(1, elements // max(1, columns)), 1, columns),
        num_bytes,
        elements * _OPERATIONS_BY_FAMILY[family],
        any(operator.name in COSTLY for operator in operators),
    )


def product_kernel(product: Operator, values: tuple[Tensor, ...], num_bytes: int) -> GpuKernel:
    """Return the kernel of a matrix product, whose operands are among a program's values."""
    left, right = (values[number].shape for number in product.inputs)
    out = product.outputs[0].shape
    rows, inner, columns = left[-2] if len(left) > 1 else 1, left[-1], out[-1]
    batch = math.prod(out) // max(1, rows * columns)
    flops = 2 * batch * rows * inner * columns
    dtype = values[product.inputs[0]].dtype
    # Of batches in 16 bits none was measured: their blocks are those of one product of as many rows.
    typed = Product(max(1, batch * rows), columns, inner, dtype) if dtype in HALVES else None
    if math.prod(right) == inner * columns:  # one matrix for the whole batch: its rows are one product's
        return GpuKernel(Family.LINEAR, (1, batch * rows, inner, columns), num_bytes, flops, False, typed)
    return GpuKernel(Family.BATCHED_PRODUCT, (batch, rows, inner, columns), num_bytes, flops, False, typed)


def refusal(operators: Sequence[Operator]) -> CostModelError:
    """Return the error that names operators of which no kernel was measured on a GPU."""
    names = ", ".join(operator.name for operator in operators[:5]) or "none"
    return CostModelError(
        f"kernels of the operators {names} are not among those that GPUs were measured on "
        f"({', '.join(Family)}); measure it on the device"
    )
