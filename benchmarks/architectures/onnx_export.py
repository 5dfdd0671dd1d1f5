"""Write an architecture to an ONNX file by torch's exporters, as a user would whose first try is refused.

In turn: as it is; with experts as batched products, where torch does not translate products of groups; with
operators taken apart that torch does not translate; by the older exporter, which comes last because it writes
`NonZero` where a mask selects. The file holds the same weights and the same function each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

Tries = tuple[tuple[str, Callable[[torch.nn.Module, tuple[Any, ...], str], None]], ...]

_ATEN = torch.ops.aten


def export_onnx(module: torch.nn.Module, inputs: tuple[Any, ...], path: Path) -> tuple[str, str]:
    """Write an ONNX file; return how, empty where the first try serves, and why it could not be written.

    Args:
        module: in eval mode; it is left as it was.
        inputs: its example inputs.
        path: of the file.
    """
    reasons = []
    for how, export in _TRIES:
        try:
            export(module, inputs, str(path))
            return how, ""
        except Exception as error:  # foreign code; whatever it raises is the result
            cause = error.__cause__ or error
            reasons.append(f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}")
    return "", reasons[0]


def _as_it_is(module: torch.nn.Module, inputs: tuple[Any, ...], path: str) -> None:
    torch.onnx.export(module, inputs, path, dynamo=True, verbose=False)


def _with_batched_experts(module: torch.nn.Module, inputs: tuple[Any, ...], path: str) -> None:
    if not _groups_experts(module):
        raise TypeError("it has no experts whose products could be batched")
    with _batched_experts(module):
        _as_it_is(module, inputs, path)


def _taken_apart(module: torch.nn.Module, inputs: tuple[Any, ...], path: str) -> None:
    with _batched_experts(module):
        program = torch.export.export(module, inputs, strict=False)
    torch.onnx.export(program.run_decompositions(_DECOMPOSITIONS), f=path, verbose=False)


def _groups_experts(module: torch.nn.Module) -> bool:
    """Say whether a model of `transformers` computes its experts by products of groups."""
    config = getattr(getattr(module, "model", module), "config", None)
    return getattr(config, "_experts_implementation", None) == "grouped_mm"


@contextmanager
def _batched_experts(module: torch.nn.Module) -> Iterator[None]:
    if not _groups_experts(module):
        yield
        return
    inner: Any = getattr(module, "model", module)
    inner.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        inner.set_experts_implementation("grouped_mm")


def _older(module: torch.nn.Module, inputs: tuple[Any, ...], path: str) -> None:
    torch.onnx.export(module, inputs, path, dynamo=False, verbose=False)


def _unsqueeze(x: torch.Tensor, dim: int) -> Any:
    """Give a complex tensor another axis, as pairs of real numbers."""
    if not x.is_complex():
        return NotImplemented
    return torch.view_as_complex(torch.view_as_real(x).unsqueeze(dim if dim >= 0 else dim - 1))


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Put the source's values, in order, where a mask holds: their places are the mask's sums."""
    x, mask = torch.broadcast_tensors(x, mask)
    places = (mask.reshape(-1).cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[places].reshape(x.shape), x)


_DECOMPOSITIONS = {
    _ATEN.unsqueeze.default: _unsqueeze,
    _ATEN._is_all_true.default: lambda x: x.all(),
    _ATEN.masked_scatter.default: _masked_scatter,
}

_TRIES: Tries = (
    ("", _as_it_is),
    ("with batched experts", _with_batched_experts),
    ("with operators taken apart before the export", _taken_apart),
    ("by torch's older exporter", _older),
)
