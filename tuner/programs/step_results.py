"""Sums of a stage over a step, whichever engine computes it: losses, and gradients of weights.

Gradients are added up a stage at a time and not in `.grad`: a tied weight that two stages of one process
share has a part from each. Checked in tests/tuner/programs/.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PipelineCopy:
    """Which of several copies of the pipeline a stage belongs to: micro-batches go round them."""

    number: int = 0
    copies: int = 1

    def of_step(self, micro_batch: int) -> int:
        """Return the number in the step of the copy's micro-batch."""
        return micro_batch * self.copies + self.number


ONLY_COPY = PipelineCopy()


class StepResults:
    """Losses and summed gradients of one step of one stage.

    Args:
        copy: of the pipeline that the stage belongs to.

    Attributes:
        losses: of each micro-batch; empty but for the last stage.
        gradients: of each weight, summed over the micro-batches so far; sums of half precision are float32.
        outputs: of the model, by micro-batch and name; empty unless they are kept.
    """

    def __init__(self, copy: PipelineCopy = ONLY_COPY) -> None:
        self._copy = copy
        self.losses: dict[int, float] = {}
        self.gradients: Tensors = {}
        self.outputs: dict[int, Tensors] = {}
        self.keeps_outputs = False
        self._types: dict[str, torch.dtype] = {}
        self._num_micro_batches = 0

    def start(self, num_micro_batches: int) -> None:
        """Forget what the step before left; each copy runs so many micro-batches."""
        self.losses = {}
        self.gradients = {}
        self.outputs = {}
        self._num_micro_batches = num_micro_batches * self._copy.copies

    def add_loss(self, micro_batch: int, loss: float) -> None:
        """Keep the loss of one of the copy's micro-batches."""
        self.losses[self._copy.of_step(micro_batch)] = loss

    def add_outputs(self, micro_batch: int, outputs: Tensors) -> None:
        """Keep outputs of one of the copy's micro-batches, if they are kept."""
        if self.keeps_outputs and outputs:
            copies = {name: tensor.detach().clone() for name, tensor in outputs.items()}
            self.outputs[self._copy.of_step(micro_batch)] = copies

    def add(self, found: Iterable[tuple[str, torch.Tensor | None]]) -> None:
        """Add gradients of weights by name; None stands for none."""
        for name, gradient in found:
            if gradient is None:
                continue
            if name in self.gradients:
                self.gradients[name] += gradient
            else:
                self._types[name] = gradient.dtype
                self.gradients[name] = gradient.to(_summed_in(gradient.dtype), copy=True)

    def mean_gradients(self) -> Tensors:
        """Return the mean over the step's micro-batches of each weight's gradient, in the gradient's type."""
        return {
            name: (total / self._num_micro_batches).to(self._types[name])
            for name, total in self.gradients.items()
        }


def _summed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def total_gradient(*parts: torch.Tensor | None) -> torch.Tensor | None:
    """Return the gradient of a tensor that is used here and further on; None where neither use has one."""
    found = [part for part in parts if part is not None]
    return sum(found[1:], found[0]) if found else None
