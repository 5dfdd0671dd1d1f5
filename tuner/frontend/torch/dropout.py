"""Give the masks of a module's dropout as inputs, so that its program holds dropout and its masks are known.

The module runs as for training, and each call that drops values multiplies by a mask that is an input of its
own: 0 where a value is dropped, 1/(1 − p) where it is kept (inverted dropout, as torch's kernel for CPUs
computes it). Whoever runs the program draws the masks, and whoever compares it gives both sides the same.
Attention with dropout is written as matrix products and a softmax, between which its mask acts.

Covered are `dropout`, `dropout1d` to `dropout3d` of batches, attention, multi-head attention, and LSTM, GRU
and RNN between their layers, whatever module calls them. Checkpoints, which would draw again in their
backward, are what they run. A module that draws in any other way, as stochastic depth does, is left as it is.
Checked in tests/tuner/frontend/torch/test_dropout.py.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tuner.frontend.torch.blocked_gradients import checkpoints_inlined
from tuner.frontend.torch.export import argument_names
from tuner.frontend.torch.training import in_mode

MASK = "dropout_mask"
"""How names of masks begin; a number follows, in the order of calls."""

_FEATURES = {"dropout1d": 3, "dropout2d": 4, "dropout3d": 5}
"""Functions that drop whole channels, and the axes of a batch of theirs."""

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions that drop values between their layers."""

_ACTS = frozenset(
    {"dropout", *_FEATURES, *_RECURRENT, "scaled_dot_product_attention", "multi_head_attention_forward"}
)
"""Functions whose acts of training are covered."""

BATCH_NORM = "batch_norm"
"""Function that normalises by the batch's own statistics while training, as the program in that mode says."""

_DROPOUT: Any = functional.dropout
_MULTI_HEAD: Any = functional.multi_head_attention_forward
_ATTENTION: Any = functional.scaled_dot_product_attention

Mask = Callable[[Sequence[int], torch.Tensor, float], torch.Tensor]
"""Gives the mask of the next call: of a shape, of a tensor's type and device, for a probability."""


@dataclass(frozen=True, kw_only=True)
class MaskedModule:
    """A module whose dropout takes its masks as inputs.

    Attributes:
        module: shares weights, buffers and sub-modules with the user's; its last inputs are the masks.
        examples: inputs, with masks as torch draws them under seed 0.
        probabilities: that a value is dropped, by name of the mask.
    """

    module: torch.nn.Module
    examples: tuple[Any, ...]
    probabilities: Mapping[str, float]


def covers(differences: Sequence[str]) -> bool:
    """Say whether a module does nothing else otherwise while training than what its program can hold.

    That is dropout that can be given masks, and batch normalisation.

    Args:
        differences: as `observe_training` names them, each beginning with the function's name.
    """
    known = _ACTS | {BATCH_NORM}
    return bool(differences) and all(each.partition(" ")[0] in known for each in differences)


def draws(differences: Sequence[str]) -> bool:
    """Say whether a module that `covers` takes has dropout, which needs masks."""
    return any(each.partition(" ")[0] in _ACTS for each in differences)


def give_masks(module: torch.nn.Module, inputs: Sequence[Any]) -> MaskedModule | None:
    """Return a module that takes its masks as inputs; None where its dropout is not all that it draws."""
    names = argument_names(module, len(inputs))
    if "forward" in vars(module) or any(name.startswith(MASK) for name in names) or not all(names):
        return None
    try:
        drawn = draw_masks(module, inputs)
    except Exception:  # foreign code: the user's own module
        return None
    if not drawn:
        return None
    probabilities = {f"{MASK}_{number}": p for number, (_, p) in enumerate(drawn)}
    masked = MaskedModule(
        module=_taking_masks(module, names, list(probabilities)),
        examples=(*inputs, *(mask for mask, _ in drawn)),
        probabilities=probabilities,
    )
    return masked if _draws_nothing_else(masked) else None


def draw_masks(module: torch.nn.Module, inputs: Sequence[Any]) -> list[tuple[torch.Tensor, float]]:
    """Return each call's mask and probability, drawn as torch draws them in train mode under seed 0."""
    drawn: list[tuple[torch.Tensor, float]] = []

    def draw(shape: Sequence[int], like: torch.Tensor, p: float) -> torch.Tensor:
        # torch draws in the order of memory, which a transposed tensor's mask has as well.
        is_whole = like.shape == torch.Size(shape)
        ones = torch.ones_like(like) if is_whole else like.new_ones(tuple(shape))
        drawn.append((_DROPOUT(ones, p, training=True), p))
        return drawn[-1][0]

    with in_mode(module, training=True) as call, torch.no_grad(), _Drops(draw):
        call(*inputs)
    return drawn


def _taking_masks(module: torch.nn.Module, names: Sequence[str], masks: Sequence[str]) -> torch.nn.Module:
    """Return a copy that shares everything with the module and takes masks after its inputs."""
    kind = type(module)

    def forward(self: Any, *given: Any) -> Any:
        waiting = iter(given[len(names) :])

        def take(shape: Sequence[int], like: torch.Tensor, p: float) -> torch.Tensor:
            mask: torch.Tensor = next(waiting)
            if mask.shape != torch.Size(shape):
                raise ValueError(f"a mask has shape {tuple(mask.shape)} in place of {tuple(shape)}")
            return mask

        with _Drops(take), checkpoints_inlined():
            return kind.forward(self, *given[: len(names)])

    # An export names inputs by the signature.
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names, *masks)
    ]
    setattr(forward, "__signature__", inspect.Signature(parameters))  # noqa: B010 - functions declare none
    taking = copy.copy(module)
    taking.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return taking


def _draws_nothing_else(masked: MaskedModule) -> bool:
    """Say whether outputs and gradients are the same under two seeds of torch's own generator."""
    try:
        one, other = (_outputs_and_gradients(masked, seed) for seed in (1, 2))
    except Exception:  # foreign code: the user's own module
        return False
    return len(one) == len(other) and all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(one, other, strict=True)
    )


def _outputs_and_gradients(masked: MaskedModule, seed: int) -> list[torch.Tensor]:
    weights = [each for each in masked.module.parameters() if each.requires_grad]
    with in_mode(masked.module, training=True) as call, torch.enable_grad():
        torch.manual_seed(seed)
        results = [
            leaf for leaf in pytree.tree_leaves(call(*masked.examples)) if isinstance(leaf, torch.Tensor)
        ]
        sums = [leaf.float().sum() for leaf in results if leaf.requires_grad]
        found = torch.autograd.grad(torch.stack(sums).sum(), weights, allow_unused=True) if sums else ()
    return [each.detach() for each in (*results, *found) if each is not None]


class _Drops(TorchFunctionMode):
    """Multiplies by a mask wherever a function of torch would drop values."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (_DROPOUT, torch.dropout):
            return self._dropout(*args, **kwargs)
        if getattr(func, "__name__", "") in _FEATURES and func.__module__ == functional.__name__:
            return self._features(func, *args, **kwargs)
        if func is _ATTENTION:
            return self._attention(*args, **kwargs)
        if getattr(func, "__name__", "") in _RECURRENT and _drops_between_layers(args):
            return self._recurrent(func, args)
        if func is _MULTI_HEAD:
            with self._inside_multi_head():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    @contextmanager
    def _inside_multi_head(self) -> Iterator[None]:
        """Reach the calls that a function of torch makes itself: no mode sees those."""
        functional.dropout = self._dropout
        functional.scaled_dot_product_attention = self._attention
        try:
            yield
        finally:
            functional.dropout = _DROPOUT
            functional.scaled_dot_product_attention = _ATTENTION

    # Parameters have the names that torch gives them: callers pass them by name.
    def _dropout(
        self,
        input: torch.Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        train: bool | None = None,
    ) -> torch.Tensor:
        if not (training if train is None else train) or not p:
            return input
        mask = self._mask(input.shape, input, p)
        return input.mul_(mask) if inplace else input * mask

    def _features(
        self,
        function: Any,
        input: torch.Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> torch.Tensor:
        if not training or not p:
            return input
        if input.dim() != _FEATURES[function.__name__]:
            raise ValueError(f"{function.__name__} of a tensor of {input.dim()} axes")
        mask = self._mask((*input.shape[:2], *[1] * (input.dim() - 2)), input, p)
        return input.mul_(mask) if inplace else input * mask

    def _recurrent(self, function: Any, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Run layer after layer, and drop between them, in torch's order of axes."""
        given, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first = args
        states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
        directions, each = 2 if bidirectional else 1, len(params) // num_layers
        x = given.transpose(0, 1) if batch_first else given
        lasts = []
        for layer in range(num_layers):
            x = self._dropout(x, dropout) if layer else x
            own = [state[layer * directions : (layer + 1) * directions] for state in states]
            weights = params[layer * each : (layer + 1) * each]
            x, *last = function(
                x,
                own[0] if isinstance(hx, torch.Tensor) else tuple(own),
                weights,
                has_biases,
                1,
                0.0,
                train,
                bidirectional,
                False,
            )
            lasts.append(last)
        found = [torch.cat(same) for same in zip(*lasts, strict=True)]
        return (x.transpose(0, 1) if batch_first else x, *found)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if not dropout_p:
            found: torch.Tensor = _ATTENTION(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
            return found
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (each.repeat_interleave(repeats, -3) for each in (key, value))
        scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = scores.softmax(-1)
        return weights * self._mask(weights.shape, weights, dropout_p) @ value


def _drops_between_layers(args: Sequence[Any]) -> bool:
    """Say whether a call of a recurrent network drops values; one of packed sequences counts as none."""
    if len(args) != 9 or not isinstance(args[3], bool):
        return False
    _, _, _, _, num_layers, dropout, train, _, _ = args
    return bool(train and dropout and num_layers > 1)
