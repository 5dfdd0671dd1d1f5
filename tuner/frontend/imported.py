"""Turn the function that one of TVM's importers returns into a `Model`.

Importers differ in what they leave behind: parameters that nothing reads, integer parameters that are really
shapes or indices, one tensor under two names. Floating-point tensors stay parameters, so that equal layers
stay equal whatever their weights; all others become constants. Checked in the tests of both importers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.emission import finish_model, with_aliases
from tuner.frontend.model import InputSpec, IRModule, Model

_PASSED_ON = {"reshape": 0, "expand_dims": 0, "squeeze": 0, "astype": 0, "flatten": 0, "where": 2}
"""Index of the argument whose whole numbers an operator passes on, by name of the operator.

Importers write a look-up with possibly negative indices as `where(i < 0, i + n, i)`.
"""


def finish_imported(
    name: str,
    module: IRModule,
    num_inputs: int,
    *,
    values: Mapping[str, np.ndarray],
    paths: Mapping[str, str],
    tied: tuple[tuple[str, ...], ...] = (),
    then: Callable[[Any], Any] = lambda function: function,
) -> Model:
    """Return the model of an imported module.

    Args:
        module: with `main`, whose parameters after the inputs are named as `values`.
        num_inputs: how many parameters of `main` are inputs.
        values: value of every parameter by name.
        paths: see `finish_model`.
        tied: see `Model.tied`.
        then: changes `main` once whole numbers in it are constants, and all extents known.

    Raises:
        UnsupportedOperatorError: a tensor's shape is known only when the model runs, or the model branches.
    """
    constants = {
        # Without its type, whole numbers of 64 bits would become ones of 32.
        variable: relax.const(values[variable.name], str(values[variable.name].dtype))
        for variable in module["main"].params[num_inputs:]
        if "float" not in str(values[variable.name].dtype)
    }
    if constants:
        module["main"] = module["main"].bind_params(constants)
    module["main"] = _ShapeFolder().visit_expr(module["main"])
    paths = with_aliases(paths, module)
    module = relax.transform.CanonicalizeBindings()(module)
    module["main"] = _without_attributes(relax.transform.DeadCodeElimination()(module)["main"])
    _require_static_dataflow(name, module["main"])
    module["main"] = then(module["main"])
    module["main"] = _without_unused_parameters(module["main"], num_inputs)
    highs = _highs(module["main"], num_inputs)
    inputs = [
        InputSpec(
            name=str(variable.name),  # TVM's own class of text, where it is long
            shape=_shape(variable),
            dtype=str(variable.ty.dtype.dtype),
            high=highs.get(variable.name, 2),
        )
        for variable in module["main"].params[:num_inputs]
    ]
    kept = [str(variable.name) for variable in module["main"].params[num_inputs:]]
    return finish_model(
        name,
        module,
        inputs,
        paths=paths,
        tied=tied,
        parameters={parameter: values[parameter] for parameter in kept},
    )


@relax.expr_functor.mutator
class _ShapeFolder(relax.PyExprMutator):
    """Makes constants of static shapes that are read as tensors, and of what is picked from such a constant.

    TVM's ONNX importer reads an extent so wherever a look-up may have negative indices.
    """

    def visit_call_(self, call: Any) -> Any:
        """Return the call, or the constant that it gives."""
        call = super().visit_call_(call)
        operator = _operator(call)
        arguments = [self._bound(argument) for argument in call.args]
        if operator == "shape_to_tensor" and _operator(arguments[0]) == "shape_of":
            shape = getattr(arguments[0].args[0].ty, "shape", None)
            if shape is not None and all(isinstance(extent, int | tirx.IntImm) for extent in shape):
                return relax.const(np.array([int(extent) for extent in shape], "int64"), "int64")
        if operator == "take" and all(isinstance(argument, tvm.ir.GenericConst) for argument in arguments):
            values, indices = (argument.value.numpy() for argument in arguments)
            axis = None if call.attrs.axis is None else int(call.attrs.axis)
            wraps = call.attrs.mode == "wrap"
            found = np.take(values, indices, axis=axis, mode="wrap" if wraps else "clip")
            return relax.const(found, str(values.dtype))
        return call

    def _bound(self, argument: Any) -> Any:
        found = self.lookup_binding(argument) if isinstance(argument, relax.Var) else None
        return argument if found is None else found


def _require_static_dataflow(name: str, function: Any) -> None:
    blocks = [block for block in function.body.blocks if block.bindings]
    if len(blocks) > 1 or not all(isinstance(block, relax.DataflowBlock) for block in blocks):
        raise UnsupportedOperatorError(
            f"{name} branches on values while it runs (If, Loop or an assertion), but only data flow can be "
            "partitioned; export it for fixed inputs"
        )
    for binding in blocks[0].bindings if blocks else ():
        if _operator(binding.value) == "call_tir":
            raise UnsupportedOperatorError(
                f"TVM's importer writes {binding.value.args[0].name_hint} of {name} as a kernel, not as an "
                "operator, so that no part can hold it; export the model without it, or decompose it"
            )
        if not _is_static(binding.var.ty):
            operator = _operator(binding.value)
            raise UnsupportedOperatorError(
                f"operator {operator} of {name} gives {binding.var.ty}, a shape that is not known before the "
                "model runs; bind every input's shape with --shape, or remove the operator"
            )


def _is_static(kind: Any) -> bool:
    if isinstance(kind, relax.TupleType):
        return all(_is_static(item) for item in kind.fields)
    if isinstance(kind, relax.TensorType):
        return kind.shape is not None and all(isinstance(n, int | tirx.IntImm) for n in kind.shape)
    return True


def _operator(value: Any) -> str:
    return value.op.name.removeprefix("relax.") if hasattr(getattr(value, "op", None), "name") else str(value)


def _without_attributes(function: Any) -> Any:
    """Return the function without what importers attach: values of parameters, and bounds of symbols."""
    for key in ("params", "num_input", "tir_var_lower_bound", "tir_var_upper_bound"):
        if function.attrs is not None and key in function.attrs.keys():  # noqa: SIM118 - TVM's map needs it
            function = function.without_attr(key)
    return function


def _without_unused_parameters(function: Any, num_inputs: int) -> Any:
    used = set(relax.analysis.free_vars(function.body))
    parameters = [
        variable for index, variable in enumerate(function.params) if index < num_inputs or variable in used
    ]
    return relax.Function(parameters, function.body, function.ret_ty, function.is_pure, function.attrs)


def _highs(function: Any, num_inputs: int) -> dict[str, int]:
    """Return, by name of input, the number of rows of the smallest table that the input selects from."""
    source = {variable: variable.name for variable in function.params[:num_inputs]}
    highs: dict[str, int] = {}
    for binding in _bindings(function):
        operator, arguments = _operator(binding.value), list(getattr(binding.value, "args", ()))
        passed_on = arguments[_PASSED_ON[operator]] if operator in _PASSED_ON else None
        if passed_on in source:
            source[binding.var] = source[passed_on]
        elif operator == "take" and arguments[1] in source:
            name = source[arguments[1]]
            axis = binding.value.attrs.axis
            rows = (
                int(arguments[0].ty.shape[int(axis)]) if axis is not None else math.prod(_shape(arguments[0]))
            )
            highs[name] = min(rows, highs.get(name, rows))
    return highs


def _bindings(function: Any) -> Sequence[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in variable.ty.shape)
