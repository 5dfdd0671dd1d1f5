"""Export a torch module for inference and for the shapes of its example inputs, without torch's own messages.

Checked in tests/tuner/frontend/torch/test_program.py.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import flex_attention
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree

from tuner.frontend.torch.blocked_gradients import checkpoints_inlined

_PLAIN = (torch.Tensor, bool, int, float, complex, str)
"""Types of results that an export takes, beside None, which is nothing."""

_EXPORT_LOGGERS = ("torch.export", "torch.fx.experimental.symbolic_shapes")
"""Loggers that repeat, over many lines, what an export that fails raises."""


def export_module(module: torch.nn.Module, inputs: Sequence[Any]) -> torch.export.ExportedProgram:
    """Return the export of a module in the mode that it is in; torch raises what it happens to raise."""
    examples = with_own_memory(tuple(inputs))
    with checkpoints_inlined(), without_fast_path(), flex_attention_written_out():
        return torch.export.export(module, examples, strict=False)


class PlainResults:
    """A hook after a module's forward: dataclasses become dicts, and what holds no tensors is left out.

    A model of `transformers` returns its cache beside its logits, which an export would refuse.

    Attributes:
        left_out: names of types that were left out.
    """

    def __init__(self) -> None:
        self.left_out: set[str] = set()

    def __call__(self, module: torch.nn.Module, arguments: Any, results: Any) -> Any:
        """Return the results that an export takes; None where it takes them as they are."""
        if all(leaf is None or isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(results)):
            return None
        return self._plain(results)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, list | tuple):
            pairs = [(item, self._plain(item)) for item in value]
            kept = [plain for item, plain in pairs if plain is not None or item is None]
            return kept if isinstance(value, list) else tuple(kept)
        if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
            fields = value if isinstance(value, Mapping) else fields_of(value)
            found = {str(key): self._plain(item) for key, item in fields.items()}
            return {key: plain for key, plain in found.items() if plain is not None}
        if all(leaf is None or isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(value)):
            return value
        self.left_out.add(type(value).__name__)
        return None


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name; those that it holds, not copies."""
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def with_plain_results(module: torch.nn.Module) -> PlainResults:
    """Let a module give results that an export takes, from now on, and return the hook that sees to it."""
    for hook in module._forward_hooks.values():
        if isinstance(hook, PlainResults):
            return hook
    hook = PlainResults()
    if not isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and is not exported
        module.register_forward_hook(hook)
    return hook


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Let encoders, decoders and attention of torch.nn compute in eval mode what they compute while training.

    Without gradients torch gives them kernels of its own, which ignore autocast, leave padding at zero, and
    cut off what is padding in every example: an export, which keeps gradients, holds none of that. Nor do
    they look at a mask's values to see whether it is causal, which no export can.
    """
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    looks = transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    transformer._detect_is_causal_mask = _is_said_to_be_causal
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
        transformer._detect_is_causal_mask = looks


def _is_said_to_be_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


@contextmanager
def quiet_export() -> Iterator[None]:
    """Keep back what torch itself says while it exports: what went wrong comes as an error."""
    loggers = [logging.getLogger(name) for name in _EXPORT_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        # It also prints the graph so far.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def argument_names(module: torch.nn.Module, count: int) -> list[str]:
    """Return the names that an export gives to inputs by position."""
    names: list[str] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{index}" for index in range(count - len(names))]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
    return [*names, *[""] * count][:count]


def with_own_memory(examples: Any) -> Any:
    """Return examples of which none is a view, nor stands twice.

    Of a view, and of what it views, an export would leave extents open. A tensor that is given twice, as in
    `{"input_ids": ids, "labels": ids}`, it would take for one input wherever either is read.
    """
    seen: set[int] = set()

    def own(example: Any) -> Any:
        if not isinstance(example, torch.Tensor):
            return example
        is_shared = example._is_view() or id(example) in seen
        seen.add(id(example))
        return example.clone() if is_shared else example

    return pytree.tree_map(own, examples)


@contextmanager
def flex_attention_written_out() -> Iterator[None]:
    """Have `flex_attention` run its definition, operator by operator.

    torch's own call of it has no backward on a CPU, and an export holds no more of the call than its name and
    functions of Python.

    Source: `torch._higher_order_ops.flex_attention.math_attention` of torch 2.13; what differs is that no
    tensor is made of a number, which an export of functions that are mapped over indices does not take.
    """
    before = {name: getattr(flex_attention, name) for name in _REPLACED}
    vars(flex_attention).update(_REPLACED)
    try:
        yield
    finally:
        vars(flex_attention).update(before)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the attention, and of each row of scores the logarithm of base 2 of its sum, and its maximum.

    Args:
        query: shape (batch, heads, length, width).
        key: shape (batch or 1, heads or a divisor, length, width).
        value: likewise.
        score_mod: gives a score, of a score and its batch, head, query and key.
        block_mask: of which the last says whether a score counts, of the same four indices.
        kernel_options: of kernels that are not used here.
    """
    groups = query.size(1) // key.size(1)
    key, value = (
        each.repeat_interleave(groups, dim=1).expand(query.size(0), -1, -1, -1) for each in (key, value)
    )
    working = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = query.to(working) @ key.to(working).transpose(-2, -1) * scale
    indices = [torch.arange(extent, device=scores.device) for extent in scores.shape]
    with TransformGetItemToIndex():
        scores = flex_attention._vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *indices).to(working)
        counts = flex_attention._vmap_for_bhqkv(block_mask[-1], prefix=())(*indices)
    scores = scores.masked_fill(counts.logical_not(), -math.inf)
    weights = torch._safe_softmax(scores, dim=-1)
    sums, largest = scores.logsumexp(dim=-1), scores.amax(dim=-1)
    return (weights.to(query.dtype) @ value.to(query.dtype), sums / math.log(2), largest / math.log(2))


_REPLACED: Mapping[str, Any] = {
    "flex_attention_hop": _attention,
    "_validate_device": lambda query, key, value: None,
    # It takes the modes off that an export traces with.
    "setup_compilation_env": lambda: nullcontext("eager"),
    "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
}
"""What stands for names of torch's module meanwhile; the last lets it make the call without a compiler."""
