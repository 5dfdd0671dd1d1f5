"""Weight binding: computation on weights alone is done once, before the program first runs.

A lowered function that knows which of its parameters are weights (`NUM_INPUTS_ATTRIBUTE`) is split in two.
`bind_weights` takes all of its arguments and does whatever depends on weights alone: it transposes them,
folds normalisations into them, and has libraries pack them, which makes objects of the library's own. It
returns what `main` takes from then on: the same inputs, and in place of the weights what was made of them. So
a weight that a library packed is no argument of a call any more. Checked in
tests/tuner/lowering/test_weight_binding.py.

Source: TVM's `LiftTransformParams`, which makes the cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.graph.relax_source import replace_variables
from tuner.graph.relax_types import IRModule, RelaxFunction, num_inputs_of
from tuner.runtime.bound_arguments import BoundArgument, Constant, MadeObject, StoredTensor

BIND_NAME = "bind_weights"
"""The function of a built program that turns the arguments as the model has them into those of `main`."""

_TVM_ATTRIBUTE = "num_input"
_LIFTED_NAME = "main_transform_params"


def lift_weights(module: IRModule) -> IRModule:
    """Return the module with what `main` does to its weights alone in `bind_weights`.

    Where no weights are known, or a result depends on weights alone, it stays as it is: TVM's pass cannot
    lift what is returned. Then the price of a candidate of such operators alone is that of its work.

    Args:
        module: lowered and inlined: kernels, packed calls and operators left to TVM.
    """
    lifted = _lifted(module)
    if lifted is None:
        return module
    main = module["main"]
    num_inputs = num_inputs_of(main)
    builder = relax.BlockBuilder(lifted)
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in main.params]
    inputs, weights = parameters[:num_inputs], parameters[num_inputs:]
    with builder.function(BIND_NAME, parameters):
        with builder.dataflow():
            made = builder.emit(relax.Call(lifted.get_global_var(_LIFTED_NAME), [relax.Tuple(weights)]))
            bound = [builder.emit(relax.TupleGetItem(made, index)) for index in range(len(made.ty.fields))]
            result = builder.emit_output(relax.Tuple([*inputs, *bound]))
        builder.emit_func_output(result)
    return builder.get()


def _lifted(module: IRModule) -> IRModule | None:
    """Return the module as TVM's pass cuts it, or None where it stays as it is."""
    main = module["main"]
    num_inputs = num_inputs_of(main)
    if num_inputs is None or num_inputs == len(main.params) or _returns_constant(main, num_inputs):
        return None
    marked = module.clone()
    marked.update_func(marked.get_global_var("main"), main.with_attr(_TVM_ATTRIBUTE, num_inputs))
    # A recurrent layer transposes, or has packed, one weight for each of its steps: it is made and held once.
    return relax.transform.LiftTransformParams()(relax.transform.EliminateCommonSubexpr()(marked))


@dataclass(frozen=True, slots=True)
class SplitProgram:
    """A program apart from what makes its weights.

    Attributes:
        module: `main` takes the inputs and the bound arguments.
        maker: `main` takes the weights and returns a tuple of tensors; None where those are the weights.
        bound: what `main` takes after its inputs, by position among those tensors and then the constants.
        constants: tensors that were constants of the module.
    """

    module: IRModule
    maker: IRModule | None
    bound: tuple[BoundArgument, ...]
    constants: tuple[np.ndarray, ...] = ()


def split_program(module: IRModule, num_inputs: int) -> SplitProgram:
    """Return a lowered module as a program to be kept, and one to run once.

    What a library makes of weights is made again wherever the program is loaded: only the tensors that it is
    made of are kept. Constants become arguments: TVM warns of each that it saves or loads with its code.

    Args:
        module: what `lower_module` returned.
        num_inputs: parameters of `main` that are no weights.
    """
    if BIND_NAME not in {name.name_hint for name, _ in module.functions_items()}:
        main, constants = _ConstantsAsParameters(module).taken()
        count = len(module["main"].params) - num_inputs
        return SplitProgram(main, None, _stored(count + len(constants)), constants)
    lifted = module[_LIFTED_NAME]
    main = _only(module, "main")
    kernels = tvm.IRModule(
        {name: each for name, each in module.functions_items() if isinstance(each, tvm.tirx.PrimFunc)}
    )
    return _with_maker(main, kernels, lifted)


def _stored(end: int, start: int = 0) -> tuple[BoundArgument, ...]:
    return tuple(map(StoredTensor, range(start, end)))


@relax.expr_functor.mutator
class _ConstantsAsParameters(relax.PyExprMutator):
    """Makes parameters of the tensors that are constants of `main`, after those that it has."""

    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self.module = module
        self.parameters: dict[Any, Any] = {}

    def taken(self) -> tuple[IRModule, tuple[np.ndarray, ...]]:
        """Return the module, and the constants in the order of their parameters."""
        main = self.module["main"]
        body = self.visit_expr(main.body)
        if not self.parameters:
            return self.module, ()
        changed = self.module.clone()
        changed.update_func(
            changed.get_global_var("main"),
            relax.Function(
                [*main.params, *self.parameters.values()], body, main.ret_ty, main.is_pure, main.attrs
            ),
        )
        return changed, tuple(constant.value.numpy() for constant in self.parameters)

    def visit_generic_const_(self, op: Any) -> Any:
        """Return the parameter that stands for a tensor."""
        if not isinstance(op.ty, relax.TensorType):
            return op
        return self.parameters.setdefault(op, relax.Var(f"constant{len(self.parameters)}", op.ty))


def _with_maker(main: IRModule, kernels: IRModule, lifted: RelaxFunction) -> SplitProgram:
    main, constants = _ConstantsAsParameters(main).taken()
    (weights,) = lifted.params
    parameters = [relax.Var(f"weight{index}", ty) for index, ty in enumerate(weights.ty.fields)]
    builder = relax.BlockBuilder(kernels)
    values: dict[Any, Any] = {}
    objects: dict[Any, Any] = {}
    tensors: dict[Any, int] = {}

    def stored(variable: Any) -> int:
        return tensors.setdefault(values[variable], len(tensors))

    def bound(variable: Any) -> BoundArgument:
        if variable not in objects:
            return StoredTensor(stored(variable))
        name, *arguments = objects[variable].args
        constants = tuple(_constant(each) for each in arguments if not isinstance(each, relax.Var))
        operands = tuple(stored(each) for each in arguments if isinstance(each, relax.Var))
        return MadeObject(str(name.global_symbol), constants, operands)

    with builder.function("main", parameters):
        with builder.dataflow():
            for block in lifted.body.blocks:
                for binding in block.bindings:
                    variable, value = binding.var, binding.value
                    if isinstance(value, relax.Var):
                        kept = objects if value in objects else values
                        if value is not weights:
                            kept[variable] = kept[value]
                    elif isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(weights):
                        values[variable] = parameters[value.index]
                    elif isinstance(value, relax.Tuple):
                        values[variable] = value
                    elif isinstance(variable.ty, relax.ObjectType):
                        objects[variable] = value
                    else:
                        values[variable] = builder.emit(
                            replace_variables(value, lambda each: values.get(each, each))
                        )
            result = values.get(lifted.body.body, lifted.body.body)
            # Where nothing is made, the weights are handed on as the tuple that they came in.
            if isinstance(result, relax.Tuple):
                arguments = tuple(bound(field) for field in result.fields)
            else:
                tensors.update({each: index for index, each in enumerate(parameters)})
                arguments = _stored(len(parameters))
            made = builder.emit_output(relax.Tuple(list(tensors)))
        builder.emit_func_output(made)
    maker = relax.transform.DeadCodeElimination(["main"])(builder.get())
    arguments += _stored(len(tensors) + len(constants), len(tensors))
    return SplitProgram(main, maker, arguments, constants)


def _only(module: IRModule, name: str) -> IRModule:
    """Return the module with one function and what that calls."""
    functions = {
        each: function
        for each, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) or each.name_hint == name
    }
    return relax.transform.DeadCodeElimination([name])(tvm.IRModule(functions, attrs=module.attrs))


def _constant(expression: Any) -> Constant:
    """Return an argument of a maker that is no tensor."""
    if isinstance(expression, relax.ShapeExpr):
        return tuple(int(extent) for extent in expression.values)
    value = getattr(expression, "value", expression)
    value = getattr(value, "value", value)
    return int(value) if isinstance(value, int) else str(value)


def _returns_constant(main: RelaxFunction, num_inputs: int) -> bool:
    """Say whether a result depends on no input."""
    varying = set(main.params[:num_inputs])
    for block in main.body.blocks:
        for binding in block.bindings:
            if varying & set(relax.analysis.free_vars(binding.value)):
                varying.add(binding.var)
    result = main.body.body
    returned = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    return any(each not in varying for each in returned)


def bound_bytes(module: IRModule) -> int:
    """Return the bytes of the tensors that `bind_weights` makes, beside weights that it hands on as they are.

    What a library makes of weights is an object of its own, whose bytes are not known and not counted.

    Args:
        module: what `lift_weights` returned.
    """
    lifted = next((each for name, each in module.functions_items() if name.name_hint == _LIFTED_NAME), None)
    if lifted is None:
        return 0
    (weights,) = lifted.params
    values = {binding.var: binding.value for block in lifted.body.blocks for binding in block.bindings}

    def resolve(expression: Any) -> Any:
        while isinstance(expression, relax.Var) and expression in values:
            expression = values[expression]
        return expression

    def is_made(field: Any) -> bool:
        source = resolve(field)
        is_weight = isinstance(source, relax.TupleGetItem) and resolve(source.tuple_value).same_as(weights)
        return isinstance(field.ty, relax.TensorType) and not is_weight

    result = resolve(lifted.body.body)
    # Where nothing is made, the weights are handed on as the tuple that they came in.
    fields = result.fields if isinstance(result, relax.Tuple) else ()
    return sum(_num_bytes(field.ty) for field in fields if is_made(field))


def _num_bytes(ty: Any) -> int:
    return math.prod(map(int, ty.shape)) * tvm.runtime.DataType(ty.dtype).bits // 8


def bound_arguments(machine: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return what `main` of a loaded program takes, given the arguments as the model has them.

    The result holds the bound weights; keep it as long as `main` is called. Inputs come first, and may be
    replaced.

    Args:
        machine: a `relax.VirtualMachine`.
        arguments: inputs and weights, on the machine's device; weights keep their values from now on.
    """
    try:
        bind = machine[BIND_NAME]
    except AttributeError:
        return list(arguments)
    return list(bind(*arguments))
