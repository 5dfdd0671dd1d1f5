"""Rebuild the description of a tree of inputs or results; torch would import modules that others name.

Checked in tests/tuner/frontend/torch/exported/test_exported_program.py.
"""

from __future__ import annotations

import json
from typing import Any

from tuner.frontend.torch.exported.text_rules import decode_json, shown

_TREES = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"))
_MAX_TREE_DEPTH = 50


def rebuilt_tree(text: str) -> str:
    """Return the description of a tree of inputs or results, made of tuples, lists and dictionaries alone.

    torch imports modules that other nodes name.

    Raises:
        ValueError: there are other nodes in it.
    """
    description = decode_json(text.encode())
    if not isinstance(description, list) or len(description) != 2 or description[0] != 1:
        raise ValueError("the tree of inputs or results is written in another way than torch writes it")
    return json.dumps([1, _rebuilt_node(description[1], _MAX_TREE_DEPTH)])


def _rebuilt_node(node: Any, depth: int) -> dict[str, Any]:
    if not isinstance(node, dict) or not isinstance(node.get("children_spec"), list) or depth == 0:
        raise ValueError(f"{shown(node)} is no tree of inputs or results")
    kind, context = node.get("type"), node.get("context")
    if kind is None:
        if node["children_spec"]:
            raise ValueError("a leaf of a tree of inputs or results has branches")
        return {"type": None, "context": None, "children_spec": []}
    if kind not in _TREES:
        raise ValueError(
            f"{shown(kind)} stands in a tree of inputs or results; give the model tuples, lists and "
            "dictionaries"
        )
    children = [_rebuilt_node(child, depth - 1) for child in node["children_spec"]]
    keys = decode_json(context.encode()) if isinstance(context, str) else None
    if keys is not None and not (isinstance(keys, list) and all(type(key) in (str, int) for key in keys)):
        raise ValueError(f"{shown(context)} are no keys of a dictionary")
    return {"type": kind, "context": json.dumps(keys), "children_spec": children}
