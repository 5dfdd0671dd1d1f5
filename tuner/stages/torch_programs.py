"""Stages of a torch module as programs that a pipeline engine can run, with a backward in one piece or two.

The module is that of a user's function, as `tuner.frontend.load_model` takes it: it returns a loss, a scalar,
or logits, which get the mean cross-entropy with drawn labels. A program keeps each micro-batch's graph of
autograd from its forward to its backward. The halves of a split backward are those of
torch.distributed.pipelining: the input half stops at the operators that weights enter, and the weight half
goes on from there, so neither does the other's work. Those functions are private to torch; this module is the
only one that uses them. Checked in tests/tuner/stages/test_torch_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils import _pytree as pytree

from tuner.errors import TunerError
from tuner.frontend.torch_program import build_torch_module
from tuner.plan import ModelPlan, TensorInfo
from tuner.stages.torch_stages import TorchPipeline, TorchStage, split_module

Tensors = dict[str, torch.Tensor]


class StageAction(Protocol):
    """What a program is told to do."""

    @property
    def kind(self) -> str:
        """`F` forward, `B` whole backward, `I` its input half, `W` its weight half."""
        ...

    @property
    def micro_batch(self) -> int:
        """Number of the micro-batch."""
        ...


class TorchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every process needs to build the same programs.

    Attributes:
        model: `module:function` or `file.py:function`; the function returns a torch module and example inputs
            of one micro-batch.
        cuts: names of modules after which stages end.
        training: whether there is a loss, and a backward.
        seed: draws weights, inputs and labels.
    """

    model: str
    cuts: tuple[str, ...]
    training: bool = True
    seed: int = 0


def spec_of_plan(plan: ModelPlan, *, seed: int = 0) -> TorchSpec:
    """Name the module and the cuts of a plan that was made for a torch module."""
    cuts = tuple(stage.layers[-1] for stage in plan.stages[:-1])
    return TorchSpec(model=plan.model, cuts=cuts, training=plan.training, seed=seed)


def provide_programs(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, TorchStageProgram]:
    """Build stages as an engine's ranks ask for them: the specification comes as JSON text.

    Raises:
        ValueError: the text is not a `TorchSpec`.
        TunerError: the function does not give a module, or the module cannot be cut there.
    """
    spec = msgspec.json.decode(spec_json, type=TorchSpec)
    source = _Source.of(spec)
    pipeline = split_module(source.module, source.examples, spec.cuts)
    return {number: _program(source, pipeline, number, training=spec.training) for number in stage_numbers}


def reference_step(spec: TorchSpec, num_micro_batches: int) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses by micro-batch and mean gradients of the uncut module; neither for inference."""
    if not spec.training:
        return {}, {}
    source = _Source.of(spec)
    losses = {}
    for micro_batch in range(num_micro_batches):
        outputs = pytree.tree_leaves(source.module(*source.inputs(micro_batch)))
        loss = source.loss(micro_batch, outputs)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        losses[micro_batch] = float(loss.detach())
    gradients = {
        name: (parameter.grad / num_micro_batches).numpy()
        for name, parameter in source.module.named_parameters()
        if parameter.grad is not None
    }
    return losses, gradients


class TorchStageProgram:
    """One stage, ready to run; satisfies the engine's `StageProgram`.

    Args:
        stage: what it is.
        inputs: gives the user's inputs of a micro-batch by name.
        loss: gives the loss of a micro-batch from the stage's outputs by name; None but for the last stage.
        training: whether a backward follows each forward.
    """

    def __init__(
        self,
        stage: TorchStage,
        *,
        inputs: Callable[[int], Mapping[str, torch.Tensor]],
        loss: Callable[[int, Mapping[str, torch.Tensor]], torch.Tensor] | None,
        training: bool,
    ) -> None:
        self._stage = stage
        self._inputs = inputs
        self._loss = loss
        self._training = training
        self._weights = {name: stage.module.get_parameter(name) for name in stage.parameters}
        self._kept: dict[int, _Kept] = {}
        self._losses: dict[int, float] = {}
        self._num_micro_batches = 0

    @property
    def received(self) -> tuple[TensorInfo, ...]:
        """What comes from the stage before."""
        return self._stage.received

    @property
    def sent(self) -> tuple[TensorInfo, ...]:
        """What goes to the stage after."""
        return self._stage.sent

    @property
    def received_gradients(self) -> tuple[TensorInfo, ...]:
        """Gradients that come back, under the names of what was sent."""
        return self._carrying(self._stage.sent)

    @property
    def sent_gradients(self) -> tuple[TensorInfo, ...]:
        """Gradients that go back, under the names of what was received."""
        return self._carrying(self._stage.received)

    def start_step(self, num_micro_batches: int) -> None:
        """Forget what the step before left."""
        self._kept.clear()
        self._losses = {}
        self._num_micro_batches = num_micro_batches
        for weight in self._weights.values():
            weight.grad = None

    def run(self, action: StageAction, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Run one action; return what other stages wait for."""
        match action.kind:
            case "F":
                return self._forward(action.micro_batch, given)
            case "B":
                return self._backward(action.micro_batch, given)
            case "I":
                return self._backward_input(action.micro_batch, given)
            case _:
                self._backward_weight(action.micro_batch)
                return {}

    def gradients(self) -> Tensors:
        """Return each weight's gradient, the mean over the step's micro-batches."""
        return {
            name: weight.grad / self._num_micro_batches
            for name, weight in self._weights.items()
            if weight.grad is not None
        }

    def losses(self) -> dict[int, float]:
        """Return the loss of each micro-batch; empty but for the last stage."""
        return dict(self._losses)

    def _forward(self, micro_batch: int, given: Mapping[str, torch.Tensor]) -> Tensors:
        known: Tensors = dict(self._inputs(micro_batch))
        back = {info.name for info in self.sent_gradients}
        for name, value in given.items():
            known[name] = value.detach().requires_grad_(name in back)
        leaves = {name: known[name] for name in back}
        with torch.set_grad_enabled(self._training):
            made = self._stage.module(*(known[info.name] for info in self._stage.inputs))
            known.update(zip((info.name for info in self._stage.outputs), made, strict=True))
            if self._training:
                self._kept[micro_batch] = _Kept(leaves=leaves, roots=self._roots(micro_batch, known))
        return {info.name: known[info.name].detach() for info in self._stage.sent}

    def _roots(self, micro_batch: int, known: Tensors) -> Tensors:
        """Give what a backward starts from: the loss, or the outputs that gradients will come for."""
        outputs = {info.name: _whole(known[info.name]) for info in self._stage.outputs}
        if self._loss is not None:
            outputs = {"loss": self._loss(micro_batch, outputs)}
            self._losses[micro_batch] = float(outputs["loss"].detach())
        return {name: value for name, value in outputs.items() if value.requires_grad}

    def _backward(self, micro_batch: int, given: Mapping[str, torch.Tensor]) -> Tensors:
        kept = self._kept.pop(micro_batch)
        roots, arriving = kept.pulled_by(given)
        if roots:
            torch.autograd.backward(roots, arriving)
        return self._returned(kept, given)

    def _backward_input(self, micro_batch: int, given: Mapping[str, torch.Tensor]) -> Tensors:
        kept = self._kept[micro_batch]
        read = [kept.leaves[info.name] for info in self._stage.inputs if info.name in kept.leaves]
        if not read:
            # Nothing waits for this stage: its weight half does all.
            kept.arrived = dict(given)
            return {}
        roots, arriving = kept.pulled_by(given)
        _, kept.groups = stage_backward_input(list(roots), list(arriving), read, iter(self._weights.values()))
        return self._returned(kept, given)

    def _backward_weight(self, micro_batch: int) -> None:
        kept = self._kept.pop(micro_batch)
        if kept.groups is not None:
            stage_backward_weight(iter(self._weights.values()), kept.groups)
            return
        roots, arriving = kept.pulled_by(kept.arrived)
        if roots:
            torch.autograd.backward(roots, arriving)

    def _carrying(self, infos: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        wanted = self._stage.differentiable if self._training else frozenset()
        return tuple(info for info in infos if info.name in wanted)

    def _returned(self, kept: _Kept, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Give received tensors' gradients: of their use here, of their use further on, or both."""
        returned = {}
        for info in self.sent_gradients:
            leaf = kept.leaves[info.name]
            parts = [leaf.grad, given.get(info.name) if info.name in self._stage.relayed else None]
            found = [part for part in parts if part is not None]
            returned[info.name] = sum(found[1:], start=found[0]) if found else torch.zeros_like(leaf)
        return returned


@dataclass(slots=True)
class _Kept:
    """What one micro-batch keeps: leaves and roots of its graph, and what its input half leaves behind."""

    leaves: Tensors
    roots: Tensors
    arrived: Mapping[str, torch.Tensor] = field(default_factory=dict)
    groups: list[dict[str, Any]] | None = None

    def pulled_by(
        self, given: Mapping[str, torch.Tensor]
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Pair the roots with the gradients that arrived for them; a loss has the gradient one."""
        pairs = [
            (root, torch.ones_like(root) if name == "loss" else given[name])
            for name, root in self.roots.items()
            if name == "loss" or name in given
        ]
        return tuple(root for root, _ in pairs), tuple(gradient for _, gradient in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A user's module, and what is drawn to run it: the same in every process."""

    module: torch.nn.Module
    examples: tuple[torch.Tensor, ...]
    seed: int

    @classmethod
    def of(cls, spec: TorchSpec) -> _Source:
        location, _, function = spec.model.rpartition(":")
        if not location:
            raise TunerError(
                f"{spec.model!r} names no torch module, and only those have stages in torch; give "
                "module:function, or run stages compiled by TVM"
            )
        torch.manual_seed(spec.seed)
        module, examples = build_torch_module(location, function)
        return cls(module=module.eval(), examples=tuple(examples), seed=spec.seed)

    def inputs(self, micro_batch: int) -> tuple[torch.Tensor, ...]:
        """Draw tensors like the examples: normally distributed, or whole numbers that may index.

        Whole numbers stay below the rows of every embedding, or below the example's largest where there is
        none.
        """
        rows = [
            child.num_embeddings for child in self.module.modules() if isinstance(child, torch.nn.Embedding)
        ]
        rng = np.random.default_rng([self.seed, 1, micro_batch])
        drawn = []
        for example in self.examples:
            if example.is_floating_point():
                values = torch.from_numpy(rng.standard_normal(tuple(example.shape)))
            else:
                high = min(rows, default=int(example.max()) + 1)
                values = torch.from_numpy(rng.integers(0, high, tuple(example.shape)))
            drawn.append(values.to(example.dtype))
        return tuple(drawn)

    def loss(self, micro_batch: int, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the module's own loss, or the mean cross-entropy of its logits with drawn labels."""
        (output, *others) = outputs
        if others or not output.is_floating_point():
            raise TunerError(
                f"the module returns {len(outputs)} tensors, and training needs one: a loss, or logits; let "
                "it return its loss"
            )
        if output.ndim == 0:
            return output
        rng = np.random.default_rng([self.seed, 2, micro_batch])
        labels = torch.from_numpy(rng.integers(0, output.shape[-1], tuple(output.shape[:-1])))
        return torch.nn.functional.cross_entropy(output.flatten(0, -2), labels.flatten())


def _program(source: _Source, pipeline: TorchPipeline, number: int, *, training: bool) -> TorchStageProgram:
    has_loss = training and number == len(pipeline.stages) - 1

    def inputs(micro_batch: int) -> dict[str, torch.Tensor]:
        return dict(zip(pipeline.input_names, source.inputs(micro_batch), strict=True))

    def loss(micro_batch: int, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return source.loss(micro_batch, [outputs[name] for name in pipeline.output_names])

    return TorchStageProgram(
        pipeline.stages[number], inputs=inputs, loss=loss if has_loss else None, training=training
    )


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Copy what is a view: the input half detaches outputs in place, which no view allows."""
    return tensor.clone() if tensor._is_view() else tensor
