"""Models written by hand, and TVM's default build to run stages with."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from tvm import relax

from tuner.frontend.model import InputSpec, Model


@pytest.fixture
def compile_module():
    """Build a module with TVM's default pipeline, and give its `main` as a function of arrays."""

    def build(module):
        machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())

        def call(arrays):
            return [output.numpy() for output in machine["main"](*map(tvm.runtime.tensor, arrays))]

        return call

    return build


@pytest.fixture
def run(compile_module):
    """Run a module's `main` once."""
    return lambda module, arrays: compile_module(module)(arrays)


@pytest.fixture
def make_model():
    """Write a model: `emit(value, path)` binds an expression within a layer."""

    def make(
        build: Callable,
        *,
        inputs: Sequence[InputSpec],
        parameters: dict[str, tuple[tuple[int, ...], str]],
        training: bool = True,
        tied: tuple[tuple[str, ...], ...] = (),
    ) -> Model:
        arguments = [relax.Var(spec.name, relax.TensorType(spec.shape, spec.dtype)) for spec in inputs]
        weights = [
            relax.Var(name, relax.TensorType(*description)) for name, description in parameters.items()
        ]
        builder = relax.BlockBuilder()
        paths: dict[str, str] = {}

        def emit(value, path=""):
            variable = builder.emit(value)
            paths[variable.name] = path
            return variable

        with builder.function("main", [*arguments, *weights]):
            with builder.dataflow():
                result = build(emit, *arguments, *weights)
                results = result if isinstance(result, tuple) else (result,)
                outputs = [builder.emit_output(value, name_hint=name) for name, value in _named(results)]
            builder.emit_func_output(relax.Tuple(outputs) if isinstance(result, tuple) else outputs[0])
        module = builder.get()
        block = module["main"].body.blocks[0]
        # An expression within another is bound first, under no name: it belongs where the next one does.
        last = list(paths.values())[-1] if paths else ""
        known = [paths.get(binding.var.name) for binding in block.bindings]
        all_paths = [
            next((path for path in known[index:] if path is not None), last) for index in range(len(known))
        ]
        return Model(
            name="written by hand",
            module=module,
            inputs=tuple(inputs),
            parameter_names=tuple(parameters),
            module_paths=tuple(all_paths),
            training=training,
            tied=tied,
        )

    return make


def _named(results):
    return (
        [("loss", results[0])]
        if len(results) == 1
        else [(f"out{i}", value) for i, value in enumerate(results)]
    )


NUMPY_BY_OPERATOR = {
    "relax.add": np.add,
    "relax.multiply": np.multiply,
    "relax.subtract": np.subtract,
    "relax.tanh": np.tanh,
    "relax.negative": np.negative,
}


@pytest.fixture
def interpret():
    """Run a module's `main` in numpy, one binding at a time: quick, and shares nothing with TVM's build."""

    def call(module, arrays):
        function = module["main"]
        known = dict(zip(function.params, arrays, strict=True))
        for block in function.body.blocks:
            for binding in block.bindings:
                known[binding.var] = _evaluate(binding.value, known)
        return list(_evaluate(function.body.body, known))

    return call


def _evaluate(value, known):
    match value:
        case relax.Var():
            return known[value]
        case relax.Tuple():
            return tuple(_evaluate(field, known) for field in value.fields)
        case relax.TupleGetItem():
            return _evaluate(value.tuple_value, known)[value.index]
        case relax.ShapeExpr():
            return tuple(int(extent) for extent in value.values)
        case relax.Call():
            arguments = [_evaluate(argument, known) for argument in value.args]
            return _apply(value, arguments)
        case _:
            number = value.value
            return np.asarray(
                number if isinstance(number, int | float) else number.numpy(), str(value.ty.dtype)
            )


def _apply(call, arguments):
    match call.op.name:
        case "relax.split":
            axis = int(call.attrs.axis)
            ends = np.cumsum([int(field.shape[axis]) for field in call.ty.fields])
            return tuple(np.split(arguments[0], ends[:-1], axis=axis))
        case "relax.concat":
            return np.concatenate(arguments[0], axis=int(call.attrs.axis))
        case "relax.sum":
            return np.sum(arguments[0])
        case "relax.broadcast_to":
            return np.broadcast_to(arguments[0], arguments[1])
        case "relax.zeros":
            return np.zeros(arguments[0], "float32")
        case name:
            return NUMPY_BY_OPERATOR[name](*arguments)
