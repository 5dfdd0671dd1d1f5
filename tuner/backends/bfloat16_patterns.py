"""Parts that patterns of operators of bfloat16 share.

The importer has each operator widen what it reads and round what it gives
(`tuner.frontend.converters.bfloat16`). Checked by the tests of who uses them
(tests/tuner/backends/torch/test_half_calls.py, tests/tuner/backends/cpu/test_half_matmul.py).
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.dpl import is_op

from tuner.rules.pattern import DFPattern, Match

HALF = "bfloat16"


def converted(pattern: Any) -> DFPattern:
    """Return the pattern of a conversion of what a pattern matches."""
    return is_op("relax.astype")(pattern)


def is_half(match: Match) -> bool:
    """Say whether all conversions that a pattern matched are from and to bfloat16."""
    conversions = [
        each
        for each in match.values()
        if isinstance(each, relax.Call) and getattr(each.op, "name", "") == "relax.astype"
    ]
    return all(HALF in (str(each.ty.dtype), str(each.args[0].ty.dtype)) for each in conversions)
