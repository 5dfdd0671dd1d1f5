"""TVM's tensor intrinsics of one kind of device, imported without those of every other. Checked in
tests/tuner/backends/metaschedule/test_backend.py."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from typing import Any
from unittest import mock

_INTRINSICS = "tvm.s_tir.tensor_intrin"


def import_intrinsics(tuned_for: Any) -> None:
    """Import the tensor intrinsics of x86 or CUDA alone, in place of those of every device (18 s).

    Args:
        tuned_for: TVM's target.
    """
    name = f"{_INTRINSICS}.{'cuda' if str(tuned_for.kind.name) == 'cuda' else 'x86'}"
    if name in sys.modules:
        return
    if _INTRINSICS not in sys.modules:
        spec = importlib.util.find_spec(_INTRINSICS)
        assert spec is not None, "TVM has its tensor intrinsics"
        package = types.ModuleType(_INTRINSICS)
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules[_INTRINSICS] = package
    # TVM's parser asks for its callers 360 times, and uses the frames alone; the standard library also looks
    # each one's source up among all modules, for 11 of 14 seconds.
    with mock.patch.object(inspect, "stack", _frames):
        importlib.import_module(name)


def _frames(context: int = 1) -> list[inspect.FrameInfo]:
    found, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back  # type: ignore[assignment]  # None ends it
    return found
