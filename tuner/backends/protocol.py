"""The interface of a backend: a source of candidate partitions, and a lowering for the chosen ones.

A partition is a private Relax function that carries the attribute `PARTITION_ATTRIBUTE`
(tuner/graph/relax_types.py), the name of the backend that runs it. Lowering visits each backend once with all
of its functions; a single candidate is measured through exactly the same path as a whole model. A custom
backend is one module that satisfies `Backend` (docs/backends.md); every backend passes
tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tvm import relax

from tuner.backends.torch.operators import ONLY_TORCH, holds_torch_call
from tuner.graph.relax_types import IRModule, RelaxFunction, weights_of
from tuner.targets.target import Target

if TYPE_CHECKING:
    from tuner.rules.protocol import Rule


@runtime_checkable
class TuningBackend(Protocol):
    """A backend whose lowering takes longer than compiling, because it measures or searches."""

    @property
    def tuning_timeout_s(self) -> float:
        """Seconds that lowering one partition may take beyond compiling it."""
        ...


@runtime_checkable
class PackingBackend(Protocol):
    """A backend whose speed depends on which parameters are weights, because it packs those once."""

    @property
    def packs_weights(self) -> bool:
        """Say that it does; its records are kept apart by what was packed."""
        ...


@runtime_checkable
class ContiguousBackend(Protocol):
    """A backend whose partitions may be of any length, and which gains by longer ones."""

    @property
    def takes_contiguous_subgraphs(self) -> bool:
        """Say that it does; neighbouring partitions of it are tried as one."""
        ...


@runtime_checkable
class CompositeBackend(Protocol):
    """A backend that is told which of its calls the search chose, by functions inside of a partition."""

    @property
    def takes_composites(self) -> bool:
        """Say that it does; labelled calls then come as local functions with their label as `Composite`."""
        ...


@runtime_checkable
class TorchCallingBackend(Protocol):
    """A backend that runs what the importer kept as calls of torch; all others refuse that."""

    @property
    def runs_torch_calls(self) -> bool:
        """Say that it does."""
        ...


class Backend(Protocol):
    """Runs sub-graphs on a target."""

    @property
    def name(self) -> str:
        """Short name, unique among backends, as records and `--backends` use it."""
        ...

    @property
    def settings(self) -> str:
        """What changes its results beside its name, such as `trials=64`; part of a record's key."""
        ...

    @property
    def reference(self) -> str:
        """Text from which `tuner.backends.registry.backends_for` makes it again in another process.

        A registered name with its settings (`metaschedule?trials=64`), or `module:object`.
        """
        ...

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Distributions beside TVM, and kernels of its own, that decide how fast it is, with versions.

        Sorted by name. A record belongs to them: with another version, programs are measured again.
        """
        ...

    def unavailable_reason(self, target: Target) -> str | None:
        """Say in one sentence why it cannot run on the target with this installation; None where it can."""
        ...

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes its candidate partitions."""
        ...

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say why it cannot run an extracted function (shapes, dtypes, attributes); None where it can."""
        ...

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with its functions replaced by code that TVM's default pipeline accepts.

        Args:
            module: Relax module in which the named private functions carry this backend's name.
            functions: names of the functions to lower, all of this backend.
        """
        ...


def refusal_of(backend: Backend, function: RelaxFunction, target: Target) -> str | None:
    """Say why a backend cannot run an extracted function; None where it can.

    Torch calls are refused here for every backend that does not say that it runs them, so that none has to
    know of them.
    """
    if holds_torch_call(function) and not isinstance(backend, TorchCallingBackend):
        return ONLY_TORCH
    return backend.refusal(function, target)


def settings_for(backend: Backend, function: RelaxFunction) -> str:
    """Return the settings under which records of a partition are kept: the backend's, and what is bound once.

    Bound weights make another program where the backend packs them, and where an operator reads nothing else.
    """
    weights = weights_of(function)
    packs = isinstance(backend, PackingBackend) and backend.packs_weights
    if not weights or not (packs or _has_constant_operator(function, weights)):
        return backend.settings
    bound = f"bound={','.join(map(str, weights))}"
    return f"{backend.settings};{bound}" if backend.settings else bound


def _has_constant_operator(function: RelaxFunction, weights: Sequence[int]) -> bool:
    """Say whether an operator reads weights and nothing that changes."""
    known = {function.params[position] for position in weights}
    bindings = (binding for block in function.body.blocks for binding in block.bindings)
    return any(
        (read := set(relax.analysis.free_vars(binding.value))) and read <= known for binding in bindings
    )
