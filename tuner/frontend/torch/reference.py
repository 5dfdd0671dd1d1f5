"""The user's own torch program, run by torch: the reference for the imported model.

Outputs, losses and gradients come from the module itself, by torch's operators and autograd alone. Inputs are
drawn like its examples; where the module refuses them, or they give it no numbers, the examples are taken.
Where an import is wrong, the exported graph is run node by node beside the imported one, and the first
operator that differs in value is named; types and shapes were compared in the import. Checked in
tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

import hashlib
import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, TensorArgument
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.frontend.model import InputSpec, IRModule, Model, Reference, Run
from tuner.frontend.torch.arrays import as_array, as_tensor
from tuner.frontend.torch.blocked_gradients import blocked_nodes, checkpoints_inlined
from tuner.frontend.torch.decomposition import decompose
from tuner.frontend.torch.dropout import BATCH_NORM, MaskedModule, covers, draws, give_masks
from tuner.frontend.torch.export import export_module, quiet_export
from tuner.frontend.torch.importer import import_program, node_by_variable, translate_nodes
from tuner.frontend.torch.own_functions import functions_kept, own_functions_of
from tuner.frontend.torch.source import place_of
from tuner.frontend.torch.training import in_mode, observe_training, own_functions
from tuner.frontend.values import draw_mask
from tuner.graph.structure import Structure
from tuner.numerical_error import compare_tensor

logger = logging.getLogger(__name__)

_CHUNK = 1 << 24
"""Bytes of a tensor that are hashed at a time."""


@dataclass(frozen=True, kw_only=True)
class TorchReference:
    """A torch module; satisfies `Reference`.

    Attributes:
        module: the user's own; it is left in the mode that it is in, with the buffers that it has.
        examples: its inputs, as the user gave them.
        program: the export that was imported.
        masks: probabilities of dropout by name of the inputs that are its masks; see `give_masks`.
        train_acts: what the program does as for training alone, and where, in words.
        trains: whether a loss is compared: of several results the sum of the scalars, as `with_loss` has it.
        keeps_functions: whether the export holds functions with a backward of their own whole.
        blocks: whether the import blocks gradients where the code does.
        mode: `eval`, `train`, or `export` for a program that was exported before and has but one mode.
    """

    module: torch.nn.Module
    examples: tuple[Any, ...]
    program: torch.export.ExportedProgram
    mode: str = "eval"
    keeps_functions: bool = False
    blocks: bool = False
    masks: Mapping[str, float] = field(default_factory=dict)
    train_acts: tuple[str, ...] = ()
    trains: bool = False

    @property
    def label(self) -> str:
        """Who runs the program."""
        return "torch-reference"

    def fingerprint(self, model: Model) -> str:
        """Name the module's code and weights, its exported graph, and what was imported."""
        digest = hashlib.sha256(torch.__version__.encode())
        digest.update(Structure(model.module).fingerprint.encode())
        digest.update(str(self.program.graph_module.code).encode())
        for path in self._sources():
            digest.update(path.read_bytes())
        for name, example in sorted(self._examples().items()):
            digest.update(f"{name} {example.dtype} {example.shape}".encode())
            _hash_array(digest, example)
        hashed: set[int] = set()
        for name, array in [*sorted(model.parameters.items()), *sorted(self._state().items())]:
            address = array.__array_interface__["data"][0]
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            if address not in hashed:  # The import shares the memory of most tensors.
                hashed.add(address)
                _hash_array(digest, array)
        return digest.hexdigest()[:32]

    def with_ranges(self, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
        """Return inputs whose whole numbers reach to the examples', where the program does not bound them."""
        largest = {
            name: int(example.max()) + 1
            for name, example in self._examples().items()
            if example.size and np.issubdtype(example.dtype, np.integer)
        }
        unknown = InputSpec.__dataclass_fields__["high"].default
        return tuple(
            replace(
                spec,
                high=max(unknown, largest.get(spec.name, unknown)) if spec.high == unknown else spec.high,
                dropout=self.masks.get(spec.name),
            )
            for spec in inputs
        )

    def draw(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
        """Return inputs by name that the module gives numbers for, and those numbers.

        Inputs are drawn; where the module takes none of those, they are the user's examples.

        Raises:
            TunerError: it gives none for either.
        """
        rng = np.random.default_rng([seed, 2])
        examples = self._examples()
        drawn = {spec.name: _drawn(spec, examples.get(spec.name), rng) for spec in inputs}
        reason = ""
        for candidate in (drawn, drawn | self.examples_of(inputs)):
            try:
                found = self.outputs(candidate)
            except Exception as error:  # foreign code: the user's own module
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                continue
            if not any(np.isnan(array.astype(np.float64)).any() for array in found):
                return candidate, found
            reason = "its outputs hold NaN"
        raise TunerError(
            f"{type(self.module).__name__} gives no numbers under torch for its example inputs ({reason}), "
            "so that its import cannot be compared; give example inputs that it works for"
        )

    def examples_of(self, inputs: Sequence[InputSpec]) -> dict[str, np.ndarray]:
        """Return the examples of those inputs that have their shapes, by name; labels have none."""
        examples = self._examples()
        shapes = {name: example.shape for name, example in examples.items()}
        return {spec.name: examples[spec.name] for spec in inputs if shapes.get(spec.name) == spec.shape}

    def own(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]] | None:
        """Return the user's examples, with labels that are drawn, and what the module gives for them.

        None for a program from a file, whose examples are not read, where the examples are of other shapes,
        and where the module gives no numbers for them.
        """
        rng = np.random.default_rng([seed, 3])
        examples, names = self._examples(), self._input_names()
        shapes = {name: example.shape for name, example in examples.items()}
        fits = all(shapes.get(spec.name) == spec.shape for spec in inputs if spec.name in names)
        if self.mode == "export" or not fits:
            return None
        values = {spec.name: examples.get(spec.name, _drawn(spec, None, rng)) for spec in inputs}
        try:
            found = self.outputs(values)
        except Exception:  # foreign code: the user's own module, in another mode than it was traced in
            return None
        return None if any(np.isnan(array.astype(np.float64)).any() for array in found) else (values, found)

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return what the module gives in the reference's mode, flattened; a loss comes before its logits."""
        with self._call() as call, torch.no_grad():
            found = _tensors(call(*self._arguments(inputs)))
            if self.trains and len(found) > 1:
                return (_array(_loss(found, inputs)),)
            loss = [_loss(found, inputs)] if len(inputs) > len(self._input_names()) else []
            return tuple(_array(tensor) for tensor in (*loss, *found))

    def gradients(
        self, model: Model, inputs: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the loss in the reference's mode, and every trained weight's gradient by name.

        A weight that the loss does not depend on has a gradient of zeros. `.grad` is left alone.
        """
        loss, found = self._differentiated(model, inputs)
        return _array(loss), {name: _array(gradient) for name, gradient in found.items()}

    def exact_gradients(self, model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """Return every trained weight's gradient in double precision; see `gradients`.

        Weights, buffers and inputs are widened; what the module rounds on its way, to a type that it names,
        stays rounded. None where it does not run so.
        """
        widened = {
            name: np.asarray(array, np.float64) if "float" in str(array.dtype) else array
            for name, array in inputs.items()
        }
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            _, found = self._differentiated(model, widened, _in_double(self.module))
        except Exception:  # foreign code: the user's own module, in a type that it was not written for
            logger.debug("%s does not run in double precision", model.name, exc_info=True)
            return None
        finally:
            torch.set_default_dtype(before)
        return {name: _array(gradient) for name, gradient in found.items()}

    def _differentiated(
        self,
        model: Model,
        inputs: Mapping[str, np.ndarray],
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss and gradients by weight; `state` stands in for tensors of the module by name."""
        groups = self._trained(model, state or {})
        weights = [weight for group in groups.values() for weight in group]
        # A reentrant checkpoint cannot be differentiated for weights alone.
        with self._call(state) as call, torch.enable_grad(), checkpoints_inlined():
            loss = _loss(_tensors(call(*self._arguments(inputs))), inputs)
            found = (
                torch.autograd.grad(loss, weights, allow_unused=True)
                if loss.requires_grad and weights
                else [None] * len(weights)
            )
        gradient_of = {
            id(weight): torch.zeros_like(weight) if gradient is None else gradient
            for weight, gradient in zip(weights, found, strict=True)
        }
        return loss, {
            name: torch.stack([gradient_of[id(weight)] for weight in group]).sum(0)
            for name, group in groups.items()
        }

    def with_own_backwards(self, model: Model) -> Model:
        """Return the model exported again, with functions that have a backward of their own kept whole.

        Raises:
            UnsupportedOperatorError: a function cannot be kept; says why.
        """
        functions = own_functions(self.module, self.examples) if self.mode == "eval" else ()
        if not functions or self.keeps_functions:
            return model
        program = self._export_with(functions, model.name)
        imported = import_program(program, model.name, called=frozenset(model.called))
        reference = replace(self, program=program, keeps_functions=True)
        return replace(
            imported,
            inputs=reference.with_ranges(imported.inputs),
            cuts=model.cuts,
            reference=reference,
            called=model.called,
            notes=model.notes,
        )

    def _export_with(self, functions: Sequence[type], name: str) -> torch.export.ExportedProgram:
        names = ", ".join(each.__qualname__ for each in functions)
        modes = [(each, each.training) for each in self.module.modules()]

        def run() -> None:
            with in_mode(self.module, training=False) as call:
                call(*self.examples)

        try:
            with quiet_export(), functions_kept(functions, run):
                program = decompose(export_module(self.module.eval(), self.examples), name, shapes={})
            missed = {each.__name__ for each in functions} - own_functions_of(program)
            if missed:
                raise ValueError(f"{sorted(missed)[0]} is not called alike twice")
        except Exception as error:  # foreign code: torch traces the module and its functions by running them
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UnsupportedOperatorError(
                f"the model has a backward of its own ({names}), which cannot be kept as a call of torch: "
                f"{reason}; write its forward in operators that autograd differentiates, or tune it with "
                "--infer"
            ) from error
        finally:
            for each, training in modes:
                each.training = training
        return program

    def with_train_mode(self, model: Model) -> Model:
        """Return the model exported again as it trains: with the statistics of the batch, and with dropout.

        The masks of dropout are its last inputs. It stays as it is where these two are not all that it does
        otherwise while training, where masks cannot be given, and beside functions with a backward of their
        own.
        """
        if self.mode != "eval" or self.keeps_functions:
            return model
        behaviour = observe_training(self.module, self.examples)
        if not covers(behaviour.differences) or behaviour.own_backwards:
            return model
        masked = (
            give_masks(self.module, self.examples)
            if draws(behaviour.differences)
            else MaskedModule(module=self.module, examples=self.examples, probabilities={})
        )
        if masked is None:
            return model
        modes = [(each, each.training) for each in masked.module.modules()]
        try:
            with quiet_export(), _fixed_momentum(masked.module):
                exported = export_module(masked.module.train(), masked.examples)
                program = decompose(exported, model.name, shapes={})
            imported = import_program(program, model.name, called=frozenset(model.called))
        except Exception:  # foreign code: torch traces the module by running it, in its mode for training
            logger.debug("%s cannot be exported as it trains", model.name, exc_info=True)
            return model
        finally:
            for each, training in modes:
                each.training = training
        reference = replace(
            self,
            module=masked.module,
            examples=masked.examples,
            program=program,
            mode="train",
            masks=masked.probabilities,
            train_acts=behaviour.differences,
        )
        return replace(
            imported,
            inputs=reference.with_ranges(imported.inputs),
            cuts=model.cuts,
            reference=reference,
            called=model.called,
            notes=model.notes,
        )

    def with_blocked_gradients(self, model: Model) -> Model:
        """Return the model imported again with gradients that end where the code detaches, if it does."""
        if self.blocks or not blocked_nodes(self.program):
            return model
        reference = replace(self, blocks=True)
        return replace(reference.with_calls(model, model.called), notes=model.notes)

    def prepare_training(self) -> tuple[Reference, tuple[str, ...]]:
        """Return the reference in the mode that is compared, and a sentence on what training leaves out.

        Raises:
            UnsupportedOperatorError: a function has a backward of its own, which the export loses.
        """
        if self.mode == "export":
            return replace(self, trains=True), ()
        if self.train_acts:
            return replace(self, trains=True), _train_notes(self.train_acts)
        behaviour = observe_training(self.module, self.examples)
        told = behaviour.only_trained if not behaviour.differences else ()
        kept = self.keeps_functions and (not behaviour.only_trained or bool(told))
        if behaviour.own_backwards and not (kept or behaviour.own_backwards == told):
            raise UnsupportedOperatorError(
                f"the model has a backward of its own ({'; '.join(behaviour.own_backwards)}), which its "
                "program does not hold, so that its gradients would be wrong; write its forward in operators "
                "that autograd differentiates, or tune it with --infer"
            )
        if not behaviour.differences:
            note = (
                f"while training the model also has a backward of its own ({'; '.join(told)}): it is tuned "
                "with the derivative of what it computes in eval mode, and compared with its own gradients"
            )
            return replace(self, mode="train", trains=True), (note,) if told else ()
        return replace(self, trains=True), (
            f"while training the model also has {'; '.join(behaviour.differences)}: it is tuned, and its "
            "loss and gradients are compared, as in eval mode",
        )

    def with_calls(self, model: Model, operators: Sequence[str]) -> Model:
        """Import the program again, with some operators as calls of torch."""
        imported = import_program(self.program, model.name, called=frozenset(operators), blocks=self.blocks)
        return replace(
            imported,
            inputs=self.with_ranges(imported.inputs),
            cuts=model.cuts,
            reference=self,
            called=tuple(operators),
        )

    def node_of(self, model: Model, variable: str) -> str:
        """Return the name of the node that a variable of the import was emitted for; empty if none."""
        nodes = node_by_variable(self.program, called=frozenset(model.called), blocks=self.blocks)
        return nodes.get(variable, "")

    def find_wrong(
        self, model: Model, inputs: Mapping[str, np.ndarray], run: Run, limit: float
    ) -> tuple[str, str] | None:
        """Return the first operator that the import has wrong, with its layer; None if each is right."""
        nodes, module = translate_nodes(self.program, called=frozenset(model.called))
        parameters = [self._state()[name] for name in _parameter_names(module, len(self._input_names()))]
        found = run(module, [*(inputs[name] for name in self._input_names()), *parameters])
        recorder = _Recorder(self.program, nodes)
        with self._call(), torch.no_grad():
            recorder.run(*_program_arguments(self.program, self._arguments(inputs)))
        for node, array in zip(nodes, found, strict=True):
            found_here = compare_tensor(place_of(node), array, recorder.values[node], infinity_agrees=True)
            if not found_here.is_within(limit):
                return _maker(node).name, f"{found_here.tensor}, which {found_here.describe(limit)},"
        return None

    def _call(self, state: Mapping[str, torch.Tensor] | None = None) -> Any:
        training = None if self.mode == "export" else self.mode == "train"
        return in_mode(self.module, training=training, state=state)

    def _input_names(self) -> tuple[str, ...]:
        """Return names of the inputs that are tensors, in order."""
        specs = self.program.graph_signature.input_specs
        return tuple(
            spec.arg.name
            for spec in specs
            if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        )

    def _examples(self) -> dict[str, np.ndarray]:
        leaves = [leaf for leaf in pytree.tree_leaves(self.examples) if isinstance(leaf, torch.Tensor)]
        return {name: _array(leaf) for name, leaf in zip(self._input_names(), leaves, strict=False)}

    def _arguments(self, inputs: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        """Return the module's arguments with the given tensors in the places of the examples'."""
        leaves, structure = pytree.tree_flatten(self.examples)
        names = iter(self._input_names())
        given = [
            as_tensor(inputs[next(names)]).to(leaf.device) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        return tuple(pytree.tree_unflatten(given, structure))

    def _trained(self, model: Model, state: Mapping[str, torch.Tensor]) -> dict[str, list[torch.Tensor]]:
        """Return the tensors of each trained weight: one, or several where a file holds a tied one twice.

        `state` stands in for tensors of the module by name.
        """
        own = dict(self.module.named_parameters(remove_duplicate=False))
        parameters = {name: state.get(name, parameter) for name, parameter in own.items()}
        aliases = {name: group for group in model.tied for name in group}
        groups = {}
        for name in model.parameter_names:
            members = [parameters[each] for each in aliases.get(name, (name,)) if each in parameters]
            trained = list({id(each): each for each in members if each.requires_grad}.values())
            if trained:
                groups[name] = trained
        return groups

    def _state(self) -> dict[str, np.ndarray]:
        """Return the program's tensors by name, without copies."""
        state = {**self.program.constants, **self.program.state_dict}
        return {name: _array(value) for name, value in state.items() if isinstance(value, torch.Tensor)}

    def _sources(self) -> list[Path]:
        """Return the files of the user's own that the module's forwards are written in."""
        torchs = Path(str(torch.__file__)).parent
        codes = (getattr(type(each).forward, "__code__", None) for each in self.module.modules())
        found = {Path(code.co_filename) for code in codes if code is not None}
        return sorted(path for path in found if torchs not in path.parents and path.is_file())


@contextmanager
def _fixed_momentum(module: torch.nn.Module) -> Iterator[None]:
    """Let running statistics depend on no count: an export takes no extents and factors from values."""
    cumulative = [each for each in module.modules() if getattr(each, "momentum", 0.0) is None]
    try:
        for each in cumulative:
            each.momentum = 0.1  # type: ignore[assignment]  # of a batch normalisation
        yield
    finally:
        for each in cumulative:
            each.momentum = None  # type: ignore[assignment]  # as above


def _train_notes(acts: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on the dropout and one on the batch normalisation of a program that trains."""
    drops = [act for act in acts if not act.startswith(BATCH_NORM)]
    norms = [act for act in acts if act.startswith(BATCH_NORM)]
    notes = []
    if drops:
        notes.append(
            f"while training the model also has {'; '.join(drops)}: its masks are inputs, drawn from the "
            "seed for each micro-batch, and its loss and gradients are compared with equal masks"
        )
    if norms:
        notes.append(
            f"while training the model also has {'; '.join(norms)}: each micro-batch is normalised by its "
            "own statistics, and running ones are not kept; find them for inference after training, by "
            "torch.optim.swa_utils.update_bn"
        )
    return tuple(notes)


def _in_double(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's floating-point tensors in double precision by name; shared ones stay shared."""
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    made: dict[int, torch.Tensor] = {}
    for tensor in own.values():
        if tensor.is_floating_point() and id(tensor) not in made:
            made[id(tensor)] = tensor.detach().double().requires_grad_(tensor.requires_grad)
    return {name: made[id(tensor)] for name, tensor in own.items() if id(tensor) in made}


def _maker(node: torch.fx.Node) -> torch.fx.Node:
    """Return the call that makes a node's value: a tensor that is picked from several is made by another."""
    while node.target is operator.getitem:
        (node,) = node.all_input_nodes
    return node


class _Recorder(torch.fx.Interpreter):
    """Runs an exported graph and keeps the values of some nodes."""

    def __init__(self, program: torch.export.ExportedProgram, nodes: Sequence[torch.fx.Node]) -> None:
        super().__init__(program.graph_module)
        self.values: dict[torch.fx.Node, np.ndarray] = {}
        self._wanted = frozenset(nodes)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, and keep what it gives."""
        result = super().run_node(n)
        if n in self._wanted:
            self.values[n] = _array(result).copy()
        return result


def _program_arguments(program: torch.export.ExportedProgram, arguments: Sequence[Any]) -> list[Any]:
    """Return what the placeholders of a program's graph stand for, in order."""
    user = iter(pytree.tree_leaves(tuple(arguments)))
    state = {**program.state_dict, **program.constants}
    return [
        next(user) if spec.kind is InputKind.USER_INPUT else state[spec.target]
        for spec in program.graph_signature.input_specs
    ]


def _parameter_names(module: IRModule, num_inputs: int) -> list[str]:
    return [parameter.name for parameter in module["main"].params[num_inputs:]]


def _drawn(spec: InputSpec, example: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return values like an example's: normal numbers, or whole ones from its least to what makes sense."""
    if spec.dropout is not None:
        return draw_mask(spec, rng)
    if "float" in spec.dtype:
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    if spec.dtype == "bool":
        return rng.integers(2, size=spec.shape).astype(spec.dtype)
    low = 0 if example is None or not example.size else min(0, int(example.min()))
    high = 1 if example is None or not example.size else int(example.max()) + 1
    return rng.integers(low, max(spec.high, high), size=spec.shape).astype(spec.dtype)


def _loss(outputs: Sequence[torch.Tensor], inputs: Mapping[str, np.ndarray]) -> torch.Tensor:
    """Return the module's own loss or losses' sum, or the mean cross-entropy that is put on its logits."""
    if len(outputs) > 1:
        return torch.stack([each for each in outputs if each.is_floating_point() and not each.shape]).sum()
    (output,) = outputs
    if not output.shape:
        return output
    labels = as_tensor(list(inputs.values())[-1]).to(output.device)
    return cross_entropy(output.reshape(-1, output.shape[-1]), labels.reshape(-1))


def _tensors(results: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _array(tensor: torch.Tensor) -> np.ndarray:
    return as_array(tensor)


def _hash_array(digest: Any, array: np.ndarray) -> None:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(content), _CHUNK):
        digest.update(content[start : start + _CHUNK].tobytes())
