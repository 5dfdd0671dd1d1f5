"""The operators of torch's table, and samples of their arguments as modules."""

from __future__ import annotations

import copy
import sys
import types
import unittest
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

TYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")

NUM_SAMPLES = 8
"""Samples of an operator and type, evenly spread over those that torch has."""


class Applied(torch.nn.Module):
    """An operator with the arguments of a sample that are no tensors."""

    def __init__(self, operator: Any, arguments: Any) -> None:
        super().__init__()
        self.operator = operator
        self.leaves, self.structure = pytree.tree_flatten(arguments)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The sample's tensors, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Give the tensors that the operator gives."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        arguments, keywords = pytree.tree_unflatten(leaves, self.structure)
        found = pytree.tree_leaves(self.operator(*arguments, **keywords))
        return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))

    def doubled(self) -> Applied:
        """Return the operator with the same operands in double precision."""
        twice = copy.copy(self)
        twice.leaves = [double(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return twice


class Several(torch.nn.Module):
    """Samples of one operator side by side: exported and compiled once for all of them.

    Attributes:
        samples: the samples, in order.
    """

    def __init__(self, samples: Sequence[Applied]) -> None:
        super().__init__()
        self.samples = list(samples)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors of all samples, in order."""
        return tuple(tensor for sample in self.samples for tensor in sample.tensors)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Give the tensors that the operator gives of each sample."""
        rest = iter(tensors)
        return tuple(
            found for sample in self.samples for found in sample(*(next(rest) for _ in sample.tensors))
        )

    def doubled(self) -> Several:
        """Return the samples with the same operands in double precision."""
        return Several([sample.doubled() for sample in self.samples])


def double(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision; whole numbers stay."""
    return tensor.double() if tensor.is_floating_point() else tensor


def operators() -> dict[str, Any]:
    """Return torch's own table of operators, by name, with variants."""
    # torch's table lies in modules of its tests, which import this for classes that are not needed here.
    stub: Any = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    stub.ACCEPT = False
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


_UNSET = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators that give what memory holds."""


def samples(operator: Any, dtype: str, count: int) -> Iterator[tuple[int, Applied]]:
    """Give samples that torch itself can run, with their numbers."""
    kind = getattr(torch, dtype)
    if kind not in operator.supported_dtypes("cpu") or operator.name in _UNSET:
        return
    torch.manual_seed(0)
    np.random.seed(0)
    drawn = list(operator.sample_inputs("cpu", kind, requires_grad=False))
    for number in chosen_numbers(len(drawn), count):
        sample = drawn[number]
        yield number, Applied(operator.op, ((sample.input, *sample.args), dict(sample.kwargs)))


def chosen_numbers(num_drawn: int, count: int) -> list[int]:
    """Return so many numbers of samples, spread from the first to the last; all where there are fewer."""
    wanted = min(num_drawn, count)
    return [round(index * (num_drawn - 1) / max(wanted - 1, 1)) for index in range(wanted)]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
