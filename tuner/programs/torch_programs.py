"""A plan's stages as torch modules for the pipeline engine: the model's own code, cut as planned.

For plans of a `module:function`. The module is cut after the layers that the plan names; weights are the
module's own, inputs and labels are drawn from a seed, alike in every process. Against the same plan's
compiled stages this is the baseline: what the model costs before it is compiled. Checked in
tests/tuner/programs/test_torch_programs.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

from tuner.errors import TunerError
from tuner.frontend import MODELS, require_trust
from tuner.frontend.torch.program import build_torch_module
from tuner.plan import ModelPlan
from tuner.programs.autograd_stage import AutogradStage
from tuner.programs.step_results import PipelineCopy, Tensors
from tuner.stages.torch_stages import TorchPipeline, split_module


class TorchProgramSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every process needs to build the same programs.

    Attributes:
        plan: the plan's part that the tuner made; its model is a `module:function`.
        seed: draws inputs, and what the module's own making draws.
        device: where the module runs; `cuda` is torch's current GPU.
        trust_model: whether the user wants the code run that the plan names as its model.
    """

    plan: ModelPlan
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    trust_model: bool = False


def provide_programs(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, AutogradStage]:
    """Build stages as an engine's ranks ask for them: the specification comes as JSON text.

    Raises:
        TunerError: the plan's model is no torch module, or is not the one that was tuned.
    """
    spec = msgspec.json.decode(spec_json, type=TorchProgramSpec)
    module, examples = _load(spec)
    pipeline = split_module(module, examples, _ends(spec.plan))
    draws = _Draws(spec, examples, pipeline)
    training = spec.plan.training
    differentiable = frozenset[str]().union(*(stage.differentiable for stage in pipeline.stages if training))
    inputs = functools.cache(draws.inputs)  # Kept, so that a timed forward draws nothing.
    last = len(pipeline.stages) - 1
    copies = {number: divmod(number, len(pipeline.stages)) for number in stage_numbers}
    return {
        number: AutogradStage(
            pipeline.stages[place],
            inputs=inputs,
            loss=draws.loss if training and place == last else None,
            differentiable=differentiable,
            recomputes=spec.plan.stages[number].recomputes,
            copy=PipelineCopy(copy, spec.plan.replicas),
        )
        for number, (copy, place) in copies.items()
    }


def _ends(plan: ModelPlan) -> list[str]:
    """Return the last layer of each stage of one copy but the last."""
    return [stage.layers[-1] for stage in plan.stages[: plan.stages_of_copy - 1]]


def reference_step(
    spec: TorchProgramSpec, num_micro_batches: int
) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses by micro-batch and mean gradients of the uncut module; both empty for inference.

    Raises:
        TunerError: the plan's model is no torch module.
    """
    if not spec.plan.training:
        return {}, {}
    module, examples = _load(spec)
    losses: dict[int, float] = {}
    for micro_batch in range(num_micro_batches):
        rng = _rng(spec, micro_batch)
        drawn = [_drawn_like(example, rng).to(spec.device) for example in examples]
        loss = _loss(pytree.tree_leaves(module(*drawn)), rng)
        torch.autograd.backward(loss / num_micro_batches)
        losses[micro_batch] = float(loss.detach())
    return losses, {
        name: _array(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        for name, weight in module.named_parameters()
    }


def _array(gradient: torch.Tensor) -> np.ndarray:
    """Return a tensor for NumPy, which has no bfloat16; float32 holds each of its numbers."""
    known = gradient.float() if gradient.dtype is torch.bfloat16 else gradient
    array: np.ndarray = known.cpu().numpy()
    return array


def check_spec(spec: TorchProgramSpec) -> None:
    """Refuse, before any process starts, a plan whose model is no torch module.

    Raises:
        TunerError: it is not, or was tuned for other shapes than the module's own, or it is code that the
            user did not name.
    """
    location = spec.plan.model.rpartition(":")[0]
    if not location or location in MODELS:
        raise TunerError(
            f"the plan's model {spec.plan.model} is not a torch module of yours; run its compiled stages, "
            "or tune a module:function"
        )
    require_trust(spec.plan.model, trusted=spec.trust_model)
    if spec.plan.stages_before:
        raise TunerError(
            "the plan's stages form branches, and torch stages are a chain; run the compiled stages, or tune "
            "a chain"
        )
    for stage in spec.plan.stages:
        if stage.shards is not None:
            raise TunerError(
                f"{stage.name} is divided over {stage.shards.num_shards} devices, and torch stages are whole "
                "ones; run the compiled stages, or tune a chain"
            )
    if spec.plan.shapes:
        raise TunerError(
            f"the plan has other shapes for {', '.join(sorted(spec.plan.shapes))} than the torch module's "
            "own inputs; let the function return inputs of those shapes, and tune it again"
        )


def _load(spec: TorchProgramSpec) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the module as the tuner saw it, in its mode for inference, and one micro-batch of inputs."""
    check_spec(spec)
    location, _, function = spec.plan.model.rpartition(":")
    # Every rank makes the same weights.
    module, examples = build_torch_module(location, function, seed=spec.seed)
    return module.eval().to(spec.device), tuple(example.to(spec.device) for example in examples)


def _rng(spec: TorchProgramSpec, micro_batch: int) -> np.random.Generator:
    return np.random.default_rng([spec.seed, 1, micro_batch])


def _drawn_like(example: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return random values of an example's shape; whole numbers up to the largest in it."""
    if example.is_floating_point():
        return torch.from_numpy(rng.standard_normal(tuple(example.shape))).to(example.dtype)
    high = int(example.max()) + 1 if example.numel() else 1
    return torch.from_numpy(rng.integers(0, max(high, 1), tuple(example.shape))).to(example.dtype)


def _loss(outputs: Sequence[torch.Tensor], rng: np.random.Generator) -> torch.Tensor:
    """Return the loss that the tuner put on the module: its only scalar, or the cross-entropy of logits."""
    (output,) = outputs
    if not output.shape:
        return output
    num_classes = output.shape[-1]
    rows = output.reshape(-1, num_classes)
    labels = torch.from_numpy(rng.integers(0, num_classes, rows.shape[0]))
    return cross_entropy(rows, labels.to(rows.device))


class _Draws:
    """The inputs and the loss of each micro-batch, alike on every rank."""

    def __init__(
        self, spec: TorchProgramSpec, examples: Sequence[torch.Tensor], pipeline: TorchPipeline
    ) -> None:
        self._spec = spec
        self._examples = examples
        self._input_names = pipeline.input_names
        self._output_names = pipeline.output_names

    def inputs(self, micro_batch: int) -> Tensors:
        """Return the user's inputs by name."""
        rng = _rng(self._spec, micro_batch)
        return {
            name: _drawn_like(example, rng).to(self._spec.device)
            for name, example in zip(self._input_names, self._examples, strict=True)
        }

    def loss(self, micro_batch: int, known: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of what the last stage made."""
        rng = _rng(self._spec, micro_batch)
        for example in self._examples:
            _drawn_like(example, rng)  # Labels are drawn after the inputs, as in `reference_step`.
        return _loss([known[name] for name in self._output_names], rng)
