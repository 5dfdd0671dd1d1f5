"""Import an exported torch program into Relax with TVM's operator converters and some of this project's.

Programs are decomposed only as far as the importer needs. Layers come from the module stack that
`torch.export` notes. Checked against torch in tests/tuner/frontend/test_torch_program.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.emission import PathBuilder
from tuner.frontend.imported import finish_imported
from tuner.frontend.model import IRModule, Model
from tuner.frontend.shapes import static_shapes
from tuner.frontend.torch_operators import CONVERTERS

_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
"""Kinds of inputs of an exported program that are tensors of the module."""


_BROKEN = ("pixel_shuffle.default", "std.correction", "std.dim", "std.default")
"""Operators that TVM 0.27 takes and cannot lower, or computes wrongly, though their parts it can.

Its standard deviation leaves out the correction by one less than the number of elements."""

_MAX_DECOMPOSITIONS = 8
"""Rounds of decomposition; each takes apart what the last one brought. Three are the most seen."""


_NUMPY_TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
"""Types of tensors that NumPy has too."""


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the program with what the importer lacks or breaks taken apart, and the rest whole.

    Left whole, batch normalisation is imported wrongly by TVM 0.27; taken apart altogether, attention becomes
    dozens of operators that no rule recognises.
    """
    program = program.run_decompositions({})  # what torch always decomposes, and nothing else
    for _ in range(_MAX_DECOMPOSITIONS):
        missing = _Importer(program).missing_operators()
        table = {
            operator: rule for operator, rule in _decompositions().items() if operator.__name__ in missing
        }
        if not table:
            break
        program = program.run_decompositions(table)
    return program


@functools.cache
def _decompositions() -> Mapping[Any, Any]:
    """Return torch's rules by operator; making them takes most of a second."""
    rules: Any = torch.export.default_decompositions()
    return {operator: rules[operator] for operator in rules}


def import_program(
    program: torch.export.ExportedProgram, name: str, *, shapes: Mapping[str, tuple[int, ...]]
) -> Model:
    """Return the model of a program that `decompose` returned.

    Raises:
        UnknownNameError: a shape is given for what is no input.
        UnsupportedOperatorError: the importer has no such operator; the message names each.
        ValueError: an extent that the program fixes is given another value, or an open one has none.
    """
    importer = _Importer(program)
    _require_numpy_types(program, name)
    missing = importer.missing_operators()
    if missing:
        raise UnsupportedOperatorError(
            f"TVM's torch importer has no operator {', '.join(missing)}, which {name} uses; write the model "
            "without it, or export it decomposed"
        )
    try:
        module = importer.translate()
    except Exception as error:  # foreign code: any fault of a converter names its operator
        reason = str(error).partition("\n")[0]
        raise UnsupportedOperatorError(
            f"TVM's torch importer cannot take operator {importer.current_operator} as {name} uses it "
            f"({type(error).__name__}: {reason}); write the model without it, or export it decomposed"
        ) from error
    model = finish_imported(
        name,
        _bind_extents(module, importer.num_inputs, name, shapes),
        importer.num_inputs,
        values=importer.values,
        paths=importer.builder.paths,
        tied=importer.tied,
    )
    return replace(model, untrained=frozenset(model.parameter_names) - importer.trained)


def translate_nodes(
    program: torch.export.ExportedProgram, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[torch.fx.Node, ...], IRModule]:
    """Return the nodes of a program that give tensors, and a module that returns what each became.

    The module takes the inputs and then every tensor of the program, under its own name.
    """
    importer = _Importer(program)
    module = importer.translate(returns_nodes=True)
    return tuple(importer.tensor_nodes()), _bind_extents(module, importer.num_inputs, "the program", shapes)


class _Importer(ExportedProgramImporter):
    """TVM's converters of operators, driven node by node so that each is noted under its layer.

    TVM's own driver drops names of parameters and turns buffers into constants, so that two normalisations
    of one shape would no longer be the same work.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.convert_map = self.create_convert_map()
        self.program = program
        self.builder = self.block_builder = PathBuilder()
        self.current_operator = ""
        self.num_inputs = 0
        names_by_tensor: dict[object, list[str]] = {}
        for parameter, tensor in program.state_dict.items():
            names_by_tensor.setdefault(_identity(tensor), []).append(parameter)
        self.tied = tuple(tuple(names) for names in names_by_tensor.values() if len(names) > 1)
        self.values: dict[str, np.ndarray] = {}
        self.trained: set[str] = set()

    def missing_operators(self) -> tuple[str, ...]:
        """Return names of operators of the program that there is no converter for."""
        names = {node.target.__name__ for node in self.program.graph.nodes if node.op == "call_function"}
        return tuple(sorted(names - set(CONVERTERS) - (set(self.convert_map) - set(_BROKEN))))

    def translate(self, *, returns_nodes: bool = False) -> IRModule:
        """Return the module whose `main` takes the inputs and then the lifted tensors, by their own names.

        Args:
            returns_nodes: whether it returns every tensor that a node gives, in place of the program's own.
        """
        variables, parameters = self._variables()
        with self.builder.function("main", parameters):
            with self.builder.dataflow():
                outputs = self._translate_nodes(variables)
                if returns_nodes:
                    outputs = [self.env[node] for node in self.tensor_nodes()]
                is_one = len(outputs) == 1 and not returns_nodes
                result = self.builder.emit_output(outputs[0] if is_one else relax.Tuple(outputs))
            self.builder.emit_func_output(result)
        return self.builder.get()

    def tensor_nodes(self) -> list[torch.fx.Node]:
        """Return the nodes that compute a tensor, in order, once they were translated."""
        return [
            node
            for node in self.program.graph.nodes
            if node.op == "call_function"
            and isinstance(node.meta.get("val"), torch.Tensor)
            and isinstance(getattr(self.env.get(node), "ty", None), relax.TensorType)
        ]

    def _variables(self) -> tuple[dict[str, Any], list[Any]]:
        """Return variables by name of placeholder, and the parameters of `main` in order."""
        lifted, inputs, _ = self.create_input_vars(self.program)
        self.num_inputs = len(inputs)
        first_name = {name: names[0] for names in self.tied for name in names}
        variables: dict[str, Any] = {}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind in _LIFTED:
                name = first_name.get(spec.target, spec.target)
                variables.setdefault(name, relax.Var(name, lifted[spec.arg.name].ty))
                lifted[spec.arg.name] = variables[name]
                tensor = _tensor(self.program, spec)
                self.values[name] = tensor.detach().cpu().numpy()
                if spec.kind is InputKind.PARAMETER and tensor.requires_grad:
                    self.trained.add(name)
        return {**inputs, **lifted}, [*inputs.values(), *variables.values()]

    def _translate_nodes(self, variables: Mapping[str, Any]) -> list[Any]:
        """Emit every node and return what the user's function returns, flattened."""
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = variables[node.name]
            elif node.op == "output":
                outputs = self._flatten_output_args(self.retrieve_args(node)[0])
            elif node.op == "call_function":
                self.current_operator = node.target.__name__
                with self.builder.layer(_layer(node)):
                    self.env[node] = self._convert(node)
            else:
                self.current_operator = node.op
                raise ValueError(f"the graph holds a node {node.op} {node.target}")
        specs = self.program.graph_signature.output_specs
        kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        return [output for output, spec in zip(outputs, specs, strict=True) if spec.kind in kinds]

    def _convert(self, node: torch.fx.Node) -> Any:
        if self.current_operator in CONVERTERS:
            return CONVERTERS[self.current_operator](node, self)
        return self.convert_map[self.current_operator](node)


def _require_numpy_types(program: torch.export.ExportedProgram, name: str) -> None:
    for tensor_name, tensor in program.state_dict.items():
        if tensor.dtype not in _NUMPY_TYPES:
            raise UnsupportedOperatorError(
                f"{tensor_name} of {name} is of type {tensor.dtype}, which cannot be handed to TVM; convert "
                "the module by .float() or .half()"
            )


def _layer(node: torch.fx.Node) -> str:
    """Return the path of the innermost module that a node was traced in."""
    stack = node.meta.get("nn_module_stack") or {}
    # Values are (path, type); modules called twice are traced as `path@1`.
    return list(stack.values())[-1][0].split("@")[0] if stack else ""


def _bind_extents(
    module: IRModule, num_inputs: int, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> IRModule:
    """Return the module with open extents bound to those that are wanted."""
    inputs = module["main"].params[:num_inputs]
    declared = {
        variable.name: tuple(int(n) if isinstance(n, int | tirx.IntImm) else 0 for n in variable.ty.shape)
        for variable in inputs
    }
    bound = static_shapes(name, declared, shapes)
    extents: dict[str, int] = {}
    for variable in inputs:
        for symbol, extent in zip(variable.ty.shape, bound[variable.name], strict=True):
            if isinstance(symbol, tirx.Var):
                extents[symbol.name] = extent
            elif isinstance(symbol, int | tirx.IntImm) and int(symbol) != extent:
                raise ValueError(
                    f"shape {bound[variable.name]} of input {variable.name!r} does not fit: {name} was "
                    f"exported for {declared[variable.name]}; export it for other shapes"
                )
    return relax.transform.BindSymbolicVars(extents)(module) if extents else module


def _tensor(program: torch.export.ExportedProgram, spec: Any) -> torch.Tensor:
    if spec.kind is not InputKind.CONSTANT_TENSOR and spec.target in program.state_dict:
        return program.state_dict[spec.target]
    constant = program.constants[spec.target]  # constants, and buffers that are not saved
    assert isinstance(constant, torch.Tensor)
    return constant


def _identity(tensor: torch.Tensor) -> object:
    """Return what is equal for two names of one tensor alone."""
    empty = tensor.numel() == 0
    return id(tensor) if empty else (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
