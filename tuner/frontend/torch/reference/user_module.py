"""The user's torch module as it is run: its arguments and its tensors by name, in one mode.

Checked in tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils import _pytree as pytree

from tuner.frontend.torch.arrays import as_array, as_tensor
from tuner.frontend.torch.training import in_mode
from tuner.frontend.torch.written_tensors import WrittenTensor, written_tensors, written_weights


@dataclass(frozen=True, kw_only=True)
class UserModule:
    """A torch module with example inputs, and the program that was exported of it.

    Attributes:
        module: stays in the mode that it is in, with the buffers that it has.
        examples: its inputs, as the user gave them.
        program: the export that was imported.
        mode: `eval`, `train`, or `export` for a program that was exported before and has but one mode.
        keeps_state: whether what the program writes is among the inputs and results.
    """

    module: torch.nn.Module
    examples: tuple[Any, ...]
    program: torch.export.ExportedProgram
    mode: str
    keeps_state: bool = True

    @property
    def written(self) -> tuple[WrittenTensor, ...]:
        """What the program writes, where it is kept."""
        return written_tensors(self.program) if self.keeps_state else ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs of the imported model, in order: the user's tensors, then written buffers."""
        return (*self._given_names, *(each.name for each in self.written if each.target))

    @property
    def _given_names(self) -> tuple[str, ...]:
        specs = self.program.graph_signature.input_specs
        return tuple(
            spec.arg.name
            for spec in specs
            if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        )

    @property
    def examples_by_name(self) -> dict[str, np.ndarray]:
        """The examples that are tensors, by their names as inputs, and what written buffers hold."""
        leaves = [leaf for leaf in pytree.tree_leaves(self.examples) if isinstance(leaf, torch.Tensor)]
        given = {name: as_array(leaf) for name, leaf in zip(self._given_names, leaves, strict=False)}
        held = {each.name: as_array(self._tensor(each.target)) for each in self.written if each.target}
        return {**given, **held}

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The program's tensors by name, without copies."""
        state = {**self.program.constants, **self.program.state_dict}
        return {name: as_array(value) for name, value in state.items() if isinstance(value, torch.Tensor)}

    def call(
        self, state: dict[str, torch.Tensor] | None = None
    ) -> AbstractContextManager[Callable[..., Any]]:
        """Give a call of the module in its mode; `state` stands in for its tensors by name; see `in_mode`."""
        training = None if self.mode == "export" else self.mode == "train"
        return in_mode(self.module, training=training, state=state)

    def state(self, inputs: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Return a stand-in for each tensor of the module that the program writes, by its name there.

        Written buffers are among the inputs; weights start from what the module holds.
        """
        weights = {
            name: self._placed(self._tensor(name)).detach().clone() for name in written_weights(self.program)
        }
        buffers = {
            each.target: self._given(inputs[each.name], self._tensor(each.target))
            for each in self.written
            if each.target
        }
        return {**weights, **buffers}

    def new_values(self, arguments: Any, state: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return what a call wrote, in the order of `written`: to its arguments, and to the state."""
        leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        given = dict(zip(self._given_names, leaves, strict=True))
        return [state[each.target] if each.target else given[each.name] for each in self.written]

    def _tensor(self, name: str) -> torch.Tensor:
        return {**self.program.constants, **self.program.state_dict}[name]

    def _given(self, array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        found = as_tensor(array)
        return self._placed(torch.view_as_complex(found) if like.is_complex() else found, like)

    def _placed(self, tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
        """Return a tensor where the module is now, which may have been moved since it was imported.

        It goes where `like` is if the module has tensors on several devices, or none.
        """
        devices = {each.device for each in (*self.module.parameters(), *self.module.buffers())}
        return tensor.to(devices.pop() if len(devices) == 1 else (tensor if like is None else like).device)

    def arguments(self, inputs: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        """Return the module's arguments with the given tensors in the places of the examples'."""
        leaves, structure = pytree.tree_flatten(self.examples)
        names = iter(self._given_names)

        def given(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return self._placed(as_tensor(inputs[next(names)]), leaf)

        return tuple(pytree.tree_unflatten([given(leaf) for leaf in leaves], structure))
