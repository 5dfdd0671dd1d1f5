"""Operators of ATen that a torch call may name: those that compute tensors from tensors, and nothing else.

The list is torch's own schemas, read by these rules: no operator that writes its arguments, addresses their
memory by strides, draws random numbers, reads or writes files, takes no tensor, or gives anything but
tensors. Views are allowed: what a call gives is copied. A call by any other name is refused, wherever it
comes from. Checked in tests/tuner/frontend/torch/test_callable_operators.py.
"""

from __future__ import annotations

import functools
import re

import torch

TOUCHING_FILES = frozenset(("from_file", "save"))
"""Operators of ATen that create, read or write files."""

_NAME = re.compile(r"([a-z_]\w{0,99})\.([A-Za-z_]\w{0,99})")


_ADDRESSING = ("as_strided", "_reinterpret_tensor")
"""Views that say themselves where their values lie, which may be beside the tensor."""


@functools.cache
def callable_operator(name: str) -> torch._ops.OpOverload:
    """Return the operator of ATen of a name such as `histc.default`.

    Raises:
        ValueError: a torch call may not name it; says why.
    """
    parts = _NAME.fullmatch(name)
    packet = getattr(torch.ops.aten, parts[1], None) if parts else None
    found = getattr(packet, parts[2], None) if parts and packet is not None else None
    if not isinstance(found, torch._ops.OpOverload) or found.namespace != "aten":
        raise ValueError(f"{name[:100]!r} is no operator of ATen")
    reason = _reason_against(found)
    if reason:
        raise ValueError(f"a torch call may not name {name}: {reason}")
    return found


def _reason_against(operator: torch._ops.OpOverload) -> str:
    schema = operator._schema
    if schema.is_mutable:
        return "it writes what it is given"
    if schema.name.partition("::")[2] in _ADDRESSING:
        return "it addresses memory by strides"
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return "it draws random numbers"
    if schema.name.partition("::")[2] in TOUCHING_FILES:
        return "it touches files"
    if not any("Tensor" in str(each.type) for each in schema.arguments):
        return "it takes no tensor"
    if not schema.returns or any(str(each.type) != "Tensor" for each in schema.returns):
        return "it does not give a fixed number of tensors"
    return ""
