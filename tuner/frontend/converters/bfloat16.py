"""Operators of bfloat16, computed in float32 and rounded once, as torch's kernels do.

Tensors of bfloat16 are kept as such; what an operator reads is widened, which loses nothing, and what it
gives is rounded. So products and sums accumulate in float32, every converter and every backend of float32
serves, and TVM, most of whose kernels refuse bfloat16, sees it in conversions alone. Operators that only move
elements need none of this. Checked against torch in tests/tuner/frontend/torch/test_bfloat16.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tuner.frontend.converters.call import Call, Converter, Expr, dtype_of


def in_float32(converters: Mapping[str, Converter]) -> dict[str, Converter]:
    """Return converters that compute in float32 what is of bfloat16; others of any type are as they were."""
    return {name: _in_float32(converter) for name, converter in converters.items()}


def _in_float32(converter: Converter) -> Converter:
    def convert(call: Call) -> Any:
        if not _is_narrow(call):
            return converter(call)
        found = converter(_WideCall(call.node, call.importer))
        if isinstance(found, list | tuple):
            return [_rounded(call, each, noted) for each, noted in zip(found, call.results, strict=False)]
        return _rounded(call, found, call.results[0])

    return convert


class _WideCall(Call):
    """A call whose tensors of bfloat16 are of float32."""

    @property
    def dtype(self) -> str:
        """Type of the first result, before it is rounded."""
        dtype = super().dtype
        return "float32" if dtype == "bfloat16" else dtype

    def _resolved(self, value: Any) -> Any:
        found = super()._resolved(value)
        if not isinstance(value, torch.fx.Node) or not _is_bfloat16(value.meta.get("val")):
            return found
        return self.cast(found, "float32")


def _is_narrow(call: Call) -> bool:
    noted = [node.meta.get("val") for node in call.node.all_input_nodes]
    return any(map(_is_bfloat16, (*noted, *call.results)))


def _is_bfloat16(noted: Any) -> bool:
    return isinstance(noted, torch.Tensor) and noted.dtype is torch.bfloat16


def _rounded(call: Call, found: Expr | None, noted: Any) -> Expr | None:
    if found is None or not _is_bfloat16(noted) or dtype_of(found) == "bfloat16":
        return found
    return call.cast(found, "bfloat16")
