"""Common traits of all built-in kernels: a name, decisions, and the code that they give.

Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tuner.graph.relax_types import PrimFunc

Decisions = Mapping[str, int]
"""The value of each decision by its name; those of the kernel's own rule if empty."""


class OwnKernel(Protocol):
    """One of our kernels for one shape, with what it does to its results."""

    @property
    def name(self) -> str:
        """Its family and shape."""
        ...

    @property
    def operations(self) -> int:
        """Additions and multiplications, as the convolution or product is defined."""
        ...

    @property
    def packed_bytes(self) -> int:
        """Bytes of its packed weights."""
        ...

    @property
    def rule(self) -> dict[str, int]:
        """The decisions of its own rule that its space names, which need not be in the space."""
        ...

    def with_decisions(self, decisions: Decisions) -> OwnKernel:
        """Return the kernel with a candidate's decisions.

        Raises:
            ValueError: there is no such kernel.
        """
        ...

    def function(self) -> PrimFunc:
        """Return the kernel of data, packed weights, and what else it reads."""
        ...
