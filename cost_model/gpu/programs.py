"""A program seen as the kernels that a GPU runs for it, and its latency as the sum of theirs.

What runs is what libraries and fusing compilers agree on: each matrix product, normalisation over rows and
softmax is a library's kernel; operators between them run as one kernel where all that reads a value is
within it; views and transposes that a product or a copy takes along cost nothing. Kernels run one after
another, each with the overhead of a call as it was measured, so that the sum is that of a program without
CUDA graphs. Checked in tests/cost_model/gpu/test_programs.py.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cost_model.gpu.devices import GpuDevice
from cost_model.gpu.kernel_model import GpuKernelModel, GpuPrediction, GpuQuery
from cost_model.gpu.kernels import (
    COSTLY,
    HALVES,
    ROW_OPERATORS,
    Family,
    GpuKernel,
    product_kernel,
    refusal,
)
from cost_model.gpu.typed.kernels import Attention
from cost_model.gpu.typed.model import TypedModel, shipped_model
from records import Operator, Tensor, Workload

_VIEWS = frozenset(
    ("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten", "permute_dims", "split")
)
"""Operators that only say how bytes are read: what reads them does so at its own cost."""

_MAX_FUSIBLE_KIND = 3
"""Element-wise, broadcast, injective operators and reductions; see `records.Operator`."""

_GATHERS = frozenset(("take", "gather_elements", "gather_nd", "nn.nll_loss"))
"""Operators that read of their first operand only as much as they return, or an element a row."""

_SCATTERS = frozenset(("grad.take_backward", "grad.nll_loss_backward"))
"""Operators that write a whole tensor from few elements."""

_ATTENTION = "nn.attention"


class ProgramPrediction(GpuPrediction, frozen=True):
    """The predicted latency of a program.

    Attributes:
        num_kernels: kernels that it runs.
    """

    num_kernels: int


def predict_programs(
    model: GpuKernelModel,
    workloads: Sequence[Workload],
    device: GpuDevice,
    *,
    typed: TypedModel | None = None,
) -> tuple[ProgramPrediction, ...]:
    """Return the predicted latency of each program on the device.

    Kernels of one family err together, for it is the device or the range that is unlike the training data;
    families err apart. So half-widths add up within a family, and by squares between families.

    Args:
        workloads: the programs, such as the functions of a stage.
        device: what they would run on.
        typed: of products and attention in 16 bits; the one that comes with the project if None.

    Raises:
        CostModelError: a kernel is of a family that was never measured; names its operators. Or one in 16
            bits is asked for on a GPU of which none are known.
    """
    kernels = [kernels_of_program(workload) for workload in workloads]
    distinct = tuple(dict.fromkeys(kernel for found in kernels for kernel in found))
    plain = [kernel for kernel in distinct if kernel.typed is None]
    predictions = model.predict([GpuQuery(kernel, device) for kernel in plain])
    prediction_of = dict(zip(plain, predictions, strict=True))
    halves = {kernel: kernel.typed for kernel in distinct if kernel.typed is not None}
    if halves:
        found = (typed or shipped_model()).price([*halves.values()], device.name)
        prediction_of |= dict(zip(halves, found, strict=True))
    return tuple(
        _sum([(kernel.family, prediction_of[kernel]) for kernel in each], is_known=_is_known(model, device))
        for each in kernels
    )


def kernels_of_program(workload: Workload) -> tuple[GpuKernel, ...]:
    """Return the kernels that run for a program, in order; none for one that only renames its inputs.

    Raises:
        CostModelError: an operator is none that GPUs were measured on; names it.
    """
    program = _Program(workload)
    kernels: list[GpuKernel] = []
    for group in program.groups:
        kernels += program.kernels_of(group)
    return tuple(kernels)


@dataclass(frozen=True)
class _Program:
    """A workload whose operators are grouped into kernels."""

    workload: Workload

    @cached_property
    def values(self) -> tuple[Tensor, ...]:
        return self.workload.values

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the values that each operator makes."""
        numbers, first = [], len(self.workload.inputs)
        for operator in self.workload.operators:
            numbers.append(tuple(range(first, first + len(operator.outputs))))
            first += len(operator.outputs)
        return tuple(numbers)

    @cached_property
    def consumers(self) -> dict[int, set[int]]:
        """Operators that read each value, views looked through."""
        found: dict[int, set[int]] = collections.defaultdict(set)
        for index, operator in enumerate(self.workload.operators):
            if operator.name not in _VIEWS:
                for number in operator.inputs:
                    found[self.origin[number]].add(index)
        return found

    @cached_property
    def origin(self) -> dict[int, int]:
        """Of each value, the one that it is a view of."""
        origin = {number: number for number in range(len(self.values))}
        for operator, numbers in zip(self.workload.operators, self.outputs, strict=True):
            if operator.name in _VIEWS:
                origin |= dict.fromkeys(numbers, origin[operator.inputs[0]])
        return origin

    @cached_property
    def results(self) -> frozenset[int]:
        return frozenset(self.origin[number] for number in self.workload.results)

    @cached_property
    def groups(self) -> list[list[int]]:
        """Operators that run as one kernel, views left out.

        An operator joins the kernel that reads all that it makes, so that kernels never wait for each other
        in a circle.
        """
        operators = self.workload.operators
        group_of = self._biases
        for index in reversed(range(len(operators))):
            if operators[index].name in _VIEWS or index in group_of:
                continue
            made = self.outputs[index]
            consumers = {group_of[consumer] for number in made for consumer in self.consumers[number]}
            group_of[index] = index
            if len(consumers) == 1 and not self.results & set(made):
                (group,) = consumers
                if _is_fusible(operators[index]) and _is_fusible(operators[group]):
                    group_of[index] = group
        members: dict[int, list[int]] = collections.defaultdict(list)
        for index in sorted(group_of):
            members[group_of[index]].append(index)
        return [members[group] for group in sorted(members)]

    @property
    def _biases(self) -> dict[int, int]:
        """Additions of a row to a product that nothing else reads, with that product: one call does both."""
        found = {}
        for index, operator in enumerate(self.workload.operators):
            if operator.name != "add" or len(operator.inputs) != 2:
                continue
            for number, other in (operator.inputs, operator.inputs[::-1]):
                producer = self.producers.get(self.origin[number])
                is_only_consumer = self.consumers[self.origin[number]] == {index}
                is_row = len(self.values[other].shape) == 1
                if is_row and is_only_consumer and producer is not None and self._name(producer) == "matmul":
                    found[index] = producer
        return found

    @cached_property
    def producers(self) -> dict[int, int]:
        """The operator that makes each value; inputs have none."""
        return {number: index for index, made in enumerate(self.outputs) for number in made}

    def _name(self, index: int) -> str:
        return self.workload.operators[index].name

    def kernels_of(self, group: Sequence[int]) -> list[GpuKernel]:
        """Return the kernel that runs a group; three where it is attention that nobody fused."""
        operators = [self.workload.operators[index] for index in group]
        read = {
            number
            for operator in operators
            for number in operator.inputs
            if self.producers.get(self.origin[number]) not in group
        }
        made = {number for index in group for number in self.outputs[index]}
        written = {
            number
            for number in made
            if number in self.results or any(consumer not in group for consumer in self.consumers[number])
        }
        num_bytes = self._bytes_read(operators, read) + self._bytes(written)
        first = operators[0]
        if not num_bytes:
            return []
        if first.name == "matmul":
            return [product_kernel(first, self.values, num_bytes)]
        if first.name == _ATTENTION:
            return self._attention(first)
        family = ROW_OPERATORS.get(first.name)
        if first.kind >= 4 and family is None and first.name not in _GATHERS | _SCATTERS:
            raise refusal([first])
        shape = max((self.values[number].shape for number in {*read, *written}), key=math.prod)
        if first.name in _GATHERS:
            shape = first.outputs[0].shape or self.values[first.inputs[-1]].shape
        columns = shape[-1] if shape else 1
        elements = math.prod(shape)
        kernel = GpuKernel(
            family or Family.ELEMENTWISE,
            (1, max(1, elements // max(1, columns)), 1, max(1, columns)),
            num_bytes,
            max(sum(operator.flops for operator in operators), elements),
            any(operator.name in COSTLY for operator in operators),
        )
        return [kernel]

    def _bytes(self, numbers: Iterable[int]) -> int:
        return sum(self.values[number].num_bytes for number in numbers)

    def _bytes_read(self, operators: Sequence[Operator], read: set[int]) -> int:
        """Return the bytes read: of a tensor no more than it has, of a table those of the rows gathered."""
        total = 0
        for operator in operators:
            first = operator.inputs[0] if operator.inputs else None
            if operator.name in _GATHERS and first in read:
                read = read - {first}
                rows = max(
                    sum(tensor.num_bytes for tensor in operator.outputs), self._bytes(operator.inputs[-1:])
                )
                total += min(rows, self._bytes([first]))
            if operator.name == "grad.take_backward":
                read = read - {operator.inputs[1]}  # the table, of which only the shape counts
        by_origin: dict[int, int] = collections.defaultdict(int)
        for number in read:
            by_origin[self.origin[number]] += self.values[number].num_bytes
        return total + sum(min(size, self._bytes([number])) for number, size in by_origin.items())

    def _attention(self, attention: Operator) -> list[GpuKernel]:
        """Return the two products and the softmax between them: (batch, length, heads, width) operands."""
        query, key, value = (self.values[number] for number in attention.inputs[:3])
        batch, length, heads, width = query.shape
        keys, columns = key.shape[1], value.shape[3]
        size = query.num_bytes // max(1, query.num_elements)
        count = batch * heads
        if query.dtype in HALVES:
            return [self._fused_attention(attention)]
        scores = count * length * keys * size
        sides = (query.num_bytes + key.num_bytes + scores, value.num_bytes + scores)
        return [
            GpuKernel(
                Family.BATCHED_PRODUCT,
                (count, length, width, keys),
                sides[0],
                2 * count * length * width * keys,
            ),
            GpuKernel(
                Family.SOFTMAX, (1, count * length, 1, keys), 2 * scores, 5 * count * length * keys, False
            ),
            GpuKernel(
                Family.BATCHED_PRODUCT,
                (count, length, keys, columns),
                sides[1] + count * length * columns * size,
                2 * count * length * columns * keys,
            ),
        ]

    def _fused_attention(self, attention: Operator) -> GpuKernel:
        """Return attention in 16 bits, which libraries run as one kernel.

        Only causal ones were measured: another is one whose context gives as many pairs of tokens.
        """
        query, key, value = (self.values[number] for number in attention.inputs[:3])
        batch, length, heads, width = query.shape
        keys, kv_heads = key.shape[1], key.shape[2]
        is_causal = dict(attention.attributes).get("causal_mask", "None") not in ("None", "")
        past = max(0, keys - length) if is_causal else max(0, keys - length // 2)
        num_bytes = self._bytes(attention.inputs) + sum(tensor.num_bytes for tensor in attention.outputs)
        kernel = Attention(batch, length, heads, kv_heads, (width + value.shape[3]) // 2, past)
        extents = (batch * heads, length, width, keys)
        return GpuKernel(Family.BATCHED_PRODUCT, extents, num_bytes, 4 * math.prod(extents), False, kernel)


def _is_fusible(operator: Operator) -> bool:
    return operator.kind <= _MAX_FUSIBLE_KIND and operator.name not in _GATHERS


def _is_known(model: GpuKernelModel, device: GpuDevice) -> bool:
    return any(device.name in family.overheads_us for family in model.manifest.families.values())


def _sum(parts: Sequence[tuple[Family, GpuPrediction]], *, is_known: bool) -> ProgramPrediction:
    latency = sum(prediction.latency_us for _, prediction in parts)
    above: dict[Family, float] = collections.defaultdict(float)
    for family, prediction in parts:
        above[family] += prediction.high_us - prediction.latency_us
    # Intervals are symmetric as ratios: what is above tells what is below.
    factor = 1 + math.hypot(*above.values()) / latency if latency else 1.0
    return ProgramPrediction(
        latency_us=latency,
        low_us=latency / factor,
        high_us=latency * factor,
        is_known_device=is_known,
        out_of_range=max((prediction.out_of_range for _, prediction in parts), default=0.0),
        num_kernels=len(parts),
    )
