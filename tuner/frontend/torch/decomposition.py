"""Bring an exported program to fixed shapes and to operators that have a converter.

Programs are taken apart only where the converters lack an operator, or its use, by torch's own rules:
attention taken apart altogether would become dozens of operators that no rule recognises. One pass over the
program does both. An operator that would come apart into what nothing converts stays whole as well, since it
can be a call of torch. Checked in tests/tuner/frontend/torch/test_decomposition.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export.graph_signature import InputKind

from tuner.frontend.converters import COMPLEX, CONVERTERS
from tuner.frontend.shapes import static_shapes
from tuner.frontend.torch.blocked_gradients import detach_ungraded
from tuner.frontend.torch.decomposition_rules import OWN_RULES

_MAX_ROUNDS = 8
"""Rounds of decomposition: the second only where the first brought a use that no converter takes."""

NAMESPACES = ("aten", "prims", "transformers", "tessel")
"""Libraries whose operators the converters stand for; one of the same name elsewhere may be another."""


def decompose(
    program: torch.export.ExportedProgram, name: str, *, shapes: Mapping[str, tuple[int, ...]]
) -> torch.export.ExportedProgram:
    """Return the program for fixed shapes, with what has no converter taken apart and the rest whole.

    Args:
        program: exported, for training or for inference.
        name: of the model, for messages.
        shapes: static shapes by name of input, which `require_shapes` found to fit.
    """
    detach_ungraded(program)
    table = dict(_rules())
    whole = program
    with _fixed_shapes(whole, _bound(whole, name, shapes)):
        program = whole.run_decompositions(dict(table))
        while lost := _lost_in_primitives(program, table) | (_checked(program, whole) & table.keys()):
            table = {target: rule for target, rule in table.items() if target not in lost}
            program = whole.run_decompositions(dict(table))
    for _ in range(_MAX_ROUNDS):
        more = {
            node.target: rule
            for node in program.graph.nodes
            if node.op == "call_function"
            and has_converter(node.target)
            and not takes(node)
            and (rule := _all_rules().get(node.target)) is not None
        }
        if not more.keys() - table.keys():
            return program
        table |= more
        program = program.run_decompositions(dict(table))
    return program


def _lost_in_primitives(program: torch.export.ExportedProgram, table: Mapping[Any, Any]) -> set[Any]:
    """Return operators of a table that were taken apart into primitives that nothing converts.

    Whole, they stay calls of torch; autograd differentiates those, and no primitive.
    """
    # A node's note is a copy of the operator, and equals no other.
    names = {
        str(node.meta.get("original_aten"))
        for node in program.graph.nodes
        if getattr(node.target, "namespace", "") == "prims"
        and not has_converter(node.target)
        and node.all_input_nodes
    }
    return {target for target in table if str(target) in names}


def _checked(program: torch.export.ExportedProgram, whole: torch.export.ExportedProgram) -> set[Any]:
    """Return operators that were taken apart into one that gives a status and one that raises if it is bad.

    Those of `linalg` are. The second has an effect, for which a program takes a token that is no tensor.
    """
    names = {
        node.meta["from_node"][-1].name
        for node in program.graph.nodes
        if node.target is torch.ops.higher_order.with_effects and node.meta.get("from_node")
    }
    return {node.target for node in whole.graph.nodes if node.name in names}


def has_converter(target: Any) -> bool:
    """Say whether there is a converter of an operator."""
    known = getattr(target, "namespace", "") in NAMESPACES
    return known and (target.__name__ in CONVERTERS or target.__name__ in COMPLEX)


def takes(node: Any) -> bool:
    """Say whether the converter of a node's operator takes this use of it."""
    refuses = _REFUSALS.get(node.target.__name__)
    return refuses is None or not refuses(node)


@functools.cache
def _rules() -> Mapping[Any, Any]:
    """Return torch's rules for operators that have no converter; making them takes most of a second."""
    return {target: rule for target, rule in _all_rules().items() if not has_converter(target)}


@functools.cache
def _all_rules() -> Mapping[Any, Any]:
    defaults: Any = torch.export.default_decompositions()
    rules = {
        target: rule
        for target, rule in decomposition_table.items()
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    }
    table = {**rules, **{target: defaults[target] for target in defaults}, **OWN_RULES}
    return {target: rule for target, rule in table.items() if target not in _COMPUTED}


def require_shapes(
    program: torch.export.ExportedProgram, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Require that shapes fit a program.

    Args:
        name: of the model, for messages.
        shapes: static shapes by name of input; every input with an open extent needs one.

    Raises:
        UnknownNameError: a shape is given for what is no input.
        ValueError: an extent that the program fixes is given another value, or an open one has none.
    """
    _bound(program, name, shapes)


@contextmanager
def _fixed_shapes(
    program: torch.export.ExportedProgram, bound: Mapping[str, tuple[int, ...]]
) -> Iterator[None]:
    """Give the program's inputs their static shapes while it is traced again."""
    nodes = _input_nodes(program)
    values = {each: node.meta["val"] for each, node in nodes.items() if _is_open(node)}
    try:
        for each, value in values.items():
            with value.fake_mode:
                nodes[each].meta["val"] = torch.empty(bound[each], dtype=value.dtype, device=value.device)
        yield
    finally:
        for each, value in values.items():
            nodes[each].meta["val"] = value


def _bound(
    program: torch.export.ExportedProgram, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the static shape of each input; errors of `require_shapes`."""
    nodes = _input_nodes(program)
    # An extent of 0 that is open, and one that is fixed, are not the same.
    fixed = {each: tuple(node.meta["val"].shape) for each, node in nodes.items() if not _is_open(node)}
    declared = {
        each: _declared(node) for each, node in nodes.items() if each not in fixed or 0 not in fixed[each]
    }
    wanted = {each: shape for each, shape in shapes.items() if shape != fixed.get(each)}
    bound = fixed | static_shapes(name, declared, wanted)
    _require_fit(nodes, bound, name)
    return bound


def _input_nodes(program: torch.export.ExportedProgram) -> dict[str, torch.fx.Node]:
    """Return the inputs of a program that are tensors, by name."""
    wanted = {
        spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT
    }
    return {
        node.name: node
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in wanted and isinstance(node.meta.get("val"), torch.Tensor)
    }


def _declared(node: torch.fx.Node) -> tuple[int, ...]:
    """Return a shape with 0 in place of open extents."""
    return tuple(extent if isinstance(extent, int) else 0 for extent in node.meta["val"].shape)


def _is_open(node: torch.fx.Node) -> bool:
    return not all(isinstance(extent, int) for extent in node.meta["val"].shape)


def _require_fit(nodes: Mapping[str, torch.fx.Node], bound: Mapping[str, tuple[int, ...]], name: str) -> None:
    """Require that fixed extents stay, and that each symbol stands for one number.

    Raises:
        ValueError: an extent does not fit.
    """
    extents: dict[Any, int] = {}
    for each, node in nodes.items():
        for symbol, extent in zip(node.meta["val"].shape, bound[each], strict=True):
            if isinstance(symbol, int) and symbol != extent:
                raise ValueError(
                    f"shape {bound[each]} of input {each!r} does not fit: {name} was exported for "
                    f"{_declared(node)}; export it for other shapes"
                )
            if not isinstance(symbol, int) and extents.setdefault(symbol.node.expr, extent) != extent:
                raise ValueError(
                    f"shape {bound[each]} of input {each!r} does not fit: {name} has {symbol} = "
                    f"{extents[symbol.node.expr]} in another input; give both the same extent"
                )


def _smoothed(node: Any) -> bool:
    """Say whether a cross-entropy is smoothed, or has probabilities for labels."""
    given = dict(
        zip(
            ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing"),
            node.args,
            strict=False,
        )
    )
    given |= node.kwargs
    return bool(given.get("label_smoothing")) or given["target"].meta["val"].is_floating_point()


_COMPUTED = frozenset({torch.ops.aten.linspace.default, torch.ops.aten.logspace.default})
"""Steps between numbers, which torch computes for the importer; by its rules, halves round otherwise."""

_REFUSALS: Mapping[str, Callable[[Any], bool]] = {"cross_entropy_loss.default": _smoothed}
"""Uses of an operator that its converter does not take, though torch takes them apart."""
