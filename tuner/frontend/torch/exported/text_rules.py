"""Rules for each text of an exported program: one returns the text that stands for it, or refuses.

Names of values become the text of a function, so they must be identifiers; a call's target must be an
operator of tensors from a closed set. Checked in
tests/tuner/frontend/torch/exported/test_exported_program.py.
"""

from __future__ import annotations

import functools
import json
import keyword
import re
from collections.abc import Callable
from typing import Any

import torch

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.torch.exported.grouped_products import GROUPED_PRODUCT
from tuner.frontend.torch.exported.symbolic_expression import check_expression
from tuner.runtime.callable_operators import TOUCHING_FILES

Rule = Callable[[str], str]

_MAX_TEXT = 100_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_PATH = re.compile(r"[\w.\-@ /\[\]]{0,1000}")
"""Dotted paths of parameters and modules; no character that could end a string in generated code."""

_FILE = re.compile(r"[\w.\-]{1,255}")
_DEVICE = re.compile(r"[a-z]{1,20}")

_ATEN = re.compile(r"torch\.(?:_ops|ops)\.aten\.([a-z_]\w{0,99})\.([A-Za-z_]\w{0,99})")
_ARITHMETIC = frozenset(
    f"_operator.{name}"
    for name in (
        *("add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "mod", "mul", "ne"),
        *("neg", "or_", "pos", "pow", "rshift", "sub", "truediv"),
    )
)
_SYMBOLIC = _ARITHMETIC | frozenset(
    (
        *("torch.sym_float", "torch.sym_int", "torch.sym_ite", "torch.sym_max", "torch.sym_min"),
        *("torch.sym_not", "torch.sym_sqrt", "torch.sym_sum", "torch._sym_sqrt"),
        *("math.ceil", "math.floor", "math.trunc"),
    )
)
"""Functions of symbols that are no operators of tensors; each computes a number from numbers."""

_HIGHER_ORDER = frozenset(
    f"torch.ops.higher_order.{name}"
    for name in (
        *("associative_scan", "cond", "map_impl", "scan", "while_loop", "wrap_with_autocast"),
        "wrap_with_set_grad_enabled",
    )
)
"""Operators that take graphs, which are checked like the whole."""

_STAND_INS = {"torch.ops.transformers.grouped_mm_fallback.default": GROUPED_PRODUCT}
"""This project's own operators, by the names of those that they compute the same as."""

_ASSERTIONS = re.compile(r"_?(functional_)?(assert|sym_constrain)_\w+")


def name_rule(text: str) -> str:
    """Accept an identifier: names of values become the text of a function."""
    if text and (not _NAME.fullmatch(text) or keyword.iskeyword(text)):
        raise ValueError(f"{shown(text)} is no name of a value")
    return text


def path_rule(text: str) -> str:
    """Accept a dotted path of a parameter or module."""
    if not _PATH.fullmatch(text):
        raise ValueError(f"{shown(text)} is no path of a parameter or module")
    return text


def file_rule(text: str) -> str:
    """Accept the name of an entry of an archive."""
    if not _FILE.fullmatch(text) or text.startswith("."):
        raise ValueError(f"{shown(text)} is no entry of the archive")
    return text


def text_rule(text: Any) -> str:
    """Accept any text of a program's length."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise ValueError(f"{shown(text)} is no text that a program holds")
    return text


def device_rule(text: str) -> str:
    """Accept a kind of device."""
    if not _DEVICE.fullmatch(text):
        raise ValueError(f"{shown(text)} is no device")
    return text


def expression_rule(text: str) -> str:
    """Accept an expression of symbols."""
    check_expression(text)
    return text


def operator_rule(text: str) -> str:
    """Accept the target of a call.

    Raises:
        UnsupportedOperatorError: it is no operator of tensors.
    """
    found = _ATEN.fullmatch(text)
    if found is not None and _computes(*found.groups()):
        return text
    if text in _SYMBOLIC or text in _HIGHER_ORDER:
        return text
    if text in _STAND_INS:
        return _STAND_INS[text]
    raise UnsupportedOperatorError(
        f"the program calls {shown(text)}, which is no operator of torch.ops.aten that computes tensors "
        "from tensors; write the model without it, or export it decomposed"
    )


@functools.cache
def _computes(name: str, overload: str) -> bool:
    """Whether an operator of ATen is known, and returns what it computes instead of acting on the outside."""
    operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if not isinstance(operator, torch._ops.OpOverload) or name in TOUCHING_FILES:
        return False
    return bool(operator._schema.returns) or _ASSERTIONS.fullmatch(name) is not None


def shown(data: object) -> str:
    """Return a value as a message shows it, cut short."""
    text = repr(data)
    return text if len(text) <= 100 else text[:100] + "…"


def decode_json(content: bytes) -> Any:
    """Return what a text of JSON holds.

    Raises:
        ValueError: it is no JSON, or nested too deep to read.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the program is no JSON ({type(error).__name__})") from error
