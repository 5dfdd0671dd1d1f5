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


@dataclass(frozen=True, kw_only=True)
class UserModule:
    """A torch module with example inputs, and the program that was exported of it.

    Attributes:
        module: stays in the mode that it is in, with the buffers that it has.
        examples: its inputs, as the user gave them.
        program: the export that was imported.
        mode: `eval`, `train`, or `export` for a program that was exported before and has but one mode.
    """

    module: torch.nn.Module
    examples: tuple[Any, ...]
    program: torch.export.ExportedProgram
    mode: str

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs that are tensors, in order."""
        specs = self.program.graph_signature.input_specs
        return tuple(
            spec.arg.name
            for spec in specs
            if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        )

    @property
    def examples_by_name(self) -> dict[str, np.ndarray]:
        """The examples that are tensors, by their names as inputs."""
        leaves = [leaf for leaf in pytree.tree_leaves(self.examples) if isinstance(leaf, torch.Tensor)]
        return {name: as_array(leaf) for name, leaf in zip(self.input_names, leaves, strict=False)}

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The program's tensors by name, without copies."""
        state = {**self.program.constants, **self.program.state_dict}
        return {name: as_array(value) for name, value in state.items() if isinstance(value, torch.Tensor)}

    def call(
        self, state: Mapping[str, torch.Tensor] | None = None
    ) -> AbstractContextManager[Callable[..., Any]]:
        """Give a call of the module in its mode; `state` stands in for its tensors by name; see `in_mode`."""
        training = None if self.mode == "export" else self.mode == "train"
        return in_mode(self.module, training=training, state=state)

    def arguments(self, inputs: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        """Return the module's arguments with the given tensors in the places of the examples'.

        They go where the module is now, which may have been moved since it was imported; to the devices of
        the examples where it has tensors on several devices, or none.
        """
        leaves, structure = pytree.tree_flatten(self.examples)
        names = iter(self.input_names)
        devices = {tensor.device for tensor in (*self.module.parameters(), *self.module.buffers())}
        place = devices.pop() if len(devices) == 1 else None

        def given(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return as_tensor(inputs[next(names)]).to(place or leaf.device)

        return tuple(pytree.tree_unflatten([given(leaf) for leaf in leaves], structure))
