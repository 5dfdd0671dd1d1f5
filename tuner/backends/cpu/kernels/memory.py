"""Memory as kernels see it: each buffer is one row of float32, whatever its shape.

Offsets are then written out once, by the kernel, and loads and stores of vectors are ramps along the row.
Checked by the tests of every kernel (tests/tuner/backends/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import tirx
from tvm.tirx.script.builder import ir as script

Vector: TypeAlias = Any
"""An expression in a kernel whose value is a vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What a kernel reads and writes, each as a row of memory; absent where there is none (yet)."""

    data: Any
    weights: Any
    result: Any
    bias: Any = None
    other: Any = None


def flat(buffer: Any, size: int) -> Any:
    """Return a buffer's memory as a row."""
    return script.decl_buffer((size,), "float32", data=buffer.data)


def prefetch(buffer: Any, at: Any, *, writes: bool) -> None:
    """Have an element's cache line fetched before it is needed: it comes while products are added up."""
    ahead = tirx.call_intrin("void", "tirx.prefetch", script.address_of(buffer[at]), int(writes), 3, 1)
    script.evaluate(ahead)
