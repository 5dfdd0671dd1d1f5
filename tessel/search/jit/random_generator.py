"""Random numbers that are the same compiled and uncompiled.

A linear congruential generator modulo 2³¹ with 64-bit arithmetic: weak, but a local search asks for no more,
and its products stay below 2⁶³. The high bits are used, the low ones have short cycles.

Source: ISO/IEC 9899 (C), section 7.22.2, the example generator's constants.
"""

from __future__ import annotations

from tessel.search.jit.compiled import compiled


@compiled
def next_state(state: int) -> int:
    """Return the state after this one; states are 0..2³¹ - 1."""
    return (state * 1103515245 + 12345) & 0x7FFFFFFF


@compiled
def below(state: int, bound: int) -> int:
    """Return a number in 0..bound - 1 drawn from a state; bound is at most 2³¹."""
    return (state * bound) >> 31
