"""Say why torch cannot trace a module, and what helps.

Reasons are sought in the module first: what torch says of a scripted, quantised or empty module is about its
own parts. Checked in tests/tuner/frontend/torch/test_program.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tuner.frontend.torch.source import raised_at
from tuner.frontend.torch.training import in_mode

_VALUES = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "UserError")
"""Errors of torch about numbers that are known only when the module runs."""


def explain(module: torch.nn.Module, inputs: Sequence[Any], error: Exception) -> str:
    """Return a reason and a remedy, such as "ValueError: … ; …", for an error of an export.

    Args:
        module: what could not be exported.
        inputs: its example inputs.
        error: what was raised.
    """
    for name, each in module.named_modules():
        what = f"{name or 'the module itself'}, a {type(each).__name__},"
        if isinstance(each, torch.jit.ScriptModule):
            return f"{what} is a program of TorchScript; give the module that was scripted"
        if ".quantized" in type(each).__module__:
            return f"{what} holds packed, quantised weights; give the module as it was before"
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            return f"{name} has no shape yet, as in a lazy module; run the module once on its inputs first"
        if tensor.is_meta:
            return f"{name} is on the device meta, without values; load its weights first"
    failure = _failure(module, inputs)
    if failure is not None:
        at_once = "as when the module runs on its example inputs"
        return f"{_located(failure)}, {at_once}; give inputs that it works for"
    if type(error).__name__ in _VALUES:
        return f"{_located(error)}; see that its control flow does not depend on values of tensors"
    return f"{_located(error)}; write that line otherwise, or give an ONNX file"


def _failure(module: torch.nn.Module, inputs: Sequence[Any]) -> Exception | None:
    """Return what a module raises when it runs on its example inputs; None where it runs."""
    try:
        with in_mode(module, training=False) as call, torch.enable_grad():
            call(*inputs)
    except Exception as error:  # foreign code: the user's own module
        return error
    return None


def _located(error: Exception) -> str:
    """Return an error's first line, after the line of source that raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = ": ".join([type(error).__name__, *lines[:1]])
    place = raised_at(error)
    return f"{place}: {what}" if place else what
