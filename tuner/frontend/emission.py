"""Emit a model of Relax's nn frontend as one function that records the layer of each binding.

Relax's own exporter forgets which module emitted a binding; a cut into stages and a readable report both need
it. `Layer` therefore opens a scope around its `forward`, and the builder notes the innermost scope with every
variable that it emits. Checked in tests/tuner/frontend/test_emission.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend import nn

from tuner.frontend.model import InputSpec, IRModule, Model


class Layer(nn.Module):
    """A module of the zoo: what its `forward` emits is noted under its path in the module tree."""

    path = ""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Emit the layer's operators into the function being built and return its outputs."""
        builder = relax.BlockBuilder.current()
        with builder.layer(self.path):
            return super().__call__(*arguments, **options)


def emit(expression: Any, name: str) -> nn.Tensor:
    """Bind a Relax expression in the function being built and return it as a tensor of the nn frontend."""
    return nn.Tensor(_expr=relax.BlockBuilder.current().emit(expression, name))


def emit_model(name: str, root: Layer, inputs: Sequence[InputSpec], *, training: bool) -> Model:
    """Return the model whose `main` is `root.forward` over the inputs.

    A parameter that hangs at several places of the module tree becomes one parameter of `main`, under the
    first of its names; `Model.tied` lists them all.
    """
    _name_layers(root, "")
    names_by_parameter: dict[nn.Parameter, list[str]] = {}
    for parameter_name, parameter in root.named_parameters():
        names_by_parameter.setdefault(parameter, []).append(parameter_name)
    arguments = [nn.Tensor.placeholder(spec.shape, spec.dtype, spec.name) for spec in inputs]
    for parameter, names in names_by_parameter.items():
        parameter._expr = nn.Tensor.placeholder(parameter.shape, parameter.dtype, names[0])._expr
    variables = [tensor._expr for tensor in (*arguments, *names_by_parameter)]

    builder = PathBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(root(*arguments)._expr)
        builder.emit_func_output(result)
    return finish_model(
        name,
        builder.get(),
        inputs,
        paths=builder.paths,
        tied=tuple(tuple(names) for names in names_by_parameter.values() if len(names) > 1),
        training=training,
    )


def finish_model(
    name: str,
    module: IRModule,
    inputs: Sequence[InputSpec],
    *,
    paths: Mapping[str, str],
    tied: tuple[tuple[str, ...], ...] = (),
    parameters: Mapping[str, np.ndarray] | None = None,
    training: bool = False,
) -> Model:
    """Return the model after removing bindings that only rename others.

    Args:
        module: with a function `main` that takes the inputs first.
        paths: path of the layer by name of the variable that a binding defines. A binding that is not listed
            takes the path of the next one that is: operators in front of their users are theirs.
        tied: see `Model.tied`.
        parameters: see `Model.parameters`.
        training: see `Model.training`.
    """
    paths_by_name = with_aliases(paths, module)
    module = relax.transform.CanonicalizeBindings()(module)
    module_paths: list[str] = []
    path = ""
    for binding in reversed(_bindings(module)):
        path = paths_by_name.get(binding.var.name, path)
        module_paths.append(path)
    return Model(
        name=name,
        module=module,
        inputs=tuple(inputs),
        parameter_names=tuple(str(parameter.name) for parameter in module["main"].params[len(inputs) :]),
        module_paths=tuple(reversed(module_paths)),
        tied=tied,
        parameters=parameters or {},
        training=training,
    )


def with_aliases(paths: Mapping[str, str], module: IRModule) -> dict[str, str]:
    """Return the paths, and for each variable that only renames another the path of that one.

    Passes that remove such a binding may keep either of its two names.
    """
    aliases = {
        binding.var.name: paths[binding.value.name]
        for binding in _bindings(module)
        if isinstance(binding.value, relax.Var) and binding.value.name in paths
    }
    return {**paths, **aliases}


class PathBuilder(relax.BlockBuilder):
    """A block builder that notes the innermost open layer with every variable it emits."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, str] = {}
        self._open_paths = [""]

    @contextmanager
    def layer(self, path: str) -> Iterator[None]:
        """Open a layer: what is emitted inside is noted under its path."""
        self._open_paths.append(path)
        try:
            yield
        finally:
            self._open_paths.pop()

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        """Bind an expression, note its layer, and return its variable."""
        variable = super().emit(expr, name_hint)
        self.paths[variable.name] = self._open_paths[-1]
        return variable


def _name_layers(layer: Layer, path: str) -> None:
    """Give every layer below the one given its dotted path; a layer at several places keeps the last one."""
    layer.path = path
    prefix = f"{path}." if path else ""
    for name, child in vars(layer).items():
        if isinstance(child, Layer):
            _name_layers(child, prefix + name)
        elif isinstance(child, nn.ModuleList):
            for index, item in enumerate(child):
                _name_layers(item, f"{prefix}{name}.{index}")


def _bindings(module: IRModule) -> list[Any]:
    return [binding for block in module["main"].body.blocks for binding in block.bindings]
