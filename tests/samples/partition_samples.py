"""Small Relax functions that the tests of backends and lowering share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from tuner.graph.relax_types import PARTITION_ATTRIBUTE

Body = Callable[..., Any]


def function_module(shapes: Sequence[Sequence[int]], body: Body, dtypes: Sequence[str] = ()) -> Any:
    """Return a module whose `main` applies a body of Relax operators to parameters of the given shapes."""
    builder = relax.BlockBuilder()
    parameters = _parameters(shapes, dtypes)
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(body(*parameters))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def partition_module(
    backend: str, shapes: Sequence[Sequence[int]], body: Body, dtypes: Sequence[str] = ()
) -> Any:
    """Return a module whose `main` calls the body as one partition of a backend."""
    builder = relax.BlockBuilder()
    inner = _parameters(shapes, dtypes)
    with builder.function("part", inner, attrs={PARTITION_ATTRIBUTE: backend}, private=True):
        with builder.dataflow():
            result = builder.emit_output(body(*inner))
        builder.emit_func_output(result)
    part = builder.get().get_global_var("part")
    outer = _parameters(shapes, dtypes)
    with builder.function("main", outer):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(part, outer))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def part_of(module: Any) -> Any:
    """Return the partition's function."""
    return module["part"]


def kernels_of(module: Any) -> list[Any]:
    """Return the module's TIR functions."""
    return [function for _, function in module.functions_items() if isinstance(function, tvm.tirx.PrimFunc)]


def _parameters(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> list[Any]:
    names = dtypes or ["float32"] * len(shapes)
    return [
        relax.Var(f"p{number}", relax.TensorType(tuple(shape), dtype))
        for number, (shape, dtype) in enumerate(zip(shapes, names, strict=True))
    ]
