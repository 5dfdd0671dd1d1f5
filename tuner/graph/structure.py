"""TVM objects as dictionary keys, compared by structure up to renaming of variables.

Repeated layers give structurally equal functions over and over; what is known of one holds for all of them.
Checked in tests/tuner/graph/test_structure.py.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi


class Structure:
    """A function or module that equals others of the same structure.

    Attributes:
        value: the TVM object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._hash = int(tvm_ffi.structural_hash(value))

    @property
    def fingerprint(self) -> str:
        """Name the structure by 16 hexadecimal digits; stable across processes."""
        return f"{self._hash & (2**64 - 1):016x}"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and bool(tvm_ffi.structural_equal(self.value, other.value))
