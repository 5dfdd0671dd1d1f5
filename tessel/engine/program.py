"""The interface of an executable stage: one function per action, over named tensors.

A stage stores what its backward needs, per micro-batch. The executor moves tensors between stages and
determines when actions run; it is independent of how a stage computes. Stages compiled by TVM and torch
modules both satisfy `StageProgram`. Tensors are torch tensors, because that is what torch.distributed sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from tessel.engine.actions import Action
from tuner.plan import Routes, TensorInfo

Tensors = dict[str, torch.Tensor]


def routes_of(program: StageProgram, stage: int) -> Routes:
    """Return a program's `routes`, where it has any, as stages of branches do; else those of a chain."""
    routes = getattr(program, "routes", None)
    if isinstance(routes, Routes):
        return routes
    return Routes(
        received=_unless_empty(stage - 1, program.received),
        sent=_unless_empty(stage + 1, program.sent),
        received_gradients=_unless_empty(stage + 1, program.received_gradients),
        sent_gradients=_unless_empty(stage - 1, program.sent_gradients),
    )


def _unless_empty(stage: int, tensors: tuple[TensorInfo, ...]) -> dict[int, tuple[TensorInfo, ...]]:
    return {stage: tensors} if tensors else {}


class StageProgram(Protocol):
    """One pipeline stage that can be run; on several ranks, each holds a program of its own for it."""

    @property
    def received(self) -> tuple[TensorInfo, ...]:
        """What comes from the stage before, in order; empty for the first."""
        ...

    @property
    def sent(self) -> tuple[TensorInfo, ...]:
        """What goes to the stage after, in order; empty for the last."""
        ...

    @property
    def received_gradients(self) -> tuple[TensorInfo, ...]:
        """Gradients that come back from the stage after, in order, under the names of what was sent."""
        ...

    @property
    def sent_gradients(self) -> tuple[TensorInfo, ...]:
        """Gradients that go back to the stage before, in order, under the names of what was received."""
        ...

    def start_step(self, num_micro_batches: int) -> None:
        """Forget gradients and losses of the step before."""
        ...

    def run(self, action: Action, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Run one action on what other stages gave; return what goes to other stages, by name."""
        ...

    def gradients(self) -> Tensors:
        """Return each weight's gradient, the mean over the step's micro-batches.

        A stage on several ranks returns the whole gradients on each; it may gather them here, as every rank
        asks its stages in ascending order.
        """
        ...

    def losses(self) -> dict[int, float]:
        """Return the loss of each micro-batch; empty but for the last stage."""
        ...


@runtime_checkable
class UnequalProgram(Protocol):
    """A stage program whose tensors have another shape in each micro-batch, such as unequal sequences."""

    def of_micro_batch(self, info: TensorInfo, micro_batch: int) -> TensorInfo:
        """Return a tensor that crosses a border as it is in a micro-batch; the same on both of its sides."""
        ...


@runtime_checkable
class OutputsProgram(Protocol):
    """A stage program that can also tell what it computes of the model's outputs, for inference."""

    def keep_outputs(self) -> None:
        """Keep outputs from the next step on."""
        ...

    def outputs(self) -> dict[int, Tensors]:
        """Return the model's outputs that this stage made in the step, whole, by micro-batch and name.

        Empty unless they are kept. As with `StageProgram.gradients`, a stage on several ranks may gather.
        """
        ...
