"""Detect training behaviour of a torch module that its exported program lacks, and report it.

An export traces a module for inference, by its forward alone. Two things are lost. What a module does only in
its mode for training: dropout, normalisation by the batch's own statistics, its own branches on `training`.
And what a `torch.autograd.Function` or a backward hook puts in the place of a derivative. Both are found by
running the module once in each mode and looking at the functions that it calls and the graph that autograd
keeps. Checked in tests/tuner/frontend/torch/test_training.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules._functions import BackwardHookFunction
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tuner.frontend.torch.export import flex_attention_written_out, without_fast_path

_TRAINING_ARGUMENTS = ("training", "train", "use_input_stats")
"""What functions of torch call the argument that says that they are to act as for training."""

_PROBABILITY_ARGUMENTS = ("p", "dropout_p", "dropout")
"""What they call the probability of dropping a value."""

_POSITIONAL = {
    "dropout": ("input", "p", "train"),
    "native_dropout": ("input", "p", "train"),
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training"),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p"),
    **dict.fromkeys(
        ("lstm", "gru", "rnn_tanh", "rnn_relu"),
        ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train"),
    ),
}
"""Arguments, in order, of functions written in C++, which have no signature."""

_SAME_BACKWARD = frozenset({"torch.utils.checkpoint.CheckpointFunction"})
"""Functions with a backward of their own that is the derivative of their forward."""

_HOOKS = frozenset({BackwardHookFunction})
"""Functions that carry hooks of their own, which no recording holds."""

_MAX_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBehaviour:
    """How a module trains, beyond what its program for inference says.

    Attributes:
        differences: what acts otherwise while training, and where, such as `dropout (p=0.1) in drop`.
        own_backwards: functions with a backward of their own, and where, such as `Scale in layers.0`.
        only_trained: those of them that are called while training alone.
    """

    differences: tuple[str, ...]
    own_backwards: tuple[str, ...]
    only_trained: tuple[str, ...] = ()


def observe_training(module: torch.nn.Module, inputs: Sequence[Any]) -> TrainingBehaviour:
    """Run a module once in each mode and tell what training adds; the module stays as it was."""
    evaluated = _observe(module, inputs, training=False)
    try:
        trained = _observe(module, inputs, training=True)
    except Exception as error:  # foreign code: the user's own module
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return TrainingBehaviour(
            differences=(f"a mode for training that fails on the example inputs ({reason})",),
            own_backwards=_places(evaluated.own_backwards),
        )
    added = {
        what: paths - evaluated.acts.get(what, set())
        for what, paths in trained.acts.items()
        if paths - evaluated.acts.get(what, set())
    }
    differences = _places(added)
    if not differences and not _are_close(evaluated.outputs, trained.outputs):
        differences = (f"{type(module).__name__}, whose code asks whether it is training",)
    backwards: dict[str, set[str]] = {}
    for found in (evaluated.own_backwards, trained.own_backwards):
        for name, paths in found.items():
            backwards.setdefault(name, set()).update(paths)
    only_trained = {name: paths for name, paths in backwards.items() if name not in evaluated.own_backwards}
    return TrainingBehaviour(
        differences=differences, own_backwards=_places(backwards), only_trained=_places(only_trained)
    )


def find_own_backwards(module: torch.nn.Module, inputs: Sequence[Any]) -> tuple[str, ...]:
    """Name what has a backward of its own in the module's mode, and where, such as `Scale in layers.0`."""
    return _places(_observe(module, inputs, training=None).own_backwards)


def own_functions(module: torch.nn.Module, inputs: Sequence[Any]) -> tuple[type, ...]:
    """Return the `torch.autograd.Function`s that a module calls in eval mode, but for hooks, by name."""
    found = _observe(module, inputs, training=False).functions
    return tuple(sorted(found - _HOOKS, key=lambda each: each.__qualname__))


@contextmanager
def in_mode(
    module: torch.nn.Module, *, training: bool | None, state: dict[str, torch.Tensor] | None = None
) -> Iterator[Callable[..., Any]]:
    """Give a call of the module in a mode; its mode, its buffers and torch's random state stay as they were.

    Args:
        training: None calls it in the mode that it is in; exported programs have but one.
        state: stands in for its parameters and buffers by name; after a call it holds what that wrote.
    """
    modes = [(each, each.training) for each in module.modules()]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    buffers.update(state or {})

    def call(*inputs: Any) -> Any:
        # Without a gradient, torch runs this attention itself.
        with flex_attention_written_out() if torch.is_grad_enabled() else nullcontext():
            results = torch.func.functional_call(module, buffers, inputs)
        if state is not None:
            state.update((name, buffers[name]) for name in tuple(state))
        return results

    try:
        if training is not None:
            module.train(training)
        with torch.random.fork_rng(devices=[]), without_fast_path():
            torch.manual_seed(0)
            yield call
    finally:
        for each, mode in modes:
            each.training = mode


@dataclass(slots=True)
class _Observed:
    """What one run showed: acts of training, and functions with their own backward, with paths of modules."""

    acts: dict[str, set[str]] = field(default_factory=dict)
    own_backwards: dict[str, set[str]] = field(default_factory=dict)
    functions: set[type] = field(default_factory=set)
    outputs: list[torch.Tensor] = field(default_factory=list)


def _observe(module: torch.nn.Module, inputs: Sequence[Any], *, training: bool | None) -> _Observed:
    observed = _Observed()
    path: list[str] = [""]
    seen: set[Any] = set()

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: path.append(name)

    def leave(_: Any, __: Any, result: Any) -> None:
        for function in _own_backwards(result, seen):
            observed.functions.add(function)
            observed.own_backwards.setdefault(function.__qualname__, set()).add(path[-1])
        if len(path) > 1:
            path.pop()

    handles = []
    try:
        for name, each in module.named_modules():
            handles += [
                each.register_forward_pre_hook(enter(name)),
                each.register_forward_hook(leave),
            ]
        with in_mode(module, training=training) as call, torch.enable_grad(), _Acts(observed.acts, path):
            result = call(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    observed.outputs = [leaf.detach() for leaf in pytree.tree_leaves(result) if _is_tensor(leaf)]
    return observed


class _Acts(TorchFunctionMode):
    """Notes each function of torch that is told to act as for training, and the module that calls it."""

    def __init__(self, found: dict[str, set[str]], path: Sequence[str]) -> None:
        super().__init__()
        self._found = found
        self._path = path

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        act = _act_of(func, args, kwargs)
        if act:
            self._found.setdefault(act, set()).add(self._path[-1])
        return func(*args, **kwargs)


def _act_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return how a call acts as for training, such as `dropout (p=0.1)`; empty where it does not."""
    name = getattr(function, "__name__", "")
    given = _arguments(function, name, args, kwargs)
    flags = [given[flag] for flag in _TRAINING_ARGUMENTS if flag in given]
    probabilities = [float(given[p]) for p in _PROBABILITY_ARGUMENTS if isinstance(given.get(p), float | int)]
    if not any(flag is True for flag in flags) and (flags or not any(probabilities)):
        return ""
    if probabilities:
        return f"{name} (p={probabilities[0]:g})" if probabilities[0] else ""
    return name


def _arguments(function: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    if name in _POSITIONAL and not inspect.isfunction(function):
        return {**dict(zip(_POSITIONAL[name], args, strict=False)), **kwargs}
    if not inspect.isfunction(function):
        return kwargs
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # `**` and its like wrap functions of C++, whose signature is asked for
        return kwargs


def _own_backwards(result: Any, seen: set[Any]) -> list[type]:
    """Return the functions with a backward of their own behind a result, less those that were seen before."""
    waiting = [leaf.grad_fn for leaf in pytree.tree_leaves(result) if _is_tensor(leaf) and leaf.requires_grad]
    functions = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and f"{function.__module__}.{function.__qualname__}" not in _SAME_BACKWARD:
            functions.append(function)
        waiting.extend(following for following, _ in node.next_functions)
    return functions


def _places(found: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Say where each thing was found, the first few places by name."""
    sentences = []
    for what, paths in sorted(found.items()):
        named = [path or "the module itself" for path in sorted(paths)]
        more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        sentences.append(f"{what} in {', '.join(named[:_MAX_NAMED])}{more}")
    return tuple(sentences)


def _are_close(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
