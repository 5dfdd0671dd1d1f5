"""Export a torch module for inference and for the shapes of its example inputs, without torch's own messages.

Checked in tests/tuner/frontend/torch/test_program.py.
"""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tuner.frontend.torch.blocked_gradients import checkpoints_inlined

_EXPORT_LOGGERS = ("torch.export", "torch.fx.experimental.symbolic_shapes")
"""Loggers that repeat, over many lines, what an export that fails raises."""


def export_module(module: torch.nn.Module, inputs: Sequence[Any]) -> torch.export.ExportedProgram:
    """Return the export of a module in the mode that it is in; torch raises what it happens to raise."""
    examples = pytree.tree_map(_own_memory, tuple(inputs))
    with checkpoints_inlined(), without_fast_path():
        return torch.export.export(module, examples, strict=False)


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Let encoders and attention of torch.nn compute in eval mode what they compute while training.

    Without gradients torch gives them kernels of its own, which ignore autocast, leave padding at zero, and cut
    off what is padding in every example: an export, which keeps gradients, holds none of that.
    """
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


@contextmanager
def quiet_export() -> Iterator[None]:
    """Keep back what torch itself says while it exports: what went wrong comes as an error."""
    loggers = [logging.getLogger(name) for name in _EXPORT_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        # It also prints the graph so far.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def argument_names(module: torch.nn.Module, count: int) -> list[str]:
    """Return the names that an export gives to inputs by position."""
    names: list[str] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{index}" for index in range(count - len(names))]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
    return [*names, *[""] * count][:count]


def _own_memory(example: Any) -> Any:
    """Return a tensor that is no view: of one, and of what it views, an export would leave extents open."""
    is_view = isinstance(example, torch.Tensor) and example._is_view()
    return example.clone() if is_view else example
