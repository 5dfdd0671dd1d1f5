"""Export the user's module once more for training: with its own backwards kept, or in its mode for training.

Checked in tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.torch.decomposition import decompose
from tuner.frontend.torch.dropout import MaskedModule
from tuner.frontend.torch.export import export_module, quiet_export
from tuner.frontend.torch.own_functions import functions_kept, own_functions_of
from tuner.frontend.torch.training import in_mode


def export_with_own_backwards(
    module: torch.nn.Module, examples: Sequence[Any], functions: Sequence[type], name: str
) -> torch.export.ExportedProgram:
    """Export a module with some functions of `torch.autograd` as calls; it stays in its mode.

    Args:
        module: is exported in its mode for inference.
        examples: its inputs.
        functions: have a backward of their own.
        name: of the model, for errors.

    Raises:
        UnsupportedOperatorError: a function cannot be kept; says why.
    """
    names = ", ".join(each.__qualname__ for each in functions)
    modes = [(each, each.training) for each in module.modules()]

    def run() -> None:
        with in_mode(module, training=False) as call:
            call(*examples)

    try:
        with quiet_export(), functions_kept(functions, run):
            program = decompose(export_module(module.eval(), examples), name, shapes={})
        missed = {each.__name__ for each in functions} - own_functions_of(program)
        if missed:
            raise ValueError(f"{sorted(missed)[0]} is not called alike twice")
    except Exception as error:  # foreign code: torch traces the module and its functions by running them
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnsupportedOperatorError(
            f"the model has a backward of its own ({names}), which cannot be kept as a call of torch: "
            f"{reason}; write its forward in operators that autograd differentiates, or tune it with "
            "--infer"
        ) from error
    finally:
        for each, training in modes:
            each.training = training
    return program


def export_as_it_trains(masked: MaskedModule, name: str) -> torch.export.ExportedProgram:
    """Export a module, its masks as inputs, in its mode for training; it stays in its mode.

    Raises:
        Exception: whatever torch raises, or the module's own code, which torch runs.
    """
    modes = [(each, each.training) for each in masked.module.modules()]
    try:
        with quiet_export(), _fixed_momentum(masked.module):
            exported = export_module(masked.module.train(), masked.examples)
            return decompose(exported, name, shapes={})
    finally:
        for each, training in modes:
            each.training = training


@contextmanager
def _fixed_momentum(module: torch.nn.Module) -> Iterator[None]:
    """Let running statistics depend on no count: an export takes no extents and factors from values."""
    cumulative = [each for each in module.modules() if getattr(each, "momentum", 0.0) is None]
    try:
        for each in cumulative:
            each.momentum = 0.1  # type: ignore[assignment]  # of a batch normalisation
        yield
    finally:
        for each in cumulative:
            each.momentum = None  # type: ignore[assignment]  # as above
