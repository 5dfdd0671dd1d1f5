"""Keep functions with a backward of their own (`torch.autograd.Function`) whole in an export.

An export runs a function's forward and loses its backward. Here both are recorded as operators of ATen: the
module is run once, every call of such a function is traced forward and backward on the tensors that it got,
and the export then holds an operator in its place, which becomes a call of torch with both recordings
(`torch_calls`). What is recorded is for those shapes and for those arguments that are no tensors, as the
export is. Checked in tests/tuner/frontend/torch/test_own_functions.py.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tuner.runtime.call_arguments import encode_argument, replay
from tuner.runtime.callable_operators import callable_operator
from tuner.runtime.operator_call import RecordedFunction, RecordedStep, Recording

_NAMESPACE = "tessel_own"

_MAX_STEPS = 1000
"""Operators of a recording: more would make the text of a call, and each run of it, long."""


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A function as it was called: its name, and what it does forward and backward."""

    name: str
    recorded: RecordedFunction


_FUNCTIONS: dict[str, OwnFunction] = {}
"""Function by the name of the operator that stands for it in exports of this process."""

_LIBRARY = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's own


def own_function(target: Any) -> OwnFunction | None:
    """Return the function that an operator of an export stands for; None for any other."""
    if getattr(target, "namespace", "") != _NAMESPACE:
        return None
    return _FUNCTIONS[target.__name__.partition(".")[0]]


def own_functions_of(program: torch.export.ExportedProgram) -> frozenset[str]:
    """Return names of the functions that an export holds whole."""
    found = (own_function(node.target) for node in program.graph.nodes if node.op == "call_function")
    return frozenset(each.name for each in found if each is not None)


@contextmanager
def functions_kept(functions: Sequence[type], run: Callable[[], Any]) -> Iterator[None]:
    """Let an export within the block hold each call of these functions as one operator.

    Args:
        functions: sub-classes of `torch.autograd.Function`.
        run: runs what is to be exported, on its inputs.

    Raises:
        ValueError: a call cannot be recorded; says why.
    """
    calls: dict[Any, tuple[type, tuple[Any, ...]]] = {}

    def note(function: type, given: tuple[Any, ...], original: Callable[..., Any]) -> Any:
        arguments = _arguments(function, given)
        calls.setdefault(_key(function, arguments), (function, pytree.tree_map(_copied, arguments)))
        return original(*given)

    with _forwards_replaced(functions, note):
        run()
    names = {key: _define(function, arguments) for key, (function, arguments) in calls.items()}

    def stand_in(function: type, given: tuple[Any, ...], original: Callable[..., Any]) -> Any:
        arguments = _arguments(function, given)
        name = names.get(_key(function, arguments))
        if name is None:  # a call that the run did not make: its backward is missed by the caller
            return original(*given)
        return getattr(getattr(torch.ops, _NAMESPACE), name)(*_tensors(arguments))

    with _forwards_replaced(functions, stand_in):
        yield


@contextmanager
def _forwards_replaced(functions: Sequence[type], replacement: Callable[..., Any]) -> Iterator[None]:
    """Give calls of the functions' forwards to another, with the function and its own forward.

    `apply` may have been taken from the class before, so it is the forward that is replaced.
    """
    with ExitStack() as stack:
        for function in functions:
            own = function.__dict__.get("forward")
            function.forward = staticmethod(_forward(function, replacement))  # type: ignore[attr-defined]  # each has one
            stack.callback(_restore, function, own)
        yield


def _forward(function: Any, replacement: Callable[..., Any]) -> Callable[..., Any]:
    original = function.forward

    @functools.wraps(original)  # torch reads its signature for defaults
    def forward(*given: Any) -> Any:
        return replacement(function, given, original)

    return forward


def _restore(function: type, own: Any) -> None:
    if own is None:
        del function.forward  # type: ignore[attr-defined]  # what was inherited is found again
    else:
        function.forward = own  # type: ignore[attr-defined]  # each has one


def _arguments(function: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a function was applied to; a context comes first where it sets up none apart."""
    apart = function.setup_context is not torch.autograd.Function.setup_context
    return given if apart else given[1:]


def _key(function: type, arguments: tuple[Any, ...]) -> Any:
    leaves, structure = pytree.tree_flatten(arguments)
    described = tuple(
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else (type(leaf), str(leaf))
        for leaf in leaves
    )
    return function, described, str(structure)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _tensors(arguments: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _define(function: type, arguments: tuple[Any, ...]) -> str:
    """Record a function and return the name of a new operator that stands for it."""
    recorded, num_results = _record(function, arguments)
    name = f"f{len(_FUNCTIONS)}"
    taken = ", ".join(f"Tensor x{index}" for index in range(len(_tensors(arguments))))
    given = "Tensor" if num_results == 1 else f"({', '.join(['Tensor'] * num_results)})"
    _LIBRARY.define(f"{name}({taken}) -> {given}")  # type: ignore[no-untyped-call]  # torch's own

    def run(*tensors: torch.Tensor) -> Any:
        # An operator gives nothing that it was given.
        made = [each.clone() for each in replay(recorded.forward, tensors) if each is not None]
        return made[0] if num_results == 1 else tuple(made)

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # as above
    torch.library.register_fake(f"{_NAMESPACE}::{name}", run, lib=_LIBRARY)
    _FUNCTIONS[name] = OwnFunction(function.__name__, recorded)
    return name


def _record(function: Any, arguments: tuple[Any, ...]) -> tuple[RecordedFunction, int]:
    """Trace a call of a function forward and backward.

    Raises:
        ValueError: it gives something else than tensors, or does what no torch call may do.
    """
    leaves, structure = pytree.tree_flatten(arguments)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = _tensors(arguments)

    def apply(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        made = function.apply(*pytree.tree_unflatten(filled, structure))
        results = made if isinstance(made, tuple) else (made,)
        if not all(isinstance(each, torch.Tensor) for each in results):
            raise ValueError(f"{function.__name__} gives something else than tensors")
        return results

    def forward(*given: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(apply(given))

    results = forward(*tensors)

    def backward(*given: torch.Tensor) -> list[torch.Tensor | None]:
        own = [each.detach() for each in given[: len(tensors)]]
        trained = [each.requires_grad_() for each in own if each.is_floating_point()]
        with torch.enable_grad():
            made = [each for each in apply(own) if each.is_floating_point()]
            flowing = [
                (each, gradient)
                for each, gradient in zip(made, given[len(tensors) :], strict=True)
                if each.requires_grad
            ]
            found: Sequence[torch.Tensor | None] = [None] * len(trained)
            if flowing and trained:
                ends, gradients = zip(*flowing, strict=True)
                found = torch.autograd.grad(ends, trained, gradients, allow_unused=True)
        by_tensor = iter(found)
        return [next(by_tensor) if each.is_floating_point() else None for each in own]

    gradients = [torch.ones_like(each) for each in results if each.is_floating_point()]
    return (
        RecordedFunction(
            forward=_recording(forward, tensors), backward=_recording(backward, [*tensors, *gradients])
        ),
        len(results),
    )


def _recording(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Recording:
    """Return the operators that a function of tensors runs.

    Raises:
        ValueError: one of them is none that a torch call may name; says why.
    """
    traced = make_fx(function)(*tensors)
    if any(_changes(node) for node in traced.graph.nodes):
        traced = make_fx(torch.func.functionalize(traced, remove="mutations"))(*tensors)
    traced.graph.eliminate_dead_code()
    numbers: dict[torch.fx.Node, Any] = {}
    steps: list[RecordedStep] = []
    count = 0
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            numbers[node] = count
            count += 1
        elif node.op == "call_function" and node.target is operator.getitem:
            numbers[node] = numbers[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            name = str(getattr(node.target, "__name__", node.target))
            if getattr(node.target, "namespace", "") != "aten":
                raise ValueError(f"it calls {name}, which is no operator of ATen")
            num_results = len(callable_operator(name)._schema.returns)
            numbers[node] = count if num_results == 1 else range(count, count + num_results)
            count += num_results
            steps.append(
                RecordedStep(
                    operator=name,
                    arguments=tuple(encode_argument(each, numbers.__getitem__) for each in node.args),
                    keywords={
                        str(key): encode_argument(each, numbers.__getitem__)
                        for key, each in node.kwargs.items()
                        if each is not None
                    },
                )
            )
        elif node.op != "output":
            raise ValueError("it reads a tensor that it is not given")
    if len(steps) > _MAX_STEPS:
        raise ValueError(f"it runs {len(steps)} operators, and at most {_MAX_STEPS} are recorded")
    (output,) = traced.graph.find_nodes(op="output")
    return Recording(
        steps=tuple(steps),
        results=tuple(None if each is None else numbers[each] for each in output.args[0]),
    )


def _changes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
