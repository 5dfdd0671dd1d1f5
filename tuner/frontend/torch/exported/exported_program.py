"""Build the program of a `.pt2` file without executing any code contained in it.

`torch.export.load` runs code that a file brings, in more ways than pickles: sample inputs and constants are
unpickled, whatever `weights_only` says; symbols are evaluated as Python; names of values become the text of a
function; trees of inputs name modules to import; targets of calls are looked up in all of `torch`; libraries
that a compiler packed are loaded. So its reader is not used. Here

- weights and constants are read as raw bytes into tensors (`stored_tensors`; old files' pickles by torch's
  `weights_only` reader, which builds tensors alone); sample inputs, guards, packed libraries and extra files
  are never read;
- the program is rebuilt from its JSON field by field, after torch's own schema (`typed_schema`): every value
  must have the field's type, names must be identifiers and a call's target an operator of tensors from a
  closed set (`text_rules`), symbols must pass `symbolic_expression`, and trees hold tuples, lists and
  dictionaries alone;
- only what passed is handed to torch's deserialiser, which then finds nothing to evaluate but expressions.

The model of the world: torch's operators do what their schemas say. How much memory and time a program takes
is not decided here; see `sandbox`. Checked with files that try each way in, in
tests/tuner/frontend/torch/exported/test_exported_program.py.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer

from tuner.frontend.torch.exported.model_archive import ModelArchive
from tuner.frontend.torch.exported.stored_tensors import read_tensors, unpickled_tensors
from tuner.frontend.torch.exported.symbolic_expression import check_expression, check_symbol
from tuner.frontend.torch.exported.text_rules import decode_json, name_rule, shown
from tuner.frontend.torch.exported.typed_schema import typed

_PROGRAM = "models/model.json"
_WEIGHTS = "data/weights/"
_CONSTANTS = "data/constants/"

_OLD_PROGRAM = "serialized_exported_program.json"
_OLD_WEIGHTS = "serialized_state_dict.pt"
_OLD_CONSTANTS = "serialized_constants.pt"

_VERIFIERS = frozenset(("", "ATEN", "TRAINING", "EDGE"))


def load_program(content: bytes) -> torch.export.ExportedProgram:
    """Return the program that `torch.export.save` wrote into these bytes.

    Example inputs and guards are left out. Cost: linear in the file, apart from what torch itself does.

    Raises:
        UnsupportedOperatorError: the program calls what is no operator of tensors; the message names it.
        ValueError: the bytes are no exported program, or hold what could run code.
    """
    archive = ModelArchive(content)
    if _OLD_PROGRAM in archive:
        program = _decode_program(archive.read(_OLD_PROGRAM))
        weights, constants = (
            unpickled_tensors(archive, _OLD_WEIGHTS),
            unpickled_tensors(archive, _OLD_CONSTANTS),
        )
    else:
        root = _root(archive)
        program = _decode_program(archive.read(root + _PROGRAM))
        weights = read_tensors(archive, root + _WEIGHTS, "model_weights_config.json")
        constants = read_tensors(archive, root + _CONSTANTS, "model_constants_config.json")
    return ExportedProgramDeserializer().deserialize(program, weights, constants, None)


def _root(archive: ModelArchive) -> str:
    """Return the folder that all entries of an archive lie in, with its slash.

    Raises:
        ValueError: the archive holds no exported program.
    """
    root = archive.names[0].partition("/")[0] + "/" if archive.names else ""
    if f"{root}archive_format" not in archive or archive.read(f"{root}archive_format") != b"pt2":
        raise ValueError("the archive is none that torch.export.save wrote")
    if root + _PROGRAM not in archive:
        packed = any(name.startswith(f"{root}data/aotinductor/") for name in archive.names)
        held = "only a compiled library, which is never loaded" if packed else "no program named 'model'"
        raise ValueError(f"the archive holds {held}")
    return root


def _decode_program(content: bytes) -> schema.ExportedProgram:
    try:
        program: schema.ExportedProgram = typed(schema.ExportedProgram, decode_json(content), name_rule)
    except RecursionError as error:
        raise ValueError("the program is nested deeper than any") from error
    for extent in program.range_constraints:
        check_expression(extent)
    graph = program.graph_module
    unknown = set(program.verifiers) - _VERIFIERS
    if unknown:
        raise ValueError(
            f"the program is written in the dialect {min(unknown)!r}, not in that of torch.export"
        )
    called = [dataclasses.replace(entry) for entry in graph.module_call_graph if entry.fqn == ""]
    for entry in called:
        if entry.signature is not None:
            entry.signature = dataclasses.replace(
                entry.signature,
                in_spec=_rebuilt_tree(entry.signature.in_spec),
                out_spec=_rebuilt_tree(entry.signature.out_spec),
            )
    # Guards are Python, and the rest says only where the program came from.
    graph = dataclasses.replace(graph, module_call_graph=called, metadata={}, treespec_namedtuple_fields={})
    # Of ranges, those of symbols say all; torch itself fails on the ranges of expressions that it writes.
    ranges = {name: each for name, each in program.range_constraints.items() if _is_symbol(name)}
    return dataclasses.replace(program, graph_module=graph, range_constraints=ranges, guards_code=[])


def _is_symbol(text: str) -> bool:
    try:
        check_symbol(text)
    except ValueError:
        return False
    return True


_TREES = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"))
_MAX_TREE_DEPTH = 50


def _rebuilt_tree(text: str) -> str:
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
