"""Workloads: operators, shapes, data types, work and traffic, independent of any compiler.

A workload is a small data-flow program. Its values are numbered: first the inputs, then the outputs of each
operator in order. Two programs that differ only in names or in the order of independent operators have the
same canonical form, and so the same fingerprint: that is how a repeated layer is measured once. It contains
neither what runs the program (the backend and target of a `Measurement`) nor the data itself. Checked in
tests/records/test_workload.py.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

SCHEMA_VERSION = 1

_BITS_BY_DTYPE = {"bool": 8, "float8_e4m3fn": 8, "float8_e5m2": 8, "bfloat16": 16}

Role = Literal["kernel", "stage", "model", "transfer", "device", "task"]
"""What a workload stands for: a partition, a stage, a whole model, a hop between devices, a device probe, or
a kernel that is being tuned, each of whose measurements is of one schedule."""


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor's shape and data type.

    `constant` marks weights whose values are known when the program is compiled.
    """

    shape: tuple[int, ...]
    dtype: str
    constant: bool = False

    def __post_init__(self) -> None:
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"shape {self.shape} has a negative extent; extents are counts of elements")

    @property
    def num_elements(self) -> int:
        """Number of elements; a scalar has one."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in bytes without padding."""
        return (self.num_elements * _bits(self.dtype) + 7) // 8


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One operator call.

    Attributes:
        name: the operator's name without its dialect, such as `matmul` or `nn.softmax`.
        kind: op-pattern kind: 0 elementwise, 1 broadcast, 2 injective, 3 reduction, 4 anchor, 8 opaque.
        inputs: numbers of the values it reads.
        outputs: the tensors it makes, each a new value.
        attributes: (name, value) pairs, sorted by name; values as short text.
        flops: floating-point operations it does.
    """

    name: str
    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[Tensor, ...]
    attributes: tuple[tuple[str, str], ...] = ()
    flops: int = 0


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A canonical description of one program that was, or could be, measured.

    Build one with `describe`, which makes the form canonical; equal programs then compare and hash equal.

    Attributes:
        role: what the program stands for.
        inputs: the tensors it is given; constants are marked.
        operators: in an order in which inputs come before users.
        results: numbers of the values it returns.
        parameters: further (name, value) facts that make two programs differ, such as the sampled bytes of
            a transfer; sorted by name.
    """

    role: Role
    inputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    results: tuple[int, ...]
    parameters: tuple[tuple[str, str], ...] = ()
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        _check_references(self)

    @property
    def fingerprint(self) -> str:
        """Name the program by 32 hexadecimal digits of its canonical JSON; stable across processes."""
        return hashlib.blake2b(self.to_json(), digest_size=16).hexdigest()

    @property
    def values(self) -> tuple[Tensor, ...]:
        """Every value by number: the inputs, then the outputs of each operator."""
        return (*self.inputs, *(tensor for operator in self.operators for tensor in operator.outputs))

    @property
    def flops(self) -> int:
        """Floating-point operations of all operators."""
        return sum(operator.flops for operator in self.operators)

    @property
    def input_bytes(self) -> int:
        """Bytes of inputs that are not constants."""
        return sum(tensor.num_bytes for tensor in self.inputs if not tensor.constant)

    @property
    def constant_bytes(self) -> int:
        """Bytes of weights."""
        return sum(tensor.num_bytes for tensor in self.inputs if tensor.constant)

    @property
    def output_bytes(self) -> int:
        """Bytes of results."""
        values = self.values
        return sum(values[number].num_bytes for number in self.results)

    def to_json(self) -> bytes:
        """Return canonical JSON: sorted keys, no spaces."""
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def from_json(cls, text: bytes | str) -> Workload:
        """Read what `to_json` wrote.

        Raises:
            ValueError: the text is not a workload, or was written by a newer version.
        """
        try:
            workload = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"workload cannot be read: {error}; write it with Workload.to_json") from error
        if workload.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"workload has schema version {workload.schema_version}, this installation reads "
                f"{SCHEMA_VERSION}; upgrade the installation that reads it"
            )
        return workload


def describe(
    role: Role,
    inputs: Sequence[Tensor],
    operators: Sequence[Operator],
    results: Sequence[int],
    parameters: Sequence[tuple[str, str]] = (),
) -> Workload:
    """Return the workload in canonical form.

    Values are renumbered in the order in which a depth-first walk from the results first needs them, so names
    and the order of independent operators do not matter. Operators and inputs that no result needs are
    dropped. The order of the results is part of the program.

    Raises:
        ValueError: a reference is out of range or points forward.
    """
    given = Workload(
        role=role,
        inputs=tuple(inputs),
        operators=tuple(operators),
        results=tuple(results),
        parameters=tuple(sorted(parameters)),
    )
    return _canonical(given)


def _bits(dtype: str) -> int:
    if dtype in _BITS_BY_DTYPE:
        return _BITS_BY_DTYPE[dtype]
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    if not digits.isdigit():
        raise ValueError(f"data type {dtype!r} has no known size; use a name such as float32 or int64")
    return int(digits)


def _check_references(workload: Workload) -> None:
    available = len(workload.inputs)
    for operator in workload.operators:
        bad = [number for number in operator.inputs if not 0 <= number < available]
        if bad:
            raise ValueError(
                f"operator {operator.name} reads value {bad[0]}, but only {available} values come before it; "
                "number inputs first, then outputs in order"
            )
        available += len(operator.outputs)
    bad = [number for number in workload.results if not 0 <= number < available]
    if bad:
        raise ValueError(f"result {bad[0]} is not one of the {available} values; results are value numbers")


def _canonical(workload: Workload) -> Workload:
    first_output = _first_outputs(workload)
    producer = {
        first_output[index] + offset: index
        for index, operator in enumerate(workload.operators)
        for offset in range(len(operator.outputs))
    }
    operator_order, input_order = _depth_first_order(workload, producer)
    number = {old: new for new, old in enumerate(input_order)}
    for index in operator_order:
        for offset in range(len(workload.operators[index].outputs)):
            number[first_output[index] + offset] = len(number)
    operators = tuple(
        msgspec.structs.replace(
            workload.operators[index],
            inputs=tuple(number[old] for old in workload.operators[index].inputs),
            attributes=tuple(sorted(workload.operators[index].attributes)),
        )
        for index in operator_order
    )
    return msgspec.structs.replace(
        workload,
        inputs=tuple(workload.inputs[old] for old in input_order),
        operators=operators,
        results=tuple(number[old] for old in workload.results),
    )


def _first_outputs(workload: Workload) -> list[int]:
    numbers, available = [], len(workload.inputs)
    for operator in workload.operators:
        numbers.append(available)
        available += len(operator.outputs)
    return numbers


def _depth_first_order(workload: Workload, producer: dict[int, int]) -> tuple[list[int], list[int]]:
    """Return operators in post-order from the results, and inputs in the order they are first read."""
    operators: list[int] = []
    inputs: list[int] = []
    seen: set[int] = set()
    placed: set[int] = set()
    stack = [(number, False) for number in reversed(workload.results)]
    while stack:
        number, inputs_done = stack.pop()
        if number not in producer:
            if number not in seen:
                seen.add(number)
                inputs.append(number)
            continue
        index = producer[number]
        if inputs_done:
            if index not in placed:
                placed.add(index)
                operators.append(index)
        elif index not in placed:
            stack.append((number, True))
            stack.extend((old, False) for old in reversed(workload.operators[index].inputs))
    return operators, inputs
