"""Names for TVM's types, which ships none, and the attributes by which functions tell what they are.

A partition is a private Relax function that names its backend; a model says which of its parameters never
change. Frontend, rules, lowering and backends all read these, so they belong to none of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

IRModule: TypeAlias = Any
"""A `tvm.IRModule`; TVM ships no types."""

RelaxFunction: TypeAlias = Any
"""A `tvm.relax.Function`."""

Expression: TypeAlias = Any
"""A Relax expression."""

PrimFunc: TypeAlias = Any
"""A `tvm.tirx.PrimFunc`: a kernel."""

PARTITION_ATTRIBUTE = "tessel.backend"
"""Relax function attribute that names the backend of a partition."""

WEIGHTS_ATTRIBUTE = "tessel.weights"
"""Relax function attribute of a partition: positions of its parameters that never change between calls.

Only partitions of a function with `NUM_INPUTS_ATTRIBUTE` have it.
"""

NUM_INPUTS_ATTRIBUTE = "tessel.num_inputs"
"""Relax function attribute of a model that is not trained: parameters from this position on are its weights,
whose values stay as they are as long as the program lives, so that a backend may pack them once
(tuner/lowering/weight_binding.py)."""

PREPARE_NAME = "prepare_weights"
"""A private function beside `main` that makes the weights which `main` takes of those that the model has."""

VARIANCES_ATTRIBUTE = "tessel.variances"
"""Relax function attribute of `PREPARE_NAME`: positions of its parameters that are variances, so positive."""


def weights_of(function: RelaxFunction) -> tuple[int, ...]:
    """Return the positions of a partition's parameters that never change between calls."""
    if function.attrs is None or WEIGHTS_ATTRIBUTE not in function.attrs.keys():  # noqa: SIM118 - TVM's maps
        return ()
    return tuple(int(position) for position in function.attrs[WEIGHTS_ATTRIBUTE])


def num_inputs_of(function: RelaxFunction) -> int | None:
    """Return from which parameter on a function's parameters are weights; None where they may change."""
    if function.attrs is None or NUM_INPUTS_ATTRIBUTE not in function.attrs.keys():  # noqa: SIM118 - TVM's maps
        return None
    return int(function.attrs[NUM_INPUTS_ATTRIBUTE])


def with_num_inputs(module: IRModule, num_inputs: int) -> IRModule:
    """Return the module whose `main` says that its parameters from this number on are weights."""
    marked = module.clone()
    function = marked["main"].with_attr(NUM_INPUTS_ATTRIBUTE, num_inputs)
    marked.update_func(marked.get_global_var("main"), function)
    return marked
