"""Import an exported torch program into Relax, operator by operator.

What depends on no input and no weight is computed by torch here, once: masks, positions, tables. Every
other operator goes through a converter of `tuner.frontend.converters`, and what that gives is compared with
the type and shape that `torch.export` noted for it. What has no converter, or a wrong one, stays a call of
torch (`torch_calls`); the first operator that cannot stay one either is named, with its line of source.
Values are compared later, on inputs (`reference`). Layers come from the module stack that `torch.export`
notes. Checked in
tests/tuner/frontend/torch/test_importer.py and test_program.py.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.converters import COMPLEX, CONVERTERS, Call, Converter, is_complex
from tuner.frontend.converters.call import dtype_name
from tuner.frontend.emission import PathBuilder, with_aliases
from tuner.frontend.imported import finish_imported
from tuner.frontend.model import IRModule, Model
from tuner.frontend.torch.arrays import as_array
from tuner.frontend.torch.blocked_gradients import blocked_nodes
from tuner.frontend.torch.call_structure import call_structure
from tuner.frontend.torch.decomposition import has_converter
from tuner.frontend.torch.source import layer_of, place_of
from tuner.frontend.torch.torch_calls import emit_torch_call
from tuner.frontend.torch.written_tensors import (
    describe_state,
    require_same_shapes,
    require_unread,
    written_tensors,
)

logger = logging.getLogger(__name__)

_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
"""Kinds of inputs of an exported program that are tensors of the module."""

_MAX_COMPUTED_BYTES = 64 << 20
"""Size of a tensor up to which it is computed here; larger ones are made when the model runs."""

_MAX_UNIFORM_BYTES = 1 << 16
"""Size of a tensor of equal numbers up to which it is kept as such."""

_UNIFORM = {"zeros": 0, "ones": 1, "empty": 0}
"""Number that a creation fills a tensor with, by the start of its name less `new_`; empty ones hold any."""

_RENORM = torch.ops.aten.embedding_renorm.default

_FILLED = ("full", "full_like", "new_full")

_NUMPY_TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
"""Types of tensors that arrays have too; of complex numbers, those of their parts."""


def import_program(
    program: torch.export.ExportedProgram,
    name: str,
    *,
    called: Set[str] = frozenset(),
    blocks: bool = False,
    keeps_state: bool = True,
) -> Model:
    """Return the model of a program that `decompose` returned.

    Args:
        called: names of nodes that stay calls of torch though they have a converter.
        blocks: whether gradients end where the code detaches, by `grad.no_grad`; values are the same.
        keeps_state: whether what the program writes is among its inputs and results; see `written_tensors`.

    Raises:
        UnsupportedOperatorError: an operator has no converter, or is converted wrongly; names the first. Or
            the program writes what cannot be kept, or left out.
    """
    _require_numpy_types(program, name)
    importer = _Importer(program, name, called, blocks, keeps_state)
    module = importer.translate()
    model = finish_imported(
        name,
        module,
        importer.num_inputs,
        values=importer.values,
        paths=importer.builder.paths,
        tied=importer.tied,
    )
    state = tuple(each.name for each in importer.written)
    return replace(
        model,
        state=state,
        call=call_structure(program),
        notes=(*model.notes, *((describe_state(state),) if state else ())),
        untrained=frozenset(model.parameter_names) - importer.trained,
        padding_rows={importer.env[table].name: row for table, row in importer.padding_rows.items()},
    )


def node_by_variable(
    program: torch.export.ExportedProgram,
    *,
    called: Set[str] = frozenset(),
    blocks: bool = False,
    keeps_state: bool = True,
) -> dict[str, str]:
    """Return the name of the node that each variable of the imported program was emitted for.

    Other arguments are those of `import_program`.
    """
    importer = _Importer(program, "the program", called, blocks, keeps_state)
    module = importer.translate()
    return with_aliases(importer.nodes, module)


def translate_nodes(
    program: torch.export.ExportedProgram, *, called: Set[str] = frozenset(), keeps_state: bool = True
) -> tuple[tuple[torch.fx.Node, ...], IRModule]:
    """Return the nodes of a program that were converted, and a module that returns what each became.

    The module takes the inputs and then every tensor of the program, under its own name. Other arguments are
    those of `import_program`.
    """
    importer = _Importer(program, "the program", called, False, keeps_state)
    module = importer.translate(returns_nodes=True)
    return tuple(importer.tensor_nodes()), module


class _Values(dict[torch.fx.Node, Any]):
    """What each node became; what is known becomes a constant when something asks for it."""

    def __init__(self, known: Mapping[torch.fx.Node, Any], builder: PathBuilder) -> None:
        super().__init__()
        self._known = known
        self._builder = builder

    def __missing__(self, node: torch.fx.Node) -> Any:
        """Make a constant of what a node is known to give."""
        found = _constant(self._known[node], self._builder)
        self[node] = found
        return found


class _Importer:
    """Converts a program, and satisfies `ImporterView` for its converters."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        name: str,
        called: Set[str],
        blocks: bool,
        keeps_state: bool,
    ) -> None:
        self.program = program
        self.name = name
        written = written_tensors(program)
        self.written = written if keeps_state else ()
        if keeps_state:
            require_same_shapes(written, name)
        else:
            require_unread(written, _needed(_results(program)), name)
        self.called = called
        self.blocked = blocked_nodes(program) if blocks else frozenset()
        self.builder = PathBuilder()
        self.computed: dict[torch.fx.Node, Any] = {}
        self.env = _Values(self.computed, self.builder)
        self.padding_rows: dict[torch.fx.Node, int] = {}
        self.nodes: dict[str, str] = {}
        self.num_inputs = 0
        names_by_tensor: dict[object, list[str]] = {}
        for parameter, tensor in program.state_dict.items():
            names_by_tensor.setdefault(_identity(tensor), []).append(parameter)
        self.tied = tuple(tuple(names) for names in names_by_tensor.values() if len(names) > 1)
        self.values: dict[str, np.ndarray] = {}
        self.trained: set[str] = set()

    def known(self, node: torch.fx.Node) -> torch.Tensor | None:
        """Return what a node gives if that depends on no input and no weight."""
        return self.computed.get(node)

    def translate(self, *, returns_nodes: bool = False) -> IRModule:
        """Return the module whose `main` takes the inputs and then the lifted tensors, by their own names.

        Args:
            returns_nodes: whether it returns every tensor that a node gives, in place of the program's own.

        Raises:
            UnsupportedOperatorError: an operator has no converter, or is converted wrongly.
        """
        parameters = self._bind_placeholders()
        with self.builder.function("main", parameters):
            with self.builder.dataflow():
                outputs = self._translate_nodes()
                if returns_nodes:
                    outputs = [self.env[node] for node in self.tensor_nodes()]
                is_one = len(outputs) == 1 and not returns_nodes
                result = self.builder.emit_output(outputs[0] if is_one else relax.Tuple(outputs))
            self.builder.emit_func_output(result)
        return self.builder.get()

    def tensor_nodes(self) -> list[torch.fx.Node]:
        """Return the nodes that were converted to a tensor, in order."""
        return [
            node
            for node in self.program.graph.nodes
            if node.op == "call_function"
            and node not in self.computed
            and isinstance(node.meta.get("val"), torch.Tensor)
            and node in self.env
        ]

    def _bind_placeholders(self) -> list[Any]:
        """Give every placeholder its variable, and return the parameters of `main` in order."""
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        first_name = {name: names[0] for names in self.tied for name in names}
        state = {each.placeholder: each for each in self.written if each.target}
        held: list[Any] = []
        inputs: list[Any] = []
        variables: dict[str, Any] = {}
        for spec in self.program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if node in state:
                self.env[node] = _variable(state[node].name, node.meta["val"])
                held.append(self.env[node])
            elif spec.kind in _LIFTED:
                name = first_name.get(spec.target, spec.target)
                tensor = _tensor(self.program, spec)
                variables.setdefault(name, _variable(name, tensor))
                self.env[node] = variables[name]
                self.values[name] = as_array(tensor)
                if spec.kind is InputKind.PARAMETER and tensor.requires_grad:
                    self.trained.add(name)
                if _never_changes(spec, tensor):
                    self._compute(node, tensor.detach().cpu())
            elif spec.kind is not InputKind.USER_INPUT:
                raise UnsupportedOperatorError(
                    f"{self.name} takes {spec.arg.name}, which is no tensor ({spec.kind.name.lower()}), but "
                    "only tensors can be handed to a compiled program; leave it out"
                )
            elif isinstance(spec.arg, TensorArgument):
                value = node.meta["val"]
                self.env[node] = _variable(spec.arg.name, value)
                inputs.append(self.env[node])
                if not value.numel():
                    self._compute(node, torch.empty(value.shape, dtype=value.dtype))
        self.num_inputs = len(inputs) + len(held)
        return [*inputs, *held, *variables.values()]

    def _compute(self, node: torch.fx.Node, value: Any) -> None:
        self.env.pop(node, None)
        self.computed[node] = value

    def _translate_nodes(self) -> list[Any]:
        """Emit what the user's function returns, flattened, and every node that it needs.

        What only an assertion reads is left out: shapes hold, and a compiled program does not check values.
        """
        wanted = [*_results(self.program), *(each.value for each in self.written)]
        needed = _needed(wanted)
        for node in self.program.graph.nodes:
            if node.op == "placeholder" or node not in needed:
                continue
            if node.op != "call_function":
                raise UnsupportedOperatorError(
                    f"{self.name} holds a sub-graph {node.target}, as control flow does, but only data flow "
                    "can be partitioned; write it without torch.cond and its like"
                )
            before = len(self.builder.paths)
            with self.builder.layer(layer_of(node)), self._refusing(node):
                self._translate(node)
            emitted = itertools.islice(self.builder.paths, before, None)
            self.nodes.update(dict.fromkeys(emitted, node.name))
        return [self.env[node] for node in wanted]

    def _translate(self, node: torch.fx.Node) -> None:
        """Compute a node here if nothing that changes goes into it, or else emit what it computes."""
        target: Any = node.target
        if target is _RENORM and not self.blocked.isdisjoint(node.all_input_nodes):
            raise ValueError(
                "it shortens rows of a table that trains to `max_norm`, and keeps them so, as no stage does; "
                "leave out `max_norm`, and shorten the rows after each step of the optimizer"
            )
        found = self._computed(node)
        if found is not None:
            self.computed[node] = found
            return
        if target is operator.getitem:
            source, index = node.args
            converted = self.env[source][index]  # type: ignore[index]  # a node's own arguments are
            _require_noted(node, converted)
        else:
            converted = self._converted_or_called(node)
        if node in self.blocked:
            converted = self.builder.emit(relax.op.grad.no_grad(converted))
        self.env[node] = converted

    def _converted_or_called(self, node: torch.fx.Node) -> Any:
        """Return what a converter makes of a call where it has the noted type and shape; else a torch call.

        What a converter emitted before it gave up is read by nothing, and goes with other dead code.

        Raises:
            ValueError: neither can be; says why.
        """
        try:
            converted = self._converted(node)
        except Exception as error:  # TVM and torch raise what they happen to raise
            if _is_random(node.target):
                raise
            reason = _first_line(error)
            try:
                converted = emit_torch_call(node, self)
                _require_noted(node, converted)
            except ValueError as refusal:
                raise ValueError(f"{reason}, and it cannot stay a call of torch: {refusal}") from error
            logger.info("%s stays a call of torch: %s", place_of(node), reason)
        return converted

    def _converted(self, node: torch.fx.Node) -> Any:
        """Return what a converter makes of a call.

        Raises:
            ValueError: there is none, or it gives another type, shape or value than torch.
        """
        if node.name in self.called:
            raise ValueError("its converter gives other values than torch")
        if not has_converter(node.target):
            raise ValueError(
                "it draws random numbers; give what is drawn as an input"
                if _is_random(node.target)
                else "it has no converter"
            )
        call = Call(node, self)
        converted = _converter(node)(call)
        if isinstance(converted, list) and any(converted[index] is None for index in call.used_results):
            raise ValueError("its converter leaves out a result that something reads")
        _require_noted(node, converted)
        return converted

    def _computed(self, node: torch.fx.Node) -> Any:
        """Return what a node gives if that depends on no input and no weight; None where it does."""
        target: Any = node.target
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if not all(isinstance(extent, int) for extent in value.shape):
                raise ValueError("its shape depends on values that are known only when the model runs")
            if not value.numel():
                return torch.empty(value.shape, dtype=value.dtype)
            number = _filling(node)
            if number is not None:
                return torch.full((), number, dtype=value.dtype).expand(value.shape)
        if any(each not in self.computed for each in node.all_input_nodes):
            return None
        if target is not operator.getitem and not _is_computable(target):
            return None
        if isinstance(value, torch.Tensor) and value.numel() * value.element_size() > _MAX_COMPUTED_BYTES:
            return None
        arguments, keywords = torch.fx.node.map_arg((node.args, node.kwargs), self.computed.__getitem__)
        with torch.no_grad():
            return target(*arguments, **_on_cpu(keywords))

    @contextmanager
    def _refusing(self, node: torch.fx.Node) -> Iterator[None]:
        """Turn whatever a converter raises into an error that names the operator, its line and a remedy."""
        try:
            yield
        except Exception as error:  # TVM and torch raise what they happen to raise
            reason = _first_line(error)
            remedy = "" if ";" in reason else "; write that line in other operators"
            raise UnsupportedOperatorError(
                f"{self.name} cannot be imported: {place_of(node)} is the first that cannot be converted, "
                f"because {reason}{remedy}"
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _results(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Return the nodes of what the user's function returns, flattened."""
    (output,) = program.graph.find_nodes(op="output")
    kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    specs = program.graph_signature.output_specs
    found = [node for node, spec in zip(output.args[0], specs, strict=True) if spec.kind in kinds]
    return [node for node in found if isinstance(node, torch.fx.Node)]


def _needed(results: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the nodes that results depend on, and the results."""
    found: set[torch.fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _converter(node: torch.fx.Node) -> Converter:
    """Return the converter of a call.

    Raises:
        ValueError: it has none for complex numbers.
    """
    name = str(node.target.__name__)  # type: ignore[union-attr]  # of a call
    table = COMPLEX if is_complex(node) else CONVERTERS
    if name not in table:
        raise ValueError(
            "it has no converter for complex numbers" if name in CONVERTERS else "it has no converter"
        )
    return table[name]


def _is_computable(target: Any) -> bool:
    """Say whether an operator gives the same whenever it is given the same, and changes nothing."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not _is_random(target) and not target._schema.is_mutable


def _is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _filling(node: torch.fx.Node) -> Any:
    """Return the number that a creation fills its tensor with, whatever it is made like; None for others."""
    target: Any = node.target
    if getattr(target, "namespace", "") != "aten":
        return None
    name = target.__name__.partition(".")[0]
    if name in _FILLED:
        number = node.args[1] if len(node.args) > 1 else node.kwargs.get("fill_value")
        return number if isinstance(number, bool | int | float) else None
    return _UNIFORM.get(name.removeprefix("new_").removesuffix("_like").partition("_")[0])


def _on_cpu(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords with the device on which constants are computed."""
    return {
        name: torch.device("cpu") if name == "device" and value is not None else value
        for name, value in keywords.items()
    }


def _constant(value: Any, builder: PathBuilder) -> Any:
    """Return what torch computed as constants.

    Large ones of equal numbers are made when the model runs, and those without elements: TVM saves them with
    a program, and cannot load it again where the first extent is not 0.
    """
    if not isinstance(value, torch.Tensor):
        return [_constant(item, builder) for item in value] if isinstance(value, list | tuple) else value
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    dtype = dtype_name(value.dtype)
    if not value.numel():
        return builder.emit(relax.op.zeros(list(value.shape), dtype))
    is_uniform = value.numel() > 1 and not any(value.stride())
    if is_uniform and value.numel() * value.element_size() > _MAX_UNIFORM_BYTES:
        number = as_array(value.flatten()[:1].reshape(()))
        return builder.emit(relax.op.full(list(value.shape), relax.const(number, dtype), dtype))
    return relax.const(as_array(value.contiguous()), dtype)


def _require_noted(node: torch.fx.Node, converted: Any) -> None:
    """Require of what was converted the type and shape that `torch.export` noted.

    Raises:
        ValueError: it has others; says which.
    """
    noted = node.meta.get("val")
    pairs: list[tuple[Any, Any]] = (
        list(zip(noted, converted, strict=False)) if isinstance(noted, list | tuple) else [(noted, converted)]
    )
    for wanted, got in pairs:
        if isinstance(wanted, torch.Tensor) and got is not None:
            wanted = torch.view_as_real(wanted.resolve_conj()) if wanted.is_complex() else wanted
            expected = f"{dtype_name(wanted.dtype)}{tuple(wanted.shape)}"
            found = f"{got.ty.dtype.dtype}{tuple(int(extent) for extent in got.ty.shape)}"
            if found != expected:
                raise ValueError(f"its converter gives {found} where torch gives {expected}")


def _variable(name: str, tensor: torch.Tensor) -> Any:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return relax.Var(name, relax.TensorType(list(tensor.shape), dtype_name(tensor.dtype)))


def _never_changes(spec: Any, tensor: torch.Tensor) -> bool:
    """Say whether a tensor of a module is a table, of whole or complex numbers, or stands in its code."""
    if not tensor.is_floating_point():
        return not tensor.requires_grad
    return spec.kind is InputKind.CONSTANT_TENSOR and tensor.numel() <= 1


def _require_numpy_types(program: torch.export.ExportedProgram, name: str) -> None:
    for tensor_name, tensor in {**program.state_dict, **program.constants}.items():
        if isinstance(tensor, torch.Tensor) and tensor.dtype not in _NUMPY_TYPES:
            wider = (
                "complex64" if tensor.is_complex() else "float32" if tensor.is_floating_point() else "int64"
            )
            raise UnsupportedOperatorError(
                f"{tensor_name} of {name} is of type {tensor.dtype}, which cannot be handed to TVM; convert "
                f"that tensor by .to(torch.{wider})"
            )


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
