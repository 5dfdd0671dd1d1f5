"""A torch module as a stage for the pipeline engine, differentiated by autograd.

The whole backward of a stage is one call of autograd. Split, the input half stops at the nodes where weights
come in and keeps the gradients there, and the weight half goes on from them, so that neither does the other's
work. Gradients are added up in `StepResults`. Checked in tests/tuner/programs/test_autograd_stage.py.

Source: Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024, section 2), for the two halves;
torch.distributed.pipelining, whose functions find the nodes where they part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from tuner.plan import TensorInfo
from tuner.programs.step_results import ONLY_COPY, PipelineCopy, StepResults, Tensors, total_gradient

LOSS = "loss"


class StageModule(Protocol):
    """A stage as `tuner.stages.torch_stages` makes it, or one of one's own."""

    @property
    def module(self) -> nn.Module:
        """Takes `inputs` in order and returns the tuple of `outputs`."""
        ...

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What it reads: received, or the user's."""
        ...

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it makes."""
        ...

    @property
    def received(self) -> tuple[TensorInfo, ...]:
        """What comes from the stage before, relays included."""
        ...

    @property
    def sent(self) -> tuple[TensorInfo, ...]:
        """What goes to the stage after, relays included."""
        ...

    @property
    def relayed(self) -> tuple[str, ...]:
        """Names of what it receives and sends on."""
        ...


class StageAction(Protocol):
    """What a program is told to do: one of `F`, `B`, `I`, `W`, and the micro-batch."""

    @property
    def kind(self) -> str:
        """`F` forward, `B` whole backward, `I` its input half, `W` its weight half."""
        ...

    @property
    def micro_batch(self) -> int:
        """Number of the micro-batch."""
        ...


class AutogradStage:
    """One stage of a torch module, ready to run; satisfies the engine's `StageProgram`.

    Args:
        inputs: gives the user's inputs of a micro-batch by name.
        loss: makes the loss of a micro-batch from all tensors by name; only for the last stage in training.
        differentiable: names of the tensors that cross borders and have gradients.
        recomputes: whether it keeps what it received alone, and runs its forward again in its backward.
        copy: of the pipeline that it belongs to.
        model_outputs: names of what the whole model returns, of which the stage can be told to keep what it
            makes; by default all that a stage makes that sends nothing.
        weight_names: what weights go by in `gradients`, where it is another name than in the module.
    """

    def __init__(
        self,
        stage: StageModule,
        *,
        inputs: Callable[[int], Tensors],
        loss: Callable[[int, Tensors], torch.Tensor] | None,
        differentiable: frozenset[str],
        recomputes: bool = False,
        copy: PipelineCopy = ONLY_COPY,
        model_outputs: frozenset[str] | None = None,
        weight_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._stage = stage
        made = [info.name for info in stage.outputs]
        if model_outputs is None:
            model_outputs = frozenset(() if stage.sent else made)
        self._model_outputs = [name for name in made if name in model_outputs]
        self._recomputes = recomputes
        self._inputs = inputs
        self._loss = loss
        self.received = stage.received
        self.sent = stage.sent
        self.sent_gradients = tuple(info for info in stage.received if info.name in differentiable)
        self.received_gradients = tuple(info for info in stage.sent if info.name in differentiable)
        self._weights = {
            weight_names.get(name, name): weight
            for name, weight in stage.module.named_parameters()
            if weight.requires_grad
        }
        self._kept: dict[int, _Kept] = {}
        self._to_recompute: dict[int, Tensors] = {}
        self._copy = copy
        self._results = StepResults(copy)

    def start_step(self, num_micro_batches: int) -> None:
        """Forget what the step before left."""
        self._kept.clear()
        self._to_recompute.clear()
        self._results.start(num_micro_batches)

    def run(self, action: StageAction, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Run one action; return what other stages wait for."""
        received = self._to_recompute.pop(action.micro_batch, None)
        if received is not None:
            self._forward(action.micro_batch, received, is_kept=True)
        match action.kind:
            case "F":
                return self._forward(action.micro_batch, given, is_kept=not self._recomputes)
            case "B":
                return self._backward(self._kept.pop(action.micro_batch), given)
            case "I":
                return self._backward_input(self._kept[action.micro_batch], given)
            case _:
                self._backward_weight(self._kept.pop(action.micro_batch), given)
                return {}

    def gradients(self) -> Tensors:
        """Return each weight's gradient, the mean over the step's micro-batches."""
        found = self._results.mean_gradients()
        return {
            name: found[name] if name in found else torch.zeros_like(weight)
            for name, weight in self._weights.items()
        }

    def losses(self) -> dict[int, float]:
        """Return the loss of each micro-batch; empty but for the last stage."""
        return dict(self._results.losses)

    def keep_outputs(self) -> None:
        """Keep outputs from the next step on."""
        self._results.keeps_outputs = True

    def outputs(self) -> dict[int, Tensors]:
        """Return the module's outputs that this stage made in the step, by micro-batch and name."""
        return self._results.outputs

    def _forward(self, micro_batch: int, given: Mapping[str, torch.Tensor], *, is_kept: bool) -> Tensors:
        leaves = {info.name: given[info.name].detach().requires_grad_() for info in self.sent_gradients}
        known = {**self._inputs(self._copy.of_step(micro_batch)), **given, **leaves}
        roots = [LOSS] if self._loss is not None else [info.name for info in self.received_gradients]
        with torch.set_grad_enabled(bool(roots) and is_kept):
            made = self._stage.module(*(known[info.name] for info in self._stage.inputs))
            known.update(zip((info.name for info in self._stage.outputs), made, strict=True))
            if self._loss is not None:
                known[LOSS] = self._loss(self._copy.of_step(micro_batch), known)
                self._results.add_loss(micro_batch, float(known[LOSS].detach()))
        self._results.add_outputs(micro_batch, {name: known[name] for name in self._model_outputs})
        if not roots:
            return {info.name: known[info.name] for info in self._stage.sent}
        if not is_kept:
            self._to_recompute[micro_batch] = dict(given)
            return {info.name: known[info.name].detach() for info in self._stage.sent}
        own = {info.name for info in self._stage.outputs} | {LOSS}
        self._kept[micro_batch] = _Kept(
            leaves=leaves,
            roots={name: known[name] for name in roots if name in own and known[name].requires_grad},
        )
        return {info.name: known[info.name].detach() for info in self._stage.sent}

    def _backward(self, kept: _Kept, given: Mapping[str, torch.Tensor]) -> Tensors:
        wanted = [*kept.leaves.values(), *self._weights.values()]
        found = _gradients_of(kept.roots, wanted, given)
        num_leaves = len(kept.leaves)
        self._add(found[num_leaves:])
        return self._returned(kept, found[:num_leaves], given)

    def _backward_input(self, kept: _Kept, given: Mapping[str, torch.Tensor]) -> Tensors:
        kept.given = dict(given)
        if not kept.leaves or not kept.roots:
            return self._returned(kept, [None] * len(kept.leaves), given)
        kept.edges = {name: get_gradient_edge(root) for name, root in kept.roots.items()}
        found, kept.groups = stage_backward_input(
            list(kept.roots.values()),
            [_gradient_at(name, root, given) for name, root in kept.roots.items()],
            list(kept.leaves.values()),
            iter(self._weights.values()),
        )
        return self._returned(kept, found, given)

    def _backward_weight(self, kept: _Kept, given: Mapping[str, torch.Tensor]) -> None:
        weights = list(self._weights.values())
        if kept.groups is None:  # The input half had nothing to do, or there was none.
            self._add(_gradients_of(kept.roots, weights, kept.given or given))
            return
        reached = {node for group in kept.groups for node in group["params"]}
        # Groups may share nodes, so none may free what it has read; all is freed with what was kept.
        stage_backward_weight(iter(weights), kept.groups, retain_graph=True)
        found = [weight.grad for weight in weights]
        for weight in weights:
            weight.grad = None
        # Weights whose use no received tensor takes part in are in no group.
        apart = [number for number, weight in enumerate(weights) if _node_of(weight) not in reached]
        for number, gradient in zip(
            apart, self._gradients_apart(kept, [weights[i] for i in apart]), strict=True
        ):
            found[number] = gradient
        self._add(found)

    @staticmethod
    def _gradients_apart(kept: _Kept, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        if not weights:
            return []
        return torch.autograd.grad(
            list(kept.edges.values()),
            weights,
            [_gradient_at(name, kept.roots[name], kept.given) for name in kept.edges],
            allow_unused=True,
        )

    def _add(self, found: Sequence[torch.Tensor | None]) -> None:
        self._results.add(zip(self._weights, found, strict=True))

    def _returned(
        self, kept: _Kept, found: Sequence[torch.Tensor | None], given: Mapping[str, torch.Tensor]
    ) -> Tensors:
        """Return each received tensor's gradient: of its use here, of its use further on, or both."""
        returned = {}
        for (name, leaf), own in zip(kept.leaves.items(), found, strict=True):
            further = given.get(name) if name in self._stage.relayed else None
            total = total_gradient(own, further)
            returned[name] = torch.zeros_like(leaf) if total is None else total
        return returned


class _Kept:
    """What a stage keeps of a micro-batch from its forward to its backward."""

    def __init__(self, leaves: Tensors, roots: Tensors) -> None:
        self.leaves = leaves
        self.roots = roots
        self.given: Tensors = {}
        self.edges: dict[str, GradientEdge] = {}
        self.groups: list[dict[str, Any]] | None = None


def _gradients_of(
    roots: Tensors, wanted: Sequence[torch.Tensor], given: Mapping[str, torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    if not roots or not wanted:
        return [None] * len(wanted)
    return torch.autograd.grad(
        list(roots.values()),
        wanted,
        [_gradient_at(name, root, given) for name, root in roots.items()],
        allow_unused=True,
    )


def _gradient_at(name: str, root: torch.Tensor, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return given[name] if name in given else torch.ones_like(root)


def _node_of(weight: torch.Tensor) -> Any:
    """Return the node that adds up a weight's gradient."""
    return get_gradient_edge(weight).node
