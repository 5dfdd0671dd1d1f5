"""A compiled program in this process: its code, its weights, and the machines that run it.

Checked in tests/tessel/compiling/test_program.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace

from tuner.runtime.bound_arguments import MadeObject, make_argument
from tuner.runtime.cuda_graph import GraphRunner, copied_to_gpu
from tuner.runtime.machine import Machines
from tuner.runtime.manifest import Manifest
from tuner.runtime.native import Library, tensor_of_bytes

_LACKED_BY_NUMPY = {"bfloat16"}


QuickRun = Callable[[Sequence[Any]], list[np.ndarray] | None]
"""Runs arrays as they are given, or gives None where they are not what the program takes."""


class Runner(Protocol):
    """Runs a program; may be called from several threads.

    Attributes:
        takes_arrays: whether it takes and gives NumPy's arrays; else tensors of TVM or torch.
    """

    takes_arrays: bool

    def run(self, inputs: Sequence[Any]) -> Any:
        """Return what the program gives for inputs: a tensor, or a sequence of them."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """What runs, and what is needed to save it.

    Attributes:
        weights: bytes of each tensor that it keeps, in the manifest's order.
    """

    manifest: Manifest
    machines: Runner
    weights: tuple[np.ndarray, ...]


def assemble(manifest: Manifest, library: Library, weights: Sequence[np.ndarray]) -> CompiledProgram:
    """Return a program that is ready to run; what libraries make of weights is made here.

    Args:
        manifest: what it is.
        library: its code; the packed functions that it calls are provided.
        weights: bytes of each tensor that it keeps, aligned.

    Raises:
        ValueError: the manifest names what there is not.
    """
    tensors = [
        tensor_of_bytes(data, spec.shape, spec.dtype) if manifest.gpu is None else copied_to_gpu(spec, data)
        for data, spec in zip(weights, manifest.weights, strict=True)
    ]
    bound: list[Any] = []
    chosen = []
    for argument in manifest.bound:
        made, way = make_argument(argument, tensors)
        bound.append(made)
        chosen.append(replace(argument, way=way) if isinstance(argument, MadeObject) else argument)
    manifest = replace(manifest, bound=tuple(chosen))
    machines: Runner = (
        _library_runner(manifest, bound) or Machines(library, bound, manifest.num_threads)
        if manifest.gpu is None
        else GraphRunner(library, manifest, bound)
    )
    return CompiledProgram(manifest, machines, tuple(weights))


def _library_runner(manifest: Manifest, bound: Sequence[Any]) -> Runner | None:
    """Return what runs a program that is one call of a library, without a machine around it; else None."""
    specs = (*manifest.inputs, *manifest.outputs)
    if len(bound) != 1 or not hasattr(bound[0], "as_runner") or _LACKED_BY_NUMPY & {s.dtype for s in specs}:
        return None
    runner: Runner | None = bound[0].as_runner()
    return runner
