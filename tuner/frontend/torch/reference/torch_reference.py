"""The user's module as the reference of its import; see `tuner.frontend.model.Reference`.

A comparison is known again by its code, its weights, its examples and the import. Checked in
tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.frontend.model import InputSpec, Model, Reference, Run
from tuner.frontend.torch.blocked_gradients import blocked_nodes
from tuner.frontend.torch.dropout import BATCH_NORM, MaskedModule, covers, draws, give_masks
from tuner.frontend.torch.importer import import_program, node_by_variable
from tuner.frontend.torch.reference.execution import exact_gradients_of, gradients_of, outputs_of
from tuner.frontend.torch.reference.inputs import draw_like, fitting_examples, has_nan, reach_examples
from tuner.frontend.torch.reference.training_exports import export_as_it_trains, export_with_own_backwards
from tuner.frontend.torch.reference.user_module import UserModule
from tuner.frontend.torch.reference.wrong_operator import find_wrong_operator
from tuner.frontend.torch.training import observe_training, own_functions
from tuner.frontend.torch.written_tensors import describe_state, written_weights
from tuner.graph.structure import Structure

logger = logging.getLogger(__name__)


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
        keeps_state: whether what the program writes is among the model's inputs and results.
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
    keeps_state: bool = True

    @property
    def label(self) -> str:
        """Who runs the program."""
        return "torch-reference"

    @property
    def written_weights(self) -> tuple[str, ...]:
        """Names of the weights that the module changes when it runs."""
        return written_weights(self.program)

    def fingerprint(self, model: Model) -> str:
        """Name the module's code and weights, its exported graph, and what was imported."""
        return _fingerprint_of(self._user, model)

    def with_ranges(self, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
        """Return inputs whose whole numbers reach to the examples', where the program does not bound them."""
        return reach_examples(inputs, self._user.examples_by_name, self.masks)

    def draw(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
        """Return inputs by name that the module gives numbers for, and those numbers.

        Inputs are drawn; where the module takes none of those, they are the user's examples.

        Raises:
            TunerError: it gives none for either.
        """
        rng = np.random.default_rng([seed, 2])
        examples = self._user.examples_by_name
        drawn = {spec.name: draw_like(spec, examples.get(spec.name), rng) for spec in inputs}
        reason = ""
        for candidate in (drawn, drawn | self.examples_of(inputs)):
            try:
                found = self.outputs(candidate)
            except Exception as error:  # foreign code: the user's own module
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                continue
            if not has_nan(found):
                return candidate, found
            reason = "its outputs hold NaN"
        raise TunerError(
            f"{type(self.module).__name__} gives no numbers under torch for its example inputs ({reason}), "
            "so that its import cannot be compared; give example inputs that it works for"
        )

    def examples_of(self, inputs: Sequence[InputSpec]) -> dict[str, np.ndarray]:
        """Return the examples of those inputs that have their shapes, by name; labels have none."""
        return fitting_examples(inputs, self._user.examples_by_name)

    def own(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]] | None:
        """Return the user's examples, with labels that are drawn, and what the module gives for them.

        None for a program from a file, whose examples are not read, where the examples are of other shapes,
        and where the module gives no numbers for them.
        """
        rng = np.random.default_rng([seed, 3])
        examples, names = self._user.examples_by_name, self._user.input_names
        shapes = {name: example.shape for name, example in examples.items()}
        fits = all(shapes.get(spec.name) == spec.shape for spec in inputs if spec.name in names)
        if self.mode == "export" or not fits:
            return None
        values = {spec.name: examples.get(spec.name, draw_like(spec, None, rng)) for spec in inputs}
        try:
            found = self.outputs(values)
        except Exception:  # foreign code: the user's own module, in another mode than it was traced in
            return None
        return None if has_nan(found) else (values, found)

    def outputs(self, inputs: Mapping[str, np.ndarray], *, calls: int = 1) -> tuple[np.ndarray, ...]:
        """Return what the module gives in the reference's mode, flattened, in the last of so many calls.

        A loss comes before its logits, and new values of what is written, where they are kept, come last.
        """
        return outputs_of(self._user, inputs, trains=self.trains, calls=calls)

    def gradients(
        self, model: Model, inputs: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the loss in the reference's mode, and every trained weight's gradient by name.

        A weight that the loss does not depend on has a gradient of zeros. `.grad` is left alone.
        """
        return gradients_of(self._user, model, inputs)

    def exact_gradients(self, model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """Return every trained weight's gradient in double precision; see `gradients`.

        Weights, buffers and inputs are widened; what the module rounds on its way, to a type that it names,
        stays rounded. None where it does not run so.
        """
        return exact_gradients_of(self._user, model, inputs)

    def without_state(self, model: Model) -> Model:
        """Return the model without inputs and results for what its program writes.

        Raises:
            UnsupportedOperatorError: its other results depend on a buffer that it writes.
        """
        reference = replace(self, keeps_state=False)
        if not model.state:
            return replace(model, reference=reference)
        names = ", ".join(model.state)
        left_out = f"forward also writes {names}: training does not keep what it writes"
        told = [note for note in model.notes if note != describe_state(model.state)]
        return replace(reference.with_calls(model, model.called), notes=(*told, left_out))

    def with_own_backwards(self, model: Model) -> Model:
        """Return the model exported again, with functions that have a backward of their own kept whole.

        Raises:
            UnsupportedOperatorError: a function cannot be kept; says why.
        """
        functions = own_functions(self.module, self.examples) if self.mode == "eval" else ()
        if not functions or self.keeps_functions:
            return model
        program = export_with_own_backwards(self.module, self.examples, functions, model.name)
        imported = import_program(
            program, model.name, called=frozenset(model.called), keeps_state=self.keeps_state
        )
        reference = replace(self, program=program, keeps_functions=True)
        return reference._taking_over(imported, model)

    def _taking_over(self, imported: Model, model: Model) -> Model:
        """Return what was imported anew, compared with this program, with what a model had been given."""
        return replace(
            imported,
            inputs=self.with_ranges(imported.inputs),
            cuts=model.cuts,
            reference=self,
            called=model.called,
            notes=model.notes,
        )

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
        try:
            program = export_as_it_trains(masked, model.name)
            imported = import_program(
                program, model.name, called=frozenset(model.called), keeps_state=self.keeps_state
            )
        except Exception:  # foreign code: torch traces the module by running it, in its mode for training
            logger.debug("%s cannot be exported as it trains", model.name, exc_info=True)
            return model
        reference = replace(
            self,
            module=masked.module,
            examples=masked.examples,
            program=program,
            mode="train",
            masks=masked.probabilities,
            train_acts=behaviour.differences,
        )
        return reference._taking_over(imported, model)

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
        imported = import_program(
            self.program,
            model.name,
            called=frozenset(operators),
            blocks=self.blocks,
            keeps_state=self.keeps_state,
        )
        return replace(
            imported,
            inputs=self.with_ranges(imported.inputs),
            cuts=model.cuts,
            reference=self,
            called=tuple(operators),
        )

    def node_of(self, model: Model, variable: str) -> str:
        """Return the name of the node that a variable of the import was emitted for; empty if none."""
        nodes = node_by_variable(
            self.program, called=frozenset(model.called), blocks=self.blocks, keeps_state=self.keeps_state
        )
        return nodes.get(variable, "")

    def find_wrong(
        self, model: Model, inputs: Mapping[str, np.ndarray], run: Run, limit: float
    ) -> tuple[str, str] | None:
        """Return the first operator that the import has wrong, with its layer; None if each is right."""
        return find_wrong_operator(self._user, inputs, run, called=frozenset(model.called), limit=limit)

    @property
    def _user(self) -> UserModule:
        """The module as it is run in the reference's mode."""
        return UserModule(
            module=self.module,
            examples=self.examples,
            program=self.program,
            mode=self.mode,
            keeps_state=self.keeps_state,
        )


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


_CHUNK = 1 << 24
"""Bytes of a tensor that are hashed at a time."""


def _fingerprint_of(user: UserModule, model: Model) -> str:
    """Name the module's code and weights, its exported graph, and what was imported."""
    digest = hashlib.sha256(torch.__version__.encode())
    digest.update(Structure(model.module).fingerprint.encode())
    digest.update(str(user.program.graph_module.code).encode())
    for path in _sources(user.module):
        digest.update(path.read_bytes())
    for name, example in sorted(user.examples_by_name.items()):
        digest.update(f"{name} {example.dtype} {example.shape}".encode())
        _hash_array(digest, example)
    hashed: set[int] = set()
    for name, array in [*sorted(model.parameters.items()), *sorted(user.tensors.items())]:
        address = array.__array_interface__["data"][0]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        if address not in hashed:  # The import shares the memory of most tensors.
            hashed.add(address)
            _hash_array(digest, array)
    return digest.hexdigest()[:32]


def _sources(module: torch.nn.Module) -> list[Path]:
    """Return the files of the user's own that the module's forwards are written in."""
    torchs = Path(str(torch.__file__)).parent
    codes = (getattr(type(each).forward, "__code__", None) for each in module.modules())
    found = {Path(code.co_filename) for code in codes if code is not None}
    return sorted(path for path in found if torchs not in path.parents and path.is_file())


def _hash_array(digest: Any, array: np.ndarray) -> None:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(content), _CHUNK):
        digest.update(content[start : start + _CHUNK].tobytes())
