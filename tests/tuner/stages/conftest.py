"""Models written by hand, and TVM's default build to run stages with."""

from collections.abc import Callable, Sequence

import pytest
import tvm
from run_module import plain_machine
from tvm import relax

from tuner.frontend.model import InputSpec, Model


@pytest.fixture
def compile_module():
    """Build a module with TVM's default pipeline, and give its `main` as a function of arrays."""

    def build(module):
        machine = plain_machine(module)

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


@pytest.fixture
def interpret():
    """Run a module's `main` in torch, one binding at a time: quick, and shares nothing with TVM's build."""
    return pytest.importorskip("relax_in_torch", reason="needs the extra `torch`").run_in_torch
