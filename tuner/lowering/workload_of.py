"""Describe a Relax function as a `Workload`, which identifies it in records and across processes.

Names of variables, the order of independent operators and the values of weights do not reach the description;
operators, attributes, shapes, data types and the values of scalar constants do. So a layer that a model
repeats has one fingerprint, and is measured once. Checked in tests/tuner/lowering/test_workload_of.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from records.workload import Operator, Role, Tensor, Workload, describe
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.flops import count_flops
from tuner.graph.relax_source import flat, static_shape
from tuner.graph.torch_call import read_torch_call
from tuner.runtime.operator_call import encode_operator_call


def workload_of(
    function: Any,
    role: Role = "kernel",
    *,
    module: Any = None,
) -> Workload:
    """Return the canonical description of a Relax function with static shapes.

    Args:
        function: a `tvm.relax.Function` with one data-flow block.
        role: what it stands for.
        module: the module that holds the TIR functions it calls, if it calls any.

    Raises:
        ValueError: a shape is symbolic.
        UnsupportedOperatorError: the function has control flow or several blocks.
    """
    return describe_graph(DataflowGraph.from_relax(function, module), role)


def describe_graph(
    graph: DataflowGraph, role: Role = "kernel", parameters: Sequence[tuple[str, str]] = ()
) -> Workload:
    """Return the canonical description of a graph's function; see `workload_of`."""
    writer = _Writer(graph)
    return describe(role, writer.inputs, writer.operators, writer.results, parameters)


class _Writer:
    """Numbers the values of a function: first its inputs and weights, then what each call makes."""

    def __init__(self, graph: DataflowGraph) -> None:
        self._graph = graph
        self._number: dict[Any, int] = {}
        self._tensors: list[Tensor] = []
        self.inputs = self._write_inputs()
        self.operators = [self._operator(index) for index in range(len(graph))]
        self.results = [self._number[_key(result)] for result in graph.source.results]

    def _write_inputs(self) -> Sequence[Tensor]:
        source = self._graph.source
        leaves = [leaf for call in source.calls for argument in call.args for leaf in flat(argument)]
        for parameter in source.function.params:
            if isinstance(parameter.ty, relax.TensorType):
                self._add(parameter, Tensor(static_shape(parameter.ty), str(parameter.ty.dtype)))
        for leaf in leaves:
            if _is_weight(leaf) and _key(leaf) not in self._number:
                self._add(leaf, Tensor(static_shape(leaf.ty), str(leaf.ty.dtype), constant=True))
        for result in source.results:
            if isinstance(result, tvm.ir.Constant) and _key(result) not in self._number:
                self._add(result, Tensor(static_shape(result.ty), str(result.ty.dtype), constant=True))
        return tuple(self._tensors)

    def _operator(self, index: int) -> Operator:
        node, call = self._graph.nodes[index], self._graph.source.calls[index]
        leaves = [leaf for argument in call.args for leaf in flat(argument)]
        inputs = tuple(self._number[_key(leaf)] for leaf in leaves if _key(leaf) in self._number)
        outputs = tuple(
            Tensor(static_shape(value.ty), str(value.ty.dtype)) for value in self._graph.source.values[index]
        )
        attributes = _attributes(call, leaves, self._graph.source.module)
        flops = count_flops(
            node.operator, node.kind, [self._tensors[number] for number in inputs], outputs, dict(attributes)
        )
        for value, tensor in zip(self._graph.source.values[index], outputs, strict=True):
            self._add(value, tensor)
        return Operator(
            name=node.operator,
            kind=int(node.kind),
            inputs=inputs,
            outputs=outputs,
            attributes=attributes,
            flops=flops,
        )

    def _add(self, leaf: Any, tensor: Tensor) -> None:
        self._number[_key(leaf)] = len(self._number)
        self._tensors.append(tensor)


def _key(leaf: Any) -> Any:
    """Return what a leaf is known by: a variable itself, a constant the object that holds it."""
    return ("constant", leaf.value) if isinstance(leaf, tvm.ir.Constant) else leaf


def _is_weight(leaf: Any) -> bool:
    return _is_constant_tensor(leaf) and _scalar(leaf) is None


def _is_constant_tensor(leaf: Any) -> bool:
    """Say whether a leaf is a tensor written out: a plain number (where a slice begins) is an attribute."""
    return isinstance(leaf, tvm.ir.Constant) and isinstance(leaf.ty, relax.TensorType)


def _scalar(leaf: Any) -> str | None:
    """Return a constant of one element as text; None for anything else."""
    if not _is_constant_tensor(leaf):
        return None
    if static_shape(leaf.ty) != ():
        return None
    return repr(leaf.value.numpy().item())


def _attributes(call: Any, leaves: Sequence[Any], module: Any) -> tuple[tuple[str, str], ...]:
    """Return attributes, and arguments that are no tensors, as sorted pairs of text."""
    pairs: dict[str, str] = {}
    for name in _attribute_names(call.attrs):
        value = getattr(call.attrs, name)
        if value is not None:
            pairs[name] = _text(value)
    torch_call = read_torch_call(call)
    if torch_call is not None:
        pairs["call"] = encode_operator_call(torch_call.what)
    for position, leaf in enumerate(leaves):
        scalar = _scalar(leaf)
        if torch_call is not None and isinstance(leaf, relax.ExternFunc | tvm.ir.StringImm):
            continue  # the name and the text of the call
        if scalar is not None:
            pairs[f"argument{position}"] = scalar
        elif not (
            isinstance(leaf, relax.Var | relax.ShapeExpr | tvm.ir.GlobalVar) or _is_constant_tensor(leaf)
        ):
            pairs[f"argument{position}"] = _text(leaf)
    if leaves and isinstance(leaves[0], tvm.ir.GlobalVar) and module is not None:
        pairs["tir"] = f"{tvm_ffi.structural_hash(module[leaves[0]]) & (1 << 64) - 1:016x}"
    return tuple(sorted(pairs.items()))


def _attribute_names(attributes: Any) -> Sequence[str]:
    if attributes is None:
        return ()
    if hasattr(attributes, "keys"):
        return sorted(str(name) for name in attributes.keys())  # noqa: SIM118 - TVM's attributes are not a Mapping
    return sorted(
        {
            field.name
            for type_ in type(attributes).__mro__
            for field in getattr(_type_info(type_), "fields", ())
        }
    )


def _type_info(type_: type) -> Any:
    return type_.__dict__.get("__tvm_ffi_type_info__")


def _text(value: Any) -> str:
    """Return a short, stable text: numbers without their types, sequences in brackets."""
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return str(value.value)
    if isinstance(value, relax.ShapeExpr):
        return _text(list(value.values))
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return str(value)
    return f"[{', '.join(_text(item) for item in value)}]"
