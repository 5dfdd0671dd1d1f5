"""TVM's tensor intrinsics of x86, imported without those of every other device. Checked in
tests/tuner/backends/metaschedule/test_backend.py."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

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
