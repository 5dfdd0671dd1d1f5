"""What `main` of a compiled program takes after its inputs: tensors, and objects that libraries made of some.

A library's object (packed weights, a session) cannot be stored: what is, is which maker made it of what.
Makers are named from a fixed table, whatever a file says. Checked in tests/tessel/compiling/test_loading.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import msgspec

Constant = str | int | tuple[int, ...]
"""An argument of a maker that is no tensor."""


class StoredTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tensor"):
    """One of the program's tensors, by position."""

    position: int


class MadeObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="object"):
    """An object that a library makes of weights when the program is loaded.

    Attributes:
        maker: name in `MAKERS`.
        constants: its first arguments.
        tensors: positions of the program's tensors that follow.
        way: which of the maker's ways was fastest when the program was compiled; None where it has but one.
    """

    maker: str
    constants: tuple[Constant, ...]
    tensors: tuple[int, ...]
    way: int | None = None


BoundArgument = StoredTensor | MadeObject

MAKERS: dict[str, tuple[str, str, str]] = {
    "tessel.blas.matmul.bind": ("blas", "tuner.runtime.blas_calls", "bind"),
    "tessel.torch.pack": ("torch", "tuner.runtime.torch_calls", "pack_weights"),
    "tessel.onnxruntime.load": ("onnxruntime", "tuner.runtime.onnxruntime_calls", "load"),
}
"""By packed name: the library that is needed, and the module and function that make the object."""

CALLS: dict[str, str] = {
    "tessel.blas.": "tuner.runtime.blas_calls",
    "tessel.torch.operator": "tuner.runtime.torch_operator_calls",
    "tessel.torch.": "tuner.runtime.torch_calls",
    "tessel.onnxruntime.": "tuner.runtime.onnxruntime_calls",
}
"""Module that registers the packed functions whose names begin so."""


def provide_calls(names: Sequence[str]) -> None:
    """Register the packed functions that a program calls.

    Raises:
        ValueError: one is none of this project's.
    """
    for name in names:
        module = next((module for start, module in CALLS.items() if name.startswith(start)), None)
        if module is None:
            raise ValueError(f"the program calls {name!r}, which no run time provides")
        importlib.import_module(module)


def make_argument(argument: BoundArgument, tensors: Sequence[Any]) -> tuple[Any, int | None]:
    """Return what `main` takes for a bound argument, and which way the maker chose, if it had any.

    Raises:
        ValueError: it names no maker, or no tensor.
    """
    if isinstance(argument, StoredTensor):
        return _tensor(tensors, argument.position), None
    if argument.maker not in MAKERS:
        raise ValueError(f"the program has weights packed by {argument.maker!r}, which no run time provides")
    _, module, function = MAKERS[argument.maker]
    given = [_tensor(tensors, position) for position in argument.tensors]
    make = getattr(importlib.import_module(module), function)
    way = {} if argument.way is None else {"way": argument.way}
    made = make(*argument.constants, *given, **way)
    return made, getattr(made, "way", None)


def _tensor(tensors: Sequence[Any], position: int) -> Any:
    if not 0 <= position < len(tensors):
        raise ValueError(f"the program names tensor {position} of {len(tensors)}")
    return tensors[position]
