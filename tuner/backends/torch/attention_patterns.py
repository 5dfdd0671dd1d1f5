"""Patterns of attention with and without a transposition, a scale and a mask."""

from __future__ import annotations

from collections.abc import Callable

from tvm.relax.dpl import is_op, wildcard

from tuner.rules.pattern import DFPattern


def attention_patterns(operand: Callable[[], DFPattern]) -> list[DFPattern]:
    """Return a pattern for each variant of attention.

    Args:
        operand: makes the pattern of a query, key or value; a mask may be anything.
    """
    patterns = []
    for has_transposition in (True, False):
        for scale in ("", "relax.multiply", "relax.divide"):
            for has_mask in (False, True):
                key = is_op("relax.permute_dims")(operand()) if has_transposition else operand()
                scores = is_op("relax.matmul")(operand(), key)
                scores = is_op(scale)(scores, wildcard()) if scale else scores
                scores = is_op("relax.add")(scores, wildcard()) if has_mask else scores
                patterns.append(is_op("relax.matmul")(is_op("relax.nn.softmax")(scores), operand()))
    return patterns
