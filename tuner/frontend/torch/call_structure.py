"""The call of an exported program as plain data: its arguments and results as trees.

Tuples, lists and dictionaries stay what they are; of other classes that torch takes apart, those with keys
become dictionaries and the rest tuples. Checked in tests/tessel/compiling/test_call_structure.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from tuner.errors import UnsupportedOperatorError
from tuner.runtime.call_structure import (
    CallStructure,
    ConstantLeaf,
    MappingNode,
    SequenceNode,
    TensorLeaf,
    Tree,
)


def call_structure(program: torch.export.ExportedProgram) -> CallStructure:
    """Return how a program is called.

    Raises:
        UnsupportedOperatorError: it takes or gives a constant that is no number, text or truth value.
    """
    signature = program.graph_signature
    inputs = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    outputs = [spec.arg for spec in signature.output_specs if spec.kind in kinds]
    of_arguments, of_keywords = program.call_spec.in_spec.children()
    leaves = _leaves(inputs)
    arguments = [_tree(spec, leaves) for spec in of_arguments.children()]
    keywords = [_tree(spec, leaves) for spec in of_keywords.children()]
    return CallStructure(
        names=_argument_names(program, arguments, inputs),
        arguments=tuple(arguments),
        keywords=dict(zip(map(str, of_keywords.context or ()), keywords, strict=True)),
        results=_tree(program.call_spec.out_spec, _leaves(outputs)),
    )


def _leaves(arguments: Sequence[Any]) -> Iterator[Tree]:
    position = 0
    for argument in arguments:
        if isinstance(argument, TensorArgument):
            yield TensorLeaf(position)
            position += 1
            continue
        value = getattr(argument, "value", None)
        if not isinstance(value, None | bool | int | float | str):
            raise UnsupportedOperatorError(
                f"the program takes or gives {value!r:.60}, which is no tensor, number or text; leave it out"
            )
        yield ConstantLeaf(value)


def _tree(spec: Any, leaves: Iterator[Tree]) -> Tree:
    if spec.is_leaf():
        return next(leaves)
    items = tuple(_tree(child, leaves) for child in spec.children())
    if spec.type is list:
        return SequenceNode("list", items)
    keys = spec.context
    is_named = isinstance(keys, list | tuple) and len(keys) == len(items)
    if is_named and (spec.type in (dict, OrderedDict) or all(isinstance(key, str) for key in keys)):
        return MappingNode(tuple(keys), items)
    return SequenceNode("tuple", items)


def _argument_names(
    program: torch.export.ExportedProgram, arguments: Sequence[Tree], inputs: Sequence[Any]
) -> tuple[str, ...]:
    """Return the names of the arguments by position, as the forward has them where the program knows that."""
    entries = [entry for entry in program.module_call_graph if entry.fqn == ""]
    names = getattr(entries[0].signature, "forward_arg_names", None) if entries else None
    found = list(names or ())[: len(arguments)]
    tensors = [argument.name for argument in inputs if isinstance(argument, TensorArgument)]
    for position, tree in enumerate(arguments[len(found) :], len(found)):
        found.append(tensors[tree.position] if isinstance(tree, TensorLeaf) else f"argument_{position}")
    return tuple(found)


def has_own_classes(spec: Any) -> bool:
    """Say whether a tree of results holds classes of the user's, which plain data do not keep."""
    if spec.is_leaf():
        return False
    known = spec.type in (tuple, list, dict, OrderedDict)
    return not known or any(map(has_own_classes, spec.children()))


def leaves_of(tree: Tree) -> list[TensorLeaf | ConstantLeaf]:
    """Return the leaves of a tree in torch's order."""
    if isinstance(tree, SequenceNode | MappingNode):
        return [leaf for item in tree.items for leaf in leaves_of(item)]
    return [tree]


def own_results(
    program: torch.export.ExportedProgram, results: Tree
) -> Callable[[Sequence[Any]], Any] | None:
    """Return what rebuilds results in the user's own classes; None where there are none."""
    spec = program.call_spec.out_spec
    if not has_own_classes(spec):
        return None
    leaves = leaves_of(results)

    def rebuild_own(tensors: Sequence[Any]) -> Any:
        values = [tensors[leaf.position] if isinstance(leaf, TensorLeaf) else leaf.value for leaf in leaves]
        return pytree.tree_unflatten(values, spec)

    return rebuild_own
