"""Programs that run wherever anything does: what one that fails is due to lies outside of it.

Checked in tests/tuner/measuring/test_launch_penalty.py and test_measurer.py.
"""

from __future__ import annotations

from tvm import relax

from tuner.graph.relax_types import PARTITION_ATTRIBUTE, IRModule

SHAPE = (1, 16)

DTYPE = "float32"


def addition_chain(length: int, backend: str) -> IRModule:
    """Return a module whose `main` calls so many partitions, each adding a vector to itself."""
    ty = relax.TensorType(SHAPE, DTYPE)
    builder = relax.BlockBuilder()
    value = relax.Var("value", ty)
    with builder.function("double", [value], attrs={PARTITION_ATTRIBUTE: backend}, private=True):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(value, value))
        builder.emit_func_output(result)
    double = builder.get().get_global_var("double")
    start = relax.Var("start", ty)
    with builder.function("main", [start]):
        with builder.dataflow():
            current = start
            for _ in range(length):
                current = builder.emit(relax.Call(double, [current]))
            result = builder.emit_output(current)
        builder.emit_func_output(result)
    return builder.get()


def addition() -> IRModule:
    """Return a module that adds a vector to itself, without a partition."""
    builder = relax.BlockBuilder()
    value = relax.Var("value", relax.TensorType(SHAPE, DTYPE))
    with builder.function("main", [value]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(value, value))
        builder.emit_func_output(result)
    return builder.get()
