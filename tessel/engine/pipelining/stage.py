"""Stages for torch's pipeline runtime, with the features that it lacks.

- A stage of `tuner.stages.torch_stages.split_module` takes and returns its own tensors only. Here it takes
  what the stage before gives, and gives what later stages need, relays too; one tensor alone is no tuple.
- Of a split backward, the runtime computes the gradients of those weights only that lie behind a received
  tensor. The others (an embedding of a decoder, say) are computed apart.
- `DistributedDataParallel` averages gradients in hooks of autograd that a split backward never runs: replicas
  would silently keep gradients of their own. Such a stage is averaged after its last backward.

Checked in tests/tessel/engine/pipelining/test_schedule.py and, between processes, test_torch_replicas.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward_weight
from torch.nn.parallel import DistributedDataParallel

from tessel.engine.errors import EngineError
from tuner.plan import Borders


class BorderedStage(nn.Module):
    """A module of a stage between its borders.

    Args:
        module: takes `borders.reads` and returns the tuple of `borders.makes`; may be replicated.
        borders: what it is handed and hands on.
    """

    def __init__(self, module: nn.Module, borders: Borders) -> None:
        super().__init__()
        self.module = module
        self._borders = borders

    def forward(self, *taken: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Take `borders.takes`, return `borders.gives`; a single tensor as itself."""
        known = dict(zip(self._borders.takes, taken, strict=True))
        # Replicas exchange nothing here: the schedule says when gradients are complete.
        replicas = self.module if isinstance(self.module, DistributedDataParallel) else None
        with replicas.no_sync() if replicas is not None else nullcontext():
            made = self.module(*(known[name] for name in self._borders.reads))
        # The runtime detaches what a stage gives in place, which must spare views and what was received.
        own = {
            name: value.clone() if value._is_view() else value
            for name, value in zip(self._borders.makes, made, strict=True)
        }
        given = tuple(own[name] if name in own else known[name].clone() for name in self._borders.gives)
        return given[0] if len(given) == 1 else given


class Stage(PipelineStage):
    """Torch's stage, whose shapes are found with zeros: uninitialised memory is no valid index."""

    def _to_tensor(self, arg: Any) -> torch.Tensor:
        made: torch.Tensor = super()._to_tensor(arg)
        if not isinstance(arg, torch.Tensor):
            with torch.no_grad():
                made.zero_()
        return made


def bordered(module: nn.Module) -> nn.Module:
    """Put a module of `split_module`, replicated or not, between its borders; return any other as it is."""
    borders = borders_of(module)
    return module if borders is None else BorderedStage(module, borders)


def borders_of(module: nn.Module) -> Borders | None:
    """Return the borders that `split_module` gave a module; None of any other."""
    inner = unwrapped(module)
    found = inner.meta.get("borders") if isinstance(inner, fx.GraphModule) else None
    return found if isinstance(found, Borders) else None


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module within borders and replicas."""
    while isinstance(module, DistributedDataParallel | BorderedStage):
        module = module.module
    return module


def replicated_part(stage: PipelineStage) -> DistributedDataParallel | None:
    """Return the part of a stage that is replicated by `DistributedDataParallel`; None where none is.

    Raises:
        EngineError: only a module within the stage is, so that nobody would know when to average.
    """
    module: nn.Module = stage.submod.module if isinstance(stage.submod, BorderedStage) else stage.submod
    if isinstance(module, DistributedDataParallel):
        return module
    inside = next(
        (name for name, each in module.named_modules() if isinstance(each, DistributedDataParallel)), None
    )
    if inside is not None:
        raise EngineError(
            f"module {inside} of stage {stage.stage_index} is replicated by DistributedDataParallel, which "
            "would average its gradients once per micro-batch; wrap the entire stage instead"
        )
    return None


def average_after_last_backward(stage: PipelineStage, replicated: DistributedDataParallel) -> None:
    """Keep a stage's replicas from averaging during backwards; `average_gradients` is called after them.

    Raises:
        EngineError: gradients are exchanged by a function of the user's, which only autograd's hooks call.
    """
    if replicated._comm_hooks:
        raise EngineError(
            f"stage {stage.stage_index} is replicated with a communication hook, which a split backward "
            "never calls; use a schedule with joint backwards, or leave the hook out"
        )
    run = stage.backward_maybe_with_nosync

    def backward(backward_type: str, arguments: dict[str, Any], last_backward: bool = False) -> Any:
        with replicated.no_sync():
            return run(backward_type, arguments, last_backward=False)

    stage.backward_maybe_with_nosync = backward  # type: ignore[method-assign, assignment]  # of this one


def average_gradients(replicated: DistributedDataParallel) -> None:
    """Make the gradients of a stage's replicas their mean, as `DistributedDataParallel` would."""
    ignored = set(replicated.parameters_to_ignore)
    weights = [
        weight
        for name, weight in replicated.module.named_parameters()
        if weight.requires_grad and name not in ignored
    ]
    group = replicated.process_group
    # A replica that did not use a weight takes part all the same; one that nobody used has no gradient.
    used = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32)
    used = used.to(weights[0].device) if weights else used
    dist.all_reduce(used, dist.ReduceOp.MAX, group=group)
    for weight, is_used in zip(weights, used.tolist(), strict=True):
        if is_used:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(weight.grad, group=group)
            weight.grad /= dist.get_world_size(group)


class _Groups(list[dict[str, Any]]):
    """Torch's groups of weights, with what the weights in none of them need."""

    apart: Sequence[nn.Parameter] = ()
    edges: Sequence[Any] = ()
    gradients: Sequence[torch.Tensor] = ()


def complete_split_backward(stage: PipelineStage) -> None:
    """Make the weight half compute the gradients of all weights, also of those behind no received tensor."""
    if isinstance(stage.submod, FSDPModule):
        return  # Its sharded weights are not what autograd sees; torch's own way is kept.
    run = stage.backward_maybe_with_nosync

    def backward(backward_type: str, arguments: dict[str, Any], last_backward: bool = False) -> Any:
        if backward_type == "input":
            return _backward_input(stage, run, arguments)
        if backward_type == "weight":
            _backward_weight(stage, arguments["param_groups"])
            return (), None
        return run(backward_type, arguments, last_backward=last_backward)

    stage.backward_maybe_with_nosync = backward  # type: ignore[method-assign, assignment]  # of this one


def _backward_input(stage: PipelineStage, run: Any, arguments: dict[str, Any]) -> Any:
    outputs = arguments["stage_output"]
    given = arguments["output_grads"]
    # Taken before the outputs are detached in place.
    edges, gradients = [], []
    for number, output in enumerate(outputs):
        gradient = torch.ones_like(output) if given is None else given[number]
        if output.requires_grad and gradient is not None:
            edges.append(get_gradient_edge(output))
            gradients.append(gradient)
    received_gradients, found = run("input", arguments, last_backward=False)
    groups = _Groups(found)
    reached = {node for group in found for node in group["params"]}
    groups.apart = [
        weight
        for weight in stage.submod.parameters()
        if weight.requires_grad and get_gradient_edge(weight).node not in reached
    ]
    if groups.apart:  # Else the graph behind the outputs is let go now.
        groups.edges, groups.gradients = edges, gradients
    return received_gradients, groups


def _backward_weight(stage: PipelineStage, groups: _Groups) -> None:
    if groups.apart and groups.edges:
        found = torch.autograd.grad(
            groups.edges, groups.apart, groups.gradients, allow_unused=True, retain_graph=True
        )
        for weight, gradient in zip(groups.apart, found, strict=True):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
    # Groups may share nodes, so none may free what it has read.
    stage_backward_weight(stage.submod.parameters(), groups, retain_graph=True)
