"""The common result of all front ends: one Relax function, and the origin of each of its bindings.

The function is called `main`, has one data-flow block, and takes the model's inputs first and its parameters
after them. It returns one tensor or a flat tuple of tensors; for training, one scalar, the loss. Passes that
change bindings run after a model has been cut, so `module_paths` stays true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from tuner.numerical_error import Deviation
from tuner.runtime.call_structure import CallStructure

IRModule: TypeAlias = Any
"""A `tvm.IRModule`; TVM ships no types."""

_MADE_UP = re.compile(r"(lv|gv)\d*")
"""Names that Relax's builder gives to variables that were bound without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of a model.

    Attributes:
        shape: static extents.
        dtype: such as `float32` or `int64`.
        high: for integers, one more than the largest value that makes sense (a vocabulary's size).
        dropout: of a mask, the probability that a value is 0; others are 1/(1 − p). None for other inputs.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    high: int = 2
    dropout: float | None = None


Run: TypeAlias = Callable[[IRModule, Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Runs a module's `main` on inputs, in order, and gives its outputs, in order."""


class Reference(Protocol):
    """The program that a model was imported from, run by its own framework: what the import must equal.

    Attributes:
        label: who runs it, such as `torch-reference`; what records of comparisons have for a backend.
        mode: the mode that it runs in, such as `train`.
        written_weights: names of the weights that it changes when it runs; the model holds them as they were.
    """

    @property
    def label(self) -> str: ...  # noqa: D102 - see the class

    @property
    def mode(self) -> str: ...  # noqa: D102 - see the class

    @property
    def written_weights(self) -> tuple[str, ...]: ...  # noqa: D102 - see the class

    def fingerprint(self, model: Model) -> str:
        """Name what a comparison depends on: the program, its code, its weights, and the imported model."""
        ...

    def draw(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
        """Return inputs by name that the program gives numbers for, and those numbers; see `outputs`.

        Raises:
            TunerError: it gives none.
        """
        ...

    def examples_of(self, inputs: Sequence[InputSpec]) -> dict[str, np.ndarray]:
        """Return the user's examples of those inputs that have their shapes, by name; labels have none."""
        ...

    def own(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]] | None:
        """Return the inputs that the user gave, by name, and what the program gives for them; see `outputs`.

        Labels are drawn. None where there are no such inputs, or the program gives no numbers for them.
        """
        ...

    def outputs(self, inputs: Mapping[str, np.ndarray], *, calls: int = 1) -> tuple[np.ndarray, ...]:
        """Return what the program gives for inputs by name, flattened, in the last of so many calls.

        Where a loss was put on top (labels are among the inputs), it comes first. Of a model with state, its
        new values come last. Each call finds what the one before wrote.
        """
        ...

    def without_state(self, model: Model) -> Model:
        """Return the model, without a loss, with nothing that its program writes among inputs and results.

        Raises:
            UnsupportedOperatorError: its other results depend on what it writes.
        """
        ...

    def gradients(
        self, model: Model, inputs: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the loss and every trained weight's gradient by name; labels stand among the inputs."""
        ...

    def exact_gradients(self, model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """Return every trained weight's gradient in double precision; None where the program has none."""
        ...

    def with_own_backwards(self, model: Model) -> Model:
        """Return the model, without a loss, with functions of a backward of their own as calls of torch.

        Raises:
            UnsupportedOperatorError: such a function cannot be one.
        """
        ...

    def with_train_mode(self, model: Model) -> Model:
        """Return the model, without a loss, with the dropout and the batch normalisation that it trains with.

        Masks of dropout are its last inputs. A model without either, or whose program cannot hold all that it
        does while training, stays as it is.
        """
        ...

    def with_blocked_gradients(self, model: Model) -> Model:
        """Return the model, without a loss, with `grad.no_grad` where the code blocks gradients."""
        ...

    def prepare_training(self) -> tuple[Reference, tuple[str, ...]]:
        """Return what training is compared with, and a sentence on each thing that is left out there.

        Raises:
            UnsupportedOperatorError: a part's own backward is lost in the import; names it.
        """
        ...

    def find_wrong(
        self, model: Model, inputs: Mapping[str, np.ndarray], run: Run, limit: float
    ) -> tuple[str, str] | None:
        """Return the first operator whose result differs by more than the limit; None if none does.

        Returns:
            Its name in the program, and what it is, where, and by how much it differs.
        """
        ...

    def node_of(self, model: Model, variable: str) -> str:
        """Return the operator of the program that a variable of the import was emitted for; empty if none.

        Args:
            model: as it was imported, or with a loss on top.
            variable: its name in `main`.
        """
        ...

    def with_calls(self, model: Model, operators: Sequence[str]) -> Model:
        """Return the model, without a loss, with these operators of the program as calls of torch.

        Args:
            model: as it was imported, or with a loss on top.
            operators: their names in the program.

        Raises:
            UnsupportedOperatorError: one of them cannot be a call.
        """
        ...


class Source(Protocol):
    """The file that a model was imported from, run by a runtime of others; see `Reference`.

    Its outputs are compared with the import's once. Everything after is compared with the import.

    Attributes:
        label: who runs it, such as `onnxruntime-reference`.
        mode: see `Reference`.
        max_flops: floating-point operations of the largest model that is worth being run by it.
    """

    @property
    def label(self) -> str: ...  # noqa: D102 - see `Reference`

    @property
    def mode(self) -> str: ...  # noqa: D102 - see `Reference`

    @property
    def max_flops(self) -> int: ...  # noqa: D102 - see the class

    def load(self) -> Any:
        """Return the file as it is, with static inputs: an `onnx.ModelProto`.

        Raises:
            NotComparableError: it is gone, or another one.
        """
        ...

    def fingerprint(self, model: Model) -> str:
        """Name what a comparison depends on."""
        ...

    def draw(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
        """Return inputs by name that the program gives numbers for, and those numbers.

        Raises:
            NotComparableError: it gives none; says why.
        """
        ...

    def own(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]] | None:
        """Return the inputs that the user gave, and what the program gives for them."""
        ...

    def locate(self, model: Model, inputs: Mapping[str, np.ndarray], run: Run, limit: float) -> str:
        """Name the first operator whose result differs by more than the limit; empty if none is found."""
        ...

    def between_roundings(self, model: Model, inputs: Mapping[str, np.ndarray], run: Run) -> Deviation | None:
        """Return the largest deviation of an operator, each given what the program itself rounded before it.

        A whole number that is one step off, of few, is no deviation: its value lies beside a half.

        Returns:
            None where the program rounds nothing to whole numbers.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model in Relax.

    Attributes:
        name: as the user named it, such as `gpt2:small`.
        module: IRModule whose `main` is the model (see the module docstring).
        inputs: the leading parameters of `main`, in order.
        parameter_names: names of the remaining parameters of `main`, in order.
        module_paths: dotted path of the layer that each binding of `main` belongs to, in order of bindings;
            `""` where it belongs to none.
        tied: groups of parameter names that are one tensor under several names.
        parameters: values by name where the model file holds them; others are drawn at random.
        training: whether `main` returns a loss.
        cuts: names of the modules that a pipeline stage ends after, where the model's own code marked some.
        untrained: names of parameters that are no weights or do not train, such as running statistics.
        padding_rows: row of a table, by the parameter's name, that its look-ups give no gradient
            (`padding_idx`).
        reference: what the model was imported from; None for those that were written here.
        source: the file that it was imported from, where a runtime of others runs that; None elsewhere.
        before_loss: the model before a loss was put on top; None where it has its own, or none.
        notes: a sentence on each thing in which the model that is tuned is not the user's own.
        called: operators of the reference's program, by name, that are calls of torch because what their
            converter made of them gave other values, or has no gradient.
        state: names of the inputs that the program writes; their new values are its last results, in order.
        call: how the user's own program is called; None where it takes its inputs in order and gives its
            results so.
    """

    name: str
    module: IRModule
    inputs: tuple[InputSpec, ...]
    parameter_names: tuple[str, ...]
    module_paths: tuple[str, ...]
    tied: tuple[tuple[str, ...], ...] = ()
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    training: bool = False
    cuts: tuple[str, ...] = ()
    untrained: frozenset[str] = frozenset()
    padding_rows: Mapping[str, int] = field(default_factory=dict)
    reference: Reference | None = field(default=None, compare=False, repr=False)
    source: Source | None = field(default=None, compare=False, repr=False)
    before_loss: Model | None = field(default=None, compare=False, repr=False)
    notes: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    call: CallStructure | None = None

    def layers_by_variable(self) -> dict[str, str]:
        """Return the path of its layer by the name of each variable that `main` binds.

        Where no binding has one, as in a file whose nodes tell of no modules, the name of the node that a
        binding was made of stands for it: the bindings in front of a named one are the same node's.
        """
        bindings = [binding for block in self.module["main"].body.blocks for binding in block.bindings]
        names = [str(binding.var.name) for binding in bindings]
        paths = self.module_paths
        if not any(paths):
            paths = _own_names(names)
        return {name: path for name, path in zip(names, paths, strict=True) if path}


def _own_names(variables: Sequence[str]) -> tuple[str, ...]:
    """Return for each variable its name, or the next one's where the builder made it up."""
    found: list[str] = []
    name = "output"
    for variable in reversed(variables):
        name = name if _MADE_UP.fullmatch(variable) else variable
        found.append(name)
    return tuple(reversed(found))
