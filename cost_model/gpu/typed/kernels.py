"""Kernels of large models on GPUs, each with its data type: what a price is asked for.

Extents are one device's own; where a model is divided over devices, so are they. Many kernels of one kind are
kept as columns (`Kernels`), since tables have hundreds of thousands. Checked in
tests/cost_model/gpu/typed/test_analytic.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cost_model.errors import CostModelError
from records.files.aiconfigurator import BYTES_BY_DTYPE, COLLECTIVES, MAX_EXTENT, KernelTable, Kind

Column = npt.NDArray[Any]
DTYPES = tuple(BYTES_BY_DTYPE)
MEASURED_AS = {"float16": "bfloat16", "int8": "fp8"}
"""Types that tensor cores multiply as fast, and in as many bytes, as another that was measured more."""


class Product(NamedTuple):
    """A matrix product, rows × inner by inner × columns, with a 16-bit result.

    In 8 and 4 bits it includes the rounding of its activations, as serving libraries run it.
    """

    rows: int
    columns: int
    inner: int
    dtype: str = "bfloat16"


class Attention(NamedTuple):
    """The forward of causal flash attention.

    Attributes:
        batch: sequences.
        length: tokens of each that ask.
        heads, kv_heads: of queries, of keys and values.
        head_size: elements of a head.
        past: tokens before those that ask.
        window: keys that a query sees; 0 for all before it.
        dtype: of the products.
        kv_dtype: of keys and values in memory.
    """

    batch: int
    length: int
    heads: int
    kv_heads: int
    head_size: int
    past: int = 0
    window: int = 0
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"


class Experts(NamedTuple):
    """The gated products of a layer's routed experts, on the device with the most tokens.

    Attributes:
        tokens: of all devices that share the experts.
        hidden: elements of a token.
        inner: elements between the products, of a whole expert.
        experts: of the layer, on all devices.
        tensor_parallel, expert_parallel: devices that an expert, and that the experts are divided over.
        skew: exponent of the power law of tokens over experts; 0 where they are balanced.
        dtype: of weights and, for the types that are products', activations.
    """

    tokens: int
    hidden: int
    inner: int
    top_k: int
    experts: int
    tensor_parallel: int = 1
    expert_parallel: int = 1
    skew: float = 0.0
    dtype: str = "bfloat16"


class Collective(NamedTuple):
    """A collective of NCCL within a node.

    Attributes:
        operation: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`.
        devices: that take part.
        elements: of the whole tensor that a device has after a gather, or before any other operation.
        dtype: of its elements.
    """

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    devices: int
    elements: int
    dtype: str = "bfloat16"


class Exchange(NamedTuple):
    """DeepEP's exchange of tokens with the devices that hold their experts, eight devices a node.

    Attributes:
        operation: `dispatch` or `combine`.
        tokens: of a device.
        hidden: elements of a token.
        experts: of the layer.
        multiprocessors: that do nothing else meanwhile.
        nodes: that take part.
    """

    operation: Literal["dispatch", "combine"]
    tokens: int
    hidden: int
    top_k: int
    experts: int
    multiprocessors: int = 24
    nodes: int = 1
    dtype: str = "bfloat16"


TypedKernel = Product | Attention | Experts | Collective | Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernels of one kind; every array has an element for each.

    Attributes:
        numbers: extents by name.
        texts: `dtype`, and what else of a kind is no number.
    """

    kind: Kind
    numbers: Mapping[str, Column]
    texts: Mapping[str, Column]

    TEXTS: ClassVar[Mapping[Kind, tuple[str, ...]]] = {
        "product": ("dtype",),
        "attention": ("dtype", "kv_dtype"),
        "experts": ("dtype",),
        "collective": ("dtype", "operation"),
        "exchange": ("dtype", "operation"),
    }

    def __len__(self) -> int:
        return len(self.texts["dtype"])

    def some(self, chosen: Column) -> Kernels:
        """Return those of a mask, or of indices."""
        return Kernels(
            kind=self.kind,
            numbers={name: values[chosen] for name, values in self.numbers.items()},
            texts={name: values[chosen] for name, values in self.texts.items()},
        )

    @classmethod
    def of_table(cls, table: KernelTable) -> Kernels:
        """Return what was measured, without where and how long."""
        texts = {name: table.texts[name] for name in cls.TEXTS[table.kind]}
        return cls(kind=table.kind, numbers=table.numbers, texts=texts)

    @classmethod
    def of_one_kind(cls, kernels: Sequence[TypedKernel]) -> Kernels:
        """Return the columns of kernels that are all of one kind.

        Raises:
            CostModelError: a kernel has an extent or a name that none has; it is named.
        """
        kind = kind_of(kernels[0])
        for kernel in kernels:
            _check(kernel)
        texts = cls.TEXTS[kind]
        columns = {name: [getattr(kernel, name) for kernel in kernels] for name in kernels[0]._fields}
        return cls(
            kind=kind,
            numbers={name: np.array(values) for name, values in columns.items() if name not in texts},
            texts={name: np.array(columns[name], dtype=object) for name in texts},
        )


def joined(parts: Sequence[Kernels]) -> Kernels:
    """Return kernels of one kind, one after another."""
    first = parts[0]
    return Kernels(
        kind=first.kind,
        numbers={name: np.concatenate([part.numbers[name] for part in parts]) for name in first.numbers},
        texts={name: np.concatenate([part.texts[name] for part in parts]) for name in first.texts},
    )


def kind_of(kernel: TypedKernel) -> Kind:
    """Return the kind of a kernel, which decides its forest."""
    return _KINDS[type(kernel)]


_KINDS: Mapping[type, Kind] = {
    Product: "product",
    Attention: "attention",
    Experts: "experts",
    Collective: "collective",
    Exchange: "exchange",
}
_MAY_BE_ZERO = frozenset(("past", "window", "skew"))


def _check(kernel: TypedKernel) -> None:
    for name, value in zip(kernel._fields, kernel, strict=True):
        if name in ("dtype", "kv_dtype"):
            if value not in BYTES_BY_DTYPE:
                raise CostModelError(f"data type {value!r} is not known; choose one of {', '.join(DTYPES)}")
        elif name == "operation":
            known = COLLECTIVES if isinstance(kernel, Collective) else ("dispatch", "combine")
            if value not in known:
                raise CostModelError(f"operation {value!r} is not known; choose one of {', '.join(known)}")
        elif not (isinstance(value, int | float) and (name not in _MAY_BE_ZERO) <= value <= MAX_EXTENT):
            raise CostModelError(
                f"{name} of {type(kernel).__name__.lower()} is {value}; extents are counts from 1 to 2⁴⁰"
            )
