"""How a program is called: its arguments by position and name, and trees of tensors in and out.

Plain data, and what flattens and rebuilds such trees; a tree holds tuples, lists, dictionaries, tensors and
constants, and nothing that a file could name. Checked in tests/tessel/compiling/test_call_structure.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

import msgspec

Plain = None | bool | int | float | str
"""A constant in a tree."""


class TensorLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tensor"):
    """A tensor, by its position among the program's inputs or outputs."""

    position: int


class ConstantLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="constant"):
    """A value that the program was compiled for, or gives whatever it is given."""

    value: Plain


class SequenceNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sequence"):
    """A tuple or a list."""

    kind: Literal["tuple", "list"]
    items: tuple[Tree, ...]


class MappingNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="mapping"):
    """A dictionary, in its order."""

    keys: tuple[str | int, ...]
    items: tuple[Tree, ...]


Tree = Union[TensorLeaf, ConstantLeaf, SequenceNode, MappingNode]  # noqa: UP007 - msgspec resolves names late


class CallStructure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments and the results of a program.

    Attributes:
        names: of the arguments by position, which may be given by name, too.
        arguments: the tree of each.
        keywords: trees of arguments that are given by name alone.
        results: the tree of what is returned.
    """

    names: tuple[str, ...]
    arguments: tuple[Tree, ...]
    keywords: dict[str, Tree]
    results: Tree

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any], num_inputs: int) -> list[Any]:
        """Return the tensors of a call in the order of the program's inputs.

        Raises:
            TypeError: an argument is missing, unknown or given twice, or its tree is another one.
            ValueError: a constant is another one than the program was compiled for.
        """
        if len(args) > len(self.arguments):
            raise TypeError(f"the program takes {len(self.arguments)} inputs by position, not {len(args)}")
        given = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"input {name!r} is given by position and by name; give it once")
            if name not in self.names and name not in self.keywords:
                known = ", ".join([*self.names, *self.keywords])
                raise TypeError(f"the program has no input {name!r}; it takes {known}")
            given[name] = value
        found: list[Any] = [None] * num_inputs
        for name, tree in (*zip(self.names, self.arguments, strict=True), *self.keywords.items()):
            if name in given:
                _flatten(tree, given[name], name, found)
            elif _holds_tensor(tree):
                raise TypeError(f"input {name!r} is missing; give it by position or by name")
        return found

    @property
    def is_flat(self) -> bool:
        """Whether every argument is one tensor, in the order of the inputs."""
        plain = [
            isinstance(each, TensorLeaf) and each.position == at for at, each in enumerate(self.arguments)
        ]
        return all(plain) and not self.keywords


def rebuilder(tree: Tree) -> Callable[[Sequence[Any]], Any]:
    """Return what puts tensors into the places of a tree's leaves; as quick as a call of a program asks."""
    match tree:
        case TensorLeaf():
            return operator.itemgetter(tree.position)
        case ConstantLeaf():
            value = tree.value
            return lambda tensors: value
        case SequenceNode(kind="tuple", items=(TensorLeaf(), TensorLeaf(), *_) as leaves) if all(
            isinstance(leaf, TensorLeaf) for leaf in leaves
        ):
            return operator.itemgetter(*(leaf.position for leaf in leaves if isinstance(leaf, TensorLeaf)))
        case SequenceNode():
            items = [rebuilder(item) for item in tree.items]
            make = tuple if tree.kind == "tuple" else list
            return lambda tensors: make([item(tensors) for item in items])
        case MappingNode():
            pairs = [(key, rebuilder(item)) for key, item in zip(tree.keys, tree.items, strict=True)]
            return lambda tensors: {key: item(tensors) for key, item in pairs}


def flat_structure(names: Sequence[str], num_results: int) -> CallStructure:
    """Return the structure of a program that takes tensors by position or name, and gives one or a tuple."""
    leaves = tuple(TensorLeaf(position) for position in range(num_results))
    return CallStructure(
        names=tuple(names),
        arguments=tuple(TensorLeaf(position) for position in range(len(names))),
        keywords={},
        results=leaves[0] if num_results == 1 else SequenceNode("tuple", leaves),
    )


def _flatten(tree: Tree, value: Any, name: str, found: list[Any]) -> None:
    match tree:
        case TensorLeaf():
            found[tree.position] = value
        case ConstantLeaf():
            if type(value) is not type(tree.value) or value != tree.value:
                raise ValueError(
                    f"input {name!r} is {value!r:.60}, but the program was compiled for {tree.value!r}; "
                    "compile it again for another"
                )
        case SequenceNode():
            if not isinstance(value, tuple | list) or len(value) != len(tree.items):
                raise TypeError(
                    f"input {name!r} is {_described(value)}, but the program takes a {tree.kind} of "
                    f"{len(tree.items)}"
                )
            for index, (item, inner) in enumerate(zip(tree.items, value, strict=True)):
                _flatten(item, inner, f"{name}[{index}]", found)
        case MappingNode():
            if not isinstance(value, Mapping) or set(value) != set(tree.keys):
                raise TypeError(
                    f"input {name!r} is {_described(value)}, but the program takes a dictionary of "
                    f"{', '.join(map(str, tree.keys))}"
                )
            for key, item in zip(tree.keys, tree.items, strict=True):
                _flatten(item, value[key], f"{name}[{key!r}]", found)


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(str, value))}"
    is_sized = isinstance(value, tuple | list)
    return f"a {type(value).__name__}" + (f" of {len(value)}" if is_sized else "")


def _holds_tensor(tree: Tree) -> bool:
    if isinstance(tree, SequenceNode | MappingNode):
        return any(map(_holds_tensor, tree.items))
    return isinstance(tree, TensorLeaf)
