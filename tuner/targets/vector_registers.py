"""Partial results that the vector registers of a CPU hold: what the tiles of kernels are cut by.

Kernels are written for vectors of 16 elements of float32, which are one register of AVX-512, two of AVX2 and
four of SSE or NEON. A tile with more partial results than registers is right but spends its time on moving
them to memory and back: an 8 x 32 tile reaches a quarter of what 6 x 16 does on a processor with AVX2.
Checked in tests/tuner/targets/test_vector_registers.py.
"""

from __future__ import annotations

import functools
import json
from typing import Any, TypeAlias

import tvm
from tvm.target import codegen

from tuner.targets.target import Target

TvmTarget: TypeAlias = Any
"""A `tvm.target.Target`; TVM ships no types."""

WIDE = 32
"""Vectors of 16 that the registers of AVX-512 hold."""

_NARROW = 8
"""Those of AVX2 (16 registers of 8) and of NEON (32 of 4)."""

_NARROWEST = 4
"""Those of SSE: 16 registers of 4."""


def vector_registers(target: Target) -> int:
    """Return how many vectors of 16 float32 the registers of a CPU hold: 32, 8 or 4."""
    return _by_text(target.tvm_json)


def multiplies_bfloat16(target: Target) -> bool:
    """Say whether a CPU adds up products of bfloat16 in vectors of 16 float32 (AVX-512's `avx512_bf16`)."""
    return _has_bfloat16(target.tvm_json)


def registers_of(target: TvmTarget) -> int:
    """Return the same for TVM's own target of a CPU."""
    features = frozenset(map(str, codegen.llvm_get_cpu_features(target)))
    if "avx512f" in features:
        return WIDE
    return _NARROWEST if "sse" in features and "avx" not in features else _NARROW


@functools.cache
def _has_bfloat16(tvm_json: str) -> bool:
    features = codegen.llvm_get_cpu_features(tvm.target.Target(json.loads(tvm_json)))
    return "avx512bf16" in map(str, features)


@functools.cache
def _by_text(tvm_json: str) -> int:
    return registers_of(tvm.target.Target(json.loads(tvm_json)))
