"""Import an architecture from files that torch writes: its own `.pt2`, and its export to ONNX.

A `.pt2` whose import is the same program with the same weights as the module's own is equal without being run
again. An ONNX file is read by another importer, so it is run, beside torch.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.architectures.finding import Finding
from benchmarks.architectures.onnx_export import export_onnx
from tuner.frontend import load_model
from tuner.frontend.model import Model
from tuner.graph.structure import Structure

Compare = Callable[[Model, Sequence[np.ndarray]], Finding]
"""Runs a model on inputs and compares it with torch."""


def check_exported(
    module: torch.nn.Module, inputs: tuple[Any, ...], model: Model, compare: Compare
) -> Finding:
    """Compare the import of the module's `.pt2` file with the module's own.

    Args:
        module: in eval mode.
        inputs: its example inputs.
        model: what the module itself was imported as.
        compare: see `Compare`.
    """
    try:
        with tempfile.TemporaryDirectory() as folder, _quiet():
            path = Path(folder) / "model.pt2"
            torch.export.save(torch.export.export(module, inputs, strict=False), path)
            loaded = load_model(str(path), guarded=False)
    except Exception as error:  # foreign code; whatever it raises is the result
        return Finding.of_error(error)
    if _same(loaded, model):
        return Finding(outcome="equal", error=0.0)
    return compare(loaded, _in_order(loaded, model, inputs))


def check_onnx(module: torch.nn.Module, inputs: tuple[Any, ...], model: Model, compare: Compare) -> Finding:
    """Compare the import of the module's ONNX export with torch; arguments of `check_exported`.

    Where none of the ways to export it writes a file there is nothing to import.
    """
    try:
        with tempfile.TemporaryDirectory() as folder, _quiet():
            path = Path(folder) / "model.onnx"
            how, reason = export_onnx(module, inputs, path)
            if reason:
                return Finding(outcome="inapplicable", reason=f"torch does not export it to ONNX ({reason})")
            loaded = load_model(str(path), guarded=False)
            found = compare(loaded, _in_order(loaded, model, inputs))
            return (
                msgspec.structs.replace(found, reason=f"exported {how}")
                if how and not found.reason
                else found
            )
    except Exception as error:  # as above
        return Finding.of_error(error)


def _same(one: Model, other: Model) -> bool:
    return (
        Structure(one.module).fingerprint == Structure(other.module).fingerprint
        and one.parameter_names == other.parameter_names
        and all(
            np.array_equal(np.asarray(one.parameters[name]), np.asarray(other.parameters[name]))
            for name in one.parameter_names
        )
    )


def _in_order(loaded: Model, model: Model, inputs: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return the inputs that a file kept, which may leave out what nothing reads, in its order."""
    by_name = {spec.name: each for spec, each in zip(model.inputs, inputs, strict=True)}
    if all(spec.name in by_name for spec in loaded.inputs):
        return [by_name[spec.name].numpy() for spec in loaded.inputs]
    return [each.numpy() for each in inputs]


@contextlib.contextmanager
def _quiet() -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
