"""TVM's tensor intrinsics of x86, or none, imported without those of every other device. Checked in
tests/tuner/backends/metaschedule/test_backend.py."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

_INTRINSICS = "tvm.s_tir.tensor_intrin"


def import_x86_intrinsics() -> None:
    """Import the tensor intrinsics of x86 alone, in place of those of every device (18 s, most for CUDA)."""
    if _INTRINSICS in sys.modules:
        return
    spec = importlib.util.find_spec(_INTRINSICS)
    assert spec is not None, "TVM has its tensor intrinsics"
    package = types.ModuleType(_INTRINSICS)
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_INTRINSICS] = package
    importlib.import_module(f"{_INTRINSICS}.x86")


@contextmanager
def no_intrinsics() -> Iterator[None]:
    """Keep TVM from importing any tensor intrinsics meanwhile, for rules that use none."""
    if _INTRINSICS in sys.modules:
        yield
        return
    sys.modules[_INTRINSICS] = types.ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        del sys.modules[_INTRINSICS]
