"""A plan's stages under torch for the pipeline engine: what the same plan costs before it is compiled.

A chain of whole stages of a `module:function` is the model's own code: the module is cut after the layers
that the plan names, its weights are its own, and autograd differentiates it. Of every other plan (a model of
the zoo or of a file, branches, divided stages, other shapes, a module that trains otherwise than it infers)
torch runs the stages' own functions operator by operator, forward and backward, with the collectives of the
compiled stages between segments. Inputs and labels are drawn from a seed, alike in every process. Checked in
tests/tuner/programs/test_torch_programs.py and, on ranks, test_placed_programs.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

from tuner.frontend import MODELS, names_file, require_trust
from tuner.frontend.torch.program import build_torch_module
from tuner.frontend.torch.training import observe_training
from tuner.host_array import host_array
from tuner.plan import ModelPlan
from tuner.programs.autograd_stage import AutogradStage
from tuner.programs.compiled_stage import CompiledStage
from tuner.programs.compiled_stages import (
    ProgramSpec,
    draw_weights,
    load_planned_model,
    load_programs,
)
from tuner.programs.compiled_stages import reference_outputs as compiled_outputs
from tuner.programs.compiled_stages import reference_step as compiled_reference
from tuner.programs.inputs import draws_of, why_refused
from tuner.programs.step_results import PipelineCopy, Tensors
from tuner.programs.torch_machine import TorchProgram
from tuner.stages.program import output_names
from tuner.stages.torch_stages import TorchPipeline, split_module


class TorchProgramSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every process needs to build the same programs.

    Attributes:
        plan: the plan's part that the tuner made.
        seed: draws inputs, and what the module's own making draws.
        device: where the module runs; `cuda` is torch's current GPU.
        trust_model: whether the user wants the code run that the plan names as its model.
    """

    plan: ModelPlan
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    trust_model: bool = False


def provide_programs(
    spec_json: str, stage_numbers: Sequence[int]
) -> Mapping[int, AutogradStage | CompiledStage]:
    """Build stages as an engine's ranks ask for them: the specification comes as JSON text.

    Raises:
        TunerError: the plan's model is not the one that was tuned, or torch lacks an operator of it.
    """
    spec = msgspec.json.decode(spec_json, type=TorchProgramSpec)
    found = _own_module(spec)
    if found is None:
        return load_programs(_of_operators(spec), stage_numbers, on_torch=spec.device)
    module, examples = found
    takes_examples = _takes_examples(spec, module, examples)
    pipeline = split_module(module, examples, _ends(spec.plan))
    draws = _Draws(spec, examples, pipeline, takes_examples=takes_examples)
    training = spec.plan.training
    differentiable = frozenset[str]().union(*(stage.differentiable for stage in pipeline.stages if training))
    inputs = functools.cache(draws.inputs)  # Kept, so that a timed forward draws nothing.
    last = len(pipeline.stages) - 1
    # A plan, and the uncut module's gradients, have the first of a tied weight's names.
    first_names = {id(weight): name for name, weight in module.named_parameters()}
    weight_names = {
        name: first_names[id(weight)] for name, weight in module.named_parameters(remove_duplicate=False)
    }
    copies = {number: divmod(number, len(pipeline.stages)) for number in stage_numbers}
    return {
        number: AutogradStage(
            pipeline.stages[place],
            inputs=inputs,
            loss=draws.loss if training and place == last else None,
            differentiable=differentiable,
            recomputes=spec.plan.stages[number].recomputes,
            copy=PipelineCopy(copy, spec.plan.replicas),
            model_outputs=frozenset(() if training else pipeline.output_names),
            weight_names=weight_names,
        )
        for number, (copy, place) in copies.items()
    }


def _ends(plan: ModelPlan) -> list[str]:
    """Return the last layer of each stage of one copy but the last."""
    return [stage.layers[-1] for stage in plan.stages[: plan.stages_of_copy - 1]]


def reference_step(
    spec: TorchProgramSpec, num_micro_batches: int
) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses by micro-batch and mean gradients of the uncut model; both empty for inference.

    They are those of the user's own module under autograd. A model without one is its program, each operator
    run by torch, under autograd: no gradient rule of this project is in it.

    Raises:
        TunerError: the plan's model is not the one that was tuned.
    """
    if not spec.plan.training:
        return {}, {}
    found = _own_module(spec)
    if found is None:
        return _operators_step(_of_operators(spec), num_micro_batches)
    module, examples = found
    takes_examples = _takes_examples(spec, module, examples)
    losses: dict[int, float] = {}
    for micro_batch in range(num_micro_batches):
        rng = _rng(spec, micro_batch)
        drawn = _drawn(examples, rng, spec.device, as_it_is=takes_examples)
        loss = _loss(pytree.tree_leaves(module(*drawn)), rng)
        torch.autograd.backward(loss / num_micro_batches)
        losses[micro_batch] = float(loss.detach())
    return losses, {
        name: host_array(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        for name, weight in module.named_parameters()
    }


def reference_outputs(spec: TorchProgramSpec, num_micro_batches: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield what the uncut model makes for each micro-batch, by name, as stages name it; no input of its own.

    They are those of the user's own module. A model without one is its program, each operator run by torch.

    Raises:
        TunerError: the plan's model is not the one that was tuned.
    """
    found = _own_module(spec)
    if found is None:
        yield from _operators_outputs(_of_operators(spec), num_micro_batches)
        return
    module, examples = found
    pipeline = split_module(module, examples, ())
    takes_examples = _takes_examples(spec, module, examples)
    for micro_batch in range(num_micro_batches):
        drawn = _drawn(examples, _rng(spec, micro_batch), spec.device, as_it_is=takes_examples)
        with torch.no_grad():
            leaves = pytree.tree_leaves(module(*drawn))
        made = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        named = zip(pipeline.output_names, made, strict=True)
        yield {name: host_array(leaf) for name, leaf in named if name not in pipeline.input_names}


def _operators_outputs(spec: ProgramSpec, num_micro_batches: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the same of a model as its program says it."""
    model = load_planned_model(spec)
    if model.reference is not None:
        yield from compiled_outputs(spec, num_micro_batches)
        return
    program, names = TorchProgram(model.module), output_names(model)
    weights, draws = draw_weights(model, spec.seed), draws_of(model, spec.seed)
    for micro_batch in range(num_micro_batches):
        drawn = draws.tensors(micro_batch)
        with torch.no_grad():
            made = program.run([*(drawn[each.name] for each in model.inputs), *weights.values()])
        found = zip(names, made, strict=True)
        yield {name: host_array(tensor) for name, tensor in found if name not in {*drawn, *weights}}


def _operators_step(
    spec: ProgramSpec, num_micro_batches: int
) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return the same of a model as its program says it."""
    model = load_planned_model(spec)
    if model.reference is not None:
        return compiled_reference(spec, num_micro_batches)
    program = TorchProgram(model.module)
    weights = {
        name: weight.requires_grad_(weight.is_floating_point() and name not in model.untrained)
        for name, weight in draw_weights(model, spec.seed).items()
    }
    draws = draws_of(model, spec.seed)
    losses: dict[int, float] = {}
    for micro_batch in range(num_micro_batches):
        drawn = draws.tensors(micro_batch)
        (loss,) = program.run([*(drawn[each.name] for each in model.inputs), *weights.values()])
        torch.autograd.backward(loss / num_micro_batches)
        losses[micro_batch] = float(loss.detach())
    return losses, {
        name: host_array(weight.grad) for name, weight in weights.items() if weight.grad is not None
    }


def check_spec(spec: TorchProgramSpec) -> None:
    """Refuse, before any process starts, a plan whose model cannot be loaded.

    Raises:
        TunerError: it is code that the user did not name, or a file that is not the one that was tuned.
    """
    require_trust(spec.plan.model, trusted=spec.trust_model)
    if names_file(spec.plan.model):
        load_planned_model(_of_operators(spec))


def _of_operators(spec: TorchProgramSpec) -> ProgramSpec:
    return ProgramSpec(plan=spec.plan, seed=spec.seed, trust_model=spec.trust_model)


def _own_module(spec: TorchProgramSpec) -> tuple[nn.Module, tuple[Any, ...]] | None:
    """Return the user's module in its mode for inference, and one micro-batch of inputs.

    None where its own code cannot be cut as planned, or does other things while it trains.
    """
    check_spec(spec)
    plan = spec.plan
    location, _, function = plan.model.rpartition(":")
    is_chain = not plan.stages_before and all(stage.shards is None for stage in plan.stages)
    if not location or location in MODELS or not is_chain or plan.shapes or plan.cut_positions:
        return None
    # Every rank makes the same weights.
    module, examples = build_torch_module(location, function, seed=spec.seed)
    if plan.training and observe_training(module, examples).differences:
        return None
    on_device = pytree.tree_map_only(torch.Tensor, lambda example: example.to(spec.device), tuple(examples))
    return module.eval().to(spec.device), on_device


def _rng(spec: TorchProgramSpec, micro_batch: int) -> np.random.Generator:
    return np.random.default_rng([spec.seed, 1, micro_batch])


def _takes_examples(spec: TorchProgramSpec, module: nn.Module, examples: Sequence[Any]) -> bool:
    """Say whether a module takes its examples' whole numbers alone; see `tuner.programs.inputs`."""

    def run() -> list[np.ndarray]:
        rng = _rng(spec, 0)
        with torch.no_grad():
            found = module(*_drawn(examples, rng, spec.device))
        return [host_array(each) for each in pytree.tree_leaves(found) if isinstance(each, torch.Tensor)]

    tensors = [leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, torch.Tensor)]
    return any(not tensor.is_floating_point() for tensor in tensors) and bool(why_refused(run))


def _drawn(
    examples: Sequence[Any], rng: np.random.Generator, device: str, *, as_it_is: bool = False
) -> tuple[Any, ...]:
    """Return arguments like the examples, with each tensor drawn in its place."""
    drawn: tuple[Any, ...] = pytree.tree_map_only(
        torch.Tensor, lambda each: _drawn_like(each, rng, as_it_is=as_it_is).to(device), tuple(examples)
    )
    return drawn


def _drawn_like(example: torch.Tensor, rng: np.random.Generator, *, as_it_is: bool = False) -> torch.Tensor:
    """Return random values of an example's shape; whole numbers up to the largest in it, or as they are."""
    if example.is_floating_point():
        return torch.from_numpy(rng.standard_normal(tuple(example.shape))).to(example.dtype)
    if as_it_is:
        return example
    high = int(example.max()) + 1 if example.numel() else 1
    return torch.from_numpy(rng.integers(0, max(high, 1), tuple(example.shape))).to(example.dtype)


def _loss(outputs: Sequence[torch.Tensor], rng: np.random.Generator) -> torch.Tensor:
    """Return the loss that the tuner put on the module: its scalars' sum, or the cross-entropy of logits."""
    found = [each for each in outputs if isinstance(each, torch.Tensor)]
    if len(found) > 1:
        scalars = [each for each in found if each.is_floating_point() and not each.shape]
        return torch.stack([each for each in scalars if each.dtype is scalars[0].dtype]).sum()
    (output,) = found
    if not output.shape:
        return output
    num_classes = output.shape[-1]
    rows = output.reshape(-1, num_classes)
    labels = torch.from_numpy(rng.integers(0, num_classes, rows.shape[0]))
    return cross_entropy(rows, labels.to(rows.device))


class _Draws:
    """The inputs and the loss of each micro-batch, alike on every rank."""

    def __init__(
        self,
        spec: TorchProgramSpec,
        examples: Sequence[Any],
        pipeline: TorchPipeline,
        *,
        takes_examples: bool,
    ) -> None:
        self._spec = spec
        self._examples = examples
        self._takes_examples = takes_examples
        self._input_names = pipeline.input_names
        self._output_names = pipeline.output_names

    def inputs(self, micro_batch: int) -> Tensors:
        """Return the user's inputs by name."""
        leaves = pytree.tree_leaves(self._drawn(_rng(self._spec, micro_batch)))
        named = zip(self._input_names, leaves, strict=True)
        return {name: leaf for name, leaf in named if isinstance(leaf, torch.Tensor)}

    def loss(self, micro_batch: int, known: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of what the last stage made."""
        rng = _rng(self._spec, micro_batch)
        self._drawn(rng)  # Labels are drawn after the inputs, as in `reference_step`.
        return _loss([known[name] for name in self._output_names], rng)

    def _drawn(self, rng: np.random.Generator) -> tuple[Any, ...]:
        return _drawn(self._examples, rng, self._spec.device, as_it_is=self._takes_examples)
