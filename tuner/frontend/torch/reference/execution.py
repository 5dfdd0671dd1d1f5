"""Run the user's module: its outputs, its loss and its gradients, by torch's operators and autograd alone.

Checked in tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

from tuner.frontend.model import Model
from tuner.frontend.torch.arrays import as_array, as_tensor
from tuner.frontend.torch.blocked_gradients import checkpoints_inlined
from tuner.frontend.torch.reference.user_module import UserModule

logger = logging.getLogger(__name__)


def outputs_of(
    user: UserModule, inputs: Mapping[str, np.ndarray], *, trains: bool, calls: int = 1
) -> tuple[np.ndarray, ...]:
    """Return what a module gives, flattened; a loss that was put on top comes before its logits.

    New values of what it writes, where that is kept, come last.

    Args:
        inputs: by name, with labels last where a loss was put on top.
        trains: whether of several results the sum of the scalars is the loss, and all that is returned.
        calls: how often it is called, each time with what the time before wrote; the last one's is returned.
    """
    state, arguments = user.state(inputs), user.arguments(inputs)
    with user.call(state) as call, torch.no_grad():
        for _ in range(calls):
            torch.manual_seed(0)
            found = _tensors(call(*arguments))
        found += user.new_values(arguments, state)
        if trains and len(found) > 1:
            return (as_array(_loss(found, inputs)),)
        loss = [_loss(found, inputs)] if len(inputs) > len(user.input_names) else []
        return tuple(as_array(tensor) for tensor in (*loss, *found))


def gradients_of(
    user: UserModule, model: Model, inputs: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the loss, and every trained weight's gradient by name.

    A weight that the loss does not depend on has a gradient of zeros. `.grad` is left alone.
    """
    loss, found = _differentiated(user, model, inputs)
    return as_array(loss), {name: as_array(gradient) for name, gradient in found.items()}


def exact_gradients_of(
    user: UserModule, model: Model, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray] | None:
    """Return every trained weight's gradient in double precision; see `gradients_of`.

    Weights, buffers and inputs are widened; what the module rounds on its way, to a type that it names,
    stays rounded. None where it does not run so.
    """
    widened = {
        name: np.asarray(array, np.float64) if "float" in str(array.dtype) else array
        for name, array in inputs.items()
    }
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        _, found = _differentiated(user, model, widened, _in_double(user.module))
    except Exception:  # foreign code: the user's own module, in a type that it was not written for
        logger.debug("%s does not run in double precision", model.name, exc_info=True)
        return None
    finally:
        torch.set_default_dtype(before)
    return {name: as_array(gradient) for name, gradient in found.items()}


def _differentiated(
    user: UserModule,
    model: Model,
    inputs: Mapping[str, np.ndarray],
    state: dict[str, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss and gradients by weight; `state` stands in for tensors of the module by name."""
    groups = _trained(user.module, model, state or {})
    weights = [weight for group in groups.values() for weight in group]
    # A reentrant checkpoint cannot be differentiated for weights alone.
    with user.call(state) as call, torch.enable_grad(), checkpoints_inlined():
        loss = _loss(_tensors(call(*user.arguments(inputs))), inputs)
        found = (
            torch.autograd.grad(loss, weights, allow_unused=True)
            if loss.requires_grad and weights
            else [None] * len(weights)
        )
    gradient_of = {
        id(weight): torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient in zip(weights, found, strict=True)
    }
    return loss, {
        name: torch.stack([gradient_of[id(weight)] for weight in group]).sum(0)
        for name, group in groups.items()
    }


def _trained(
    module: torch.nn.Module, model: Model, state: Mapping[str, torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """Return the tensors of each trained weight: one, or several where a file holds a tied one twice.

    `state` stands in for tensors of the module by name.
    """
    own = dict(module.named_parameters(remove_duplicate=False))
    parameters = {name: state.get(name, parameter) for name, parameter in own.items()}
    aliases = {name: group for group in model.tied for name in group}
    groups = {}
    for name in model.parameter_names:
        members = [parameters[each] for each in aliases.get(name, (name,)) if each in parameters]
        trained = list({id(each): each for each in members if each.requires_grad}.values())
        if trained:
            groups[name] = trained
    return groups


def _in_double(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's floating-point tensors in double precision by name; shared ones stay shared."""
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    made: dict[int, torch.Tensor] = {}
    for tensor in own.values():
        if tensor.is_floating_point() and id(tensor) not in made:
            made[id(tensor)] = tensor.detach().double().requires_grad_(tensor.requires_grad)
    return {name: made[id(tensor)] for name, tensor in own.items() if id(tensor) in made}


def _loss(outputs: Sequence[torch.Tensor], inputs: Mapping[str, np.ndarray]) -> torch.Tensor:
    """Return the module's own loss or losses' sum, or the mean cross-entropy that is put on its logits."""
    if len(outputs) > 1:
        return torch.stack([each for each in outputs if each.is_floating_point() and not each.shape]).sum()
    (output,) = outputs
    if not output.shape:
        return output
    labels = as_tensor(list(inputs.values())[-1]).to(output.device)
    return cross_entropy(output.reshape(-1, output.shape[-1]), labels.reshape(-1))


def _tensors(results: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
