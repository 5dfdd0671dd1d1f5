"""Build the program of a `.pt2` file without executing any code contained in it.

`torch.export.load` runs code that a file brings, in more ways than pickles: sample inputs and constants are
unpickled, whatever `weights_only` says; symbols are evaluated as Python; names of values become the text of a
function; trees of inputs name modules to import; targets of calls are looked up in all of `torch`; libraries
that a compiler packed are loaded. So its reader is not used. Here

- weights and constants are read as raw bytes into tensors (old files' pickles by torch's `weights_only`
  reader, which builds tensors alone); sample inputs, guards, packed libraries and extra files are never read;
- the program is rebuilt from its JSON field by field, after torch's own schema: every value must have the
  field's type, names must be identifiers, symbols must pass `symbolic_expression`, trees hold tuples, lists
  and dictionaries alone, and a call's target must be an operator of tensors from a closed set;
- only what passed is handed to torch's deserialiser, which then finds nothing to evaluate but expressions.

The model of the world: torch's operators do what their schemas say. How much memory and time a program takes
is not decided here; see `sandbox`. Checked with files that try each way in, in
tests/tuner/frontend/test_exported_program.py.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import json
import keyword
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE, ExportedProgramDeserializer
from torch._export.serde.union import _Union

from tuner.errors import UnsupportedOperatorError
from tuner.frontend.model_archive import ModelArchive
from tuner.frontend.symbolic_expression import check_expression, check_symbol

Tensors = dict[str, torch.Tensor]

_PROGRAM = "models/model.json"
_WEIGHTS = "data/weights/"
_CONSTANTS = "data/constants/"

_OLD_PROGRAM = "serialized_exported_program.json"
_OLD_WEIGHTS = "serialized_state_dict.pt"
_OLD_CONSTANTS = "serialized_constants.pt"

_MAX_TEXT = 100_000
_MAX_INTEGER = 2**64
_ROOM_BYTES = 64 * 2**20
"""Bytes by which tensors may be larger, together, than what the file holds of them: expanded views and
weights without values cost a file nothing."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_PATH = re.compile(r"[\w.\-@ /\[\]]{0,1000}")
"""Dotted paths of parameters and modules; no character that could end a string in generated code."""

_FILE = re.compile(r"[\w.\-]{1,255}")
_DEVICE = re.compile(r"[a-z]{1,20}")
_VERIFIERS = frozenset(("", "ATEN", "TRAINING", "EDGE"))

_ATEN = re.compile(r"torch\.(?:_ops|ops)\.aten\.([a-z_]\w{0,99})\.([A-Za-z_]\w{0,99})")
_ARITHMETIC = frozenset(
    f"_operator.{name}"
    for name in (
        *("add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "mod", "mul", "ne"),
        *("neg", "or_", "pos", "pow", "rshift", "sub", "truediv"),
    )
)
_SYMBOLIC = _ARITHMETIC | frozenset(
    (
        *("torch.sym_float", "torch.sym_int", "torch.sym_ite", "torch.sym_max", "torch.sym_min"),
        *("torch.sym_not", "torch.sym_sqrt", "torch.sym_sum", "torch._sym_sqrt"),
        *("math.ceil", "math.floor", "math.trunc"),
    )
)
"""Functions of symbols that are no operators of tensors; each computes a number from numbers."""

_HIGHER_ORDER = frozenset(
    f"torch.ops.higher_order.{name}"
    for name in (
        *("associative_scan", "cond", "map_impl", "scan", "while_loop", "wrap_with_autocast"),
        "wrap_with_set_grad_enabled",
    )
)
"""Operators that take graphs, which are checked like the whole."""

_TOUCHING_FILES = frozenset(("from_file", "save"))
_ASSERTIONS = re.compile(r"_?(functional_)?(assert|sym_constrain)_\w+")

_TREES = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"))
_MAX_TREE_DEPTH = 50


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
        weights, constants = _unpickled(archive, _OLD_WEIGHTS), _unpickled(archive, _OLD_CONSTANTS)
    else:
        root = _root(archive)
        program = _decode_program(archive.read(root + _PROGRAM))
        weights = _read_tensors(archive, root + _WEIGHTS, "model_weights_config.json")
        constants = _read_tensors(archive, root + _CONSTANTS, "model_constants_config.json")
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


# Weights and constants


def _read_tensors(archive: ModelArchive, folder: str, config_name: str) -> Tensors:
    """Return tensors by name. Names that share an entry share its memory, so that tied weights stay tied."""
    legacy = f"{folder}model.pt"
    if legacy in archive:
        return _unpickled(archive, legacy)
    config: schema.PayloadConfig = _typed(
        schema.PayloadConfig, _decode_json(archive.read(folder + config_name)), _text
    )
    storages: Tensors = {}
    tensors: Tensors = {}
    room = _ROOM_BYTES
    for name, payload in config.config.items():
        _path(name)
        if payload.use_pickle or payload.tensor_meta is None:
            # Of what torch pickles, no TVM program could be made: sub-classes of tensors, and objects.
            raise ValueError(f"tensor {name!r} is pickled, and a pickle may run code; save plain tensors")
        entry = folder + payload.path_name
        dtype = _SERIALIZE_TO_TORCH_DTYPE[payload.tensor_meta.dtype]
        extents = tuple(_whole(extent) for extent in payload.tensor_meta.sizes)
        num_bytes = _num_bytes(extents, dtype)
        if entry not in storages:
            storages[entry] = _storage(archive.read(entry), dtype)
        storage = storages[entry]
        if storage.dtype != dtype:
            storage = storage.view(torch.uint8).view(dtype)
        held = storage.numel() * dtype.itemsize
        room -= max(num_bytes - held, 0)
        if room < 0:
            raise ValueError(f"tensor {name!r} has {num_bytes} bytes, and the file holds {held} of it")
        tensors[name] = _parameter(_strided(storage, extents, payload.tensor_meta), payload)
    return tensors


def _storage(content: bytes, dtype: torch.dtype) -> torch.Tensor:
    if len(content) % dtype.itemsize:
        raise ValueError(f"{len(content)} bytes are no whole number of {dtype}")
    return torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)


def _strided(storage: torch.Tensor, extents: tuple[int, ...], meta: schema.TensorMeta) -> torch.Tensor:
    """Return a view; torch refuses one that reaches beyond its storage."""
    if not storage.numel():
        return torch.zeros(extents, dtype=storage.dtype)  # as a program has that was exported without values
    strides = tuple(_whole(stride) for stride in meta.strides)
    if any(number < 0 for number in strides):
        raise ValueError(f"strides {strides} are below 0")
    return torch.as_strided(storage, extents, strides, _whole(meta.storage_offset))


def _parameter(tensor: torch.Tensor, payload: schema.PayloadMeta) -> torch.Tensor:
    if not payload.is_param or payload.tensor_meta is None:
        return tensor
    return torch.nn.Parameter(tensor, requires_grad=payload.tensor_meta.requires_grad)


def _whole(extent: schema.SymInt) -> int:
    if extent.type != "as_int" or not 0 <= extent.as_int < 2**48:
        raise ValueError("a stored tensor has an extent that is no number")
    return extent.as_int


def _num_bytes(extents: tuple[int, ...], dtype: torch.dtype) -> int:
    return functools.reduce(int.__mul__, extents, dtype.itemsize)


def _unpickled(archive: ModelArchive, name: str) -> Tensors:
    """Return tensors that an old file holds as a pickle, by the reader that builds nothing but tensors."""
    content = archive.read(name)
    if not content:
        return {}
    ModelArchive(content)  # torch.save writes an archive too, whose directory could lie
    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict):
        raise ValueError(f"entry {name!r} holds a {type(tensors).__name__}, and tensors by name are wanted")
    room = len(content) + _ROOM_BYTES
    for key, tensor in tensors.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise ValueError(f"entry {name!r} holds {key!r}, which is no named tensor")
        _path(key)
        room -= tensor.nbytes
    if room < 0:
        raise ValueError(f"entry {name!r} holds tensors that are larger than itself")
    return tensors


# The program


def _decode_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the program is no JSON ({type(error).__name__})") from error


def _decode_program(content: bytes) -> schema.ExportedProgram:
    try:
        program: schema.ExportedProgram = _typed(schema.ExportedProgram, _decode_json(content), _name)
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


Rule = Callable[[str], str]


def _typed(kind: Any, data: Any, rule: Rule) -> Any:
    """Return the data as a value of torch's schema, made of nothing but what the type and rules allow.

    Args:
        kind: a type of the schema, or of one of its fields.
        data: what JSON decoded to.
        rule: what a text must be; returns the text that stands for it.

    Raises:
        ValueError: the data is of another type, or a text breaks its rule.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (some,) = (argument for argument in arguments if argument is not type(None))
        return None if data is None else _typed(some, data, rule)
    if origin is list and isinstance(data, list):
        return [_typed(arguments[0], item, rule) for item in data]
    if origin is dict and isinstance(data, dict):
        return {key: _typed(arguments[1], value, rule) for key, value in data.items()}
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        return _struct(kind, data)
    if isinstance(kind, type) and origin is None and not isinstance(data, list | dict):
        return _scalar(kind, data, rule)
    raise ValueError(f"{_shown(data)} stands where a value of {kind} belongs")


def _struct(kind: Any, data: Mapping[str, Any]) -> Any:
    """Return an instance of one of the schema's classes; keys of later versions are left out."""
    hints = _hints(kind)
    if issubclass(kind, _Union):
        if len(data) != 1 or next(iter(data)) not in hints:
            raise ValueError(f"{_shown(list(data))} is no choice of {kind.__name__}")
        ((name, value),) = data.items()
        made = {name: _typed(hints[name], value, _rule(kind, name))}
        return kind.create(**made)
    values = {
        name: _typed(hints[name], data[name], _rule(kind, name))
        for name in hints
        if name in data and (kind.__name__, name) not in _LEFT_OUT
    }
    for name in hints:
        if (kind.__name__, name) in _NAMED_BY_KEY:
            for key in values.get(name, {}):
                _name(key)
    if kind is schema.Node:
        said = data.get("metadata")
        stack = said.get("nn_module_stack") if isinstance(said, dict) else None
        values["metadata"] = {} if stack is None else {"nn_module_stack": _text(stack)}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__} lacks a key ({error})") from error


def _scalar(kind: type[Any], data: Any, rule: Rule) -> Any:
    if kind is str and isinstance(data, str):
        return rule(data)
    if kind is bool and isinstance(data, bool):
        return data
    if kind is int and type(data) is int and abs(data) <= _MAX_INTEGER:
        return data
    if kind is float and (type(data) in (int, float) or data in ("Infinity", "-Infinity", "NaN")):
        return float(data)
    if issubclass(kind, enum.IntEnum) and type(data) is int:
        return kind(data)
    raise ValueError(f"{_shown(data)} stands where a value of {kind.__name__} belongs")


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return {
        name: hint
        for name, hint in typing.get_type_hints(kind, globalns=vars(schema)).items()
        if not name.startswith("_")
    }


_LEFT_OUT = frozenset((("Node", "metadata"), ("GraphModule", "metadata")))
"""Fields that are not read: what they say is only for people, or names what would be looked up."""

_NAMED_BY_KEY = frozenset(
    ("Graph", name)
    for name in (
        "tensor_values",
        "sym_int_values",
        "sym_bool_values",
        "sym_float_values",
        "custom_obj_values",
    )
)


def _rule(kind: type[Any], field: str) -> Rule:
    return _RULES.get((kind.__name__, field), _name)


def _name(text: str) -> str:
    """Accept an identifier: names of values become the text of a function."""
    if text and (not _NAME.fullmatch(text) or keyword.iskeyword(text)):
        raise ValueError(f"{_shown(text)} is no name of a value")
    return text


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueError(f"{_shown(text)} is no path of a parameter or module")
    return text


def _file(text: str) -> str:
    if not _FILE.fullmatch(text) or text.startswith("."):
        raise ValueError(f"{_shown(text)} is no entry of the archive")
    return text


def _text(text: Any) -> str:
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise ValueError(f"{_shown(text)} is no text that a program holds")
    return text


def _device(text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise ValueError(f"{_shown(text)} is no device")
    return text


def _expression(text: str) -> str:
    check_expression(text)
    return text


def _operator(text: str) -> str:
    """Accept the target of a call.

    Raises:
        UnsupportedOperatorError: it is no operator of tensors.
    """
    found = _ATEN.fullmatch(text)
    if found is not None and _computes(*found.groups()):
        return text
    if text in _SYMBOLIC or text in _HIGHER_ORDER:
        return text
    raise UnsupportedOperatorError(
        f"the program calls {_shown(text)}, which is no operator of torch.ops.aten that computes tensors "
        "from tensors; write the model without it, or export it decomposed"
    )


@functools.cache
def _computes(name: str, overload: str) -> bool:
    """Whether an operator of ATen is known, and returns what it computes instead of acting on the outside."""
    operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if not isinstance(operator, torch._ops.OpOverload) or name in _TOUCHING_FILES:
        return False
    return bool(operator._schema.returns) or _ASSERTIONS.fullmatch(name) is not None


_RULES: Mapping[tuple[str, str], Rule] = {
    ("Argument", "as_operator"): _operator,
    ("Argument", "as_string"): _text,
    ("Argument", "as_strings"): _text,
    ("ConstantValue", "as_string"): _text,
    ("CustomObjArgument", "class_fqn"): _path,
    ("Device", "type"): _device,
    ("ExportedProgram", "guards_code"): lambda text: "",
    ("ExportedProgram", "torch_version"): _text,
    ("InputToBufferSpec", "buffer_name"): _path,
    ("InputToCustomObjSpec", "custom_obj_name"): _path,
    ("InputToParameterSpec", "parameter_name"): _path,
    ("InputToTensorConstantSpec", "tensor_constant_name"): _path,
    ("BufferMutationSpec", "buffer_name"): _path,
    ("GradientToParameterSpec", "parameter_name"): _path,
    ("ModuleCallEntry", "fqn"): _text,
    ("ModuleCallSignature", "in_spec"): _text,
    ("ModuleCallSignature", "out_spec"): _text,
    ("NamedTupleDef", "field_names"): _text,
    ("Node", "target"): _operator,
    ("ParameterMutationSpec", "parameter_name"): _path,
    ("PayloadMeta", "path_name"): _file,
    ("SymExpr", "expr_str"): _expression,
}
"""What a text must be, by class and field of the schema; where nothing stands here, an identifier."""


def _rebuilt_tree(text: str) -> str:
    """Return the description of a tree of inputs or results, made of tuples, lists and dictionaries alone.

    torch imports modules that other nodes name.

    Raises:
        ValueError: there are other nodes in it.
    """
    description = _decode_json(text.encode())
    if not isinstance(description, list) or len(description) != 2 or description[0] != 1:
        raise ValueError("the tree of inputs or results is written in another way than torch writes it")
    return json.dumps([1, _rebuilt_node(description[1], _MAX_TREE_DEPTH)])


def _rebuilt_node(node: Any, depth: int) -> dict[str, Any]:
    if not isinstance(node, dict) or not isinstance(node.get("children_spec"), list) or depth == 0:
        raise ValueError(f"{_shown(node)} is no tree of inputs or results")
    kind, context = node.get("type"), node.get("context")
    if kind is None:
        if node["children_spec"]:
            raise ValueError("a leaf of a tree of inputs or results has branches")
        return {"type": None, "context": None, "children_spec": []}
    if kind not in _TREES:
        raise ValueError(
            f"{_shown(kind)} stands in a tree of inputs or results; give the model tuples, lists and "
            "dictionaries"
        )
    children = [_rebuilt_node(child, depth - 1) for child in node["children_spec"]]
    keys = _decode_json(context.encode()) if isinstance(context, str) else None
    if keys is not None and not (isinstance(keys, list) and all(type(key) in (str, int) for key in keys)):
        raise ValueError(f"{_shown(context)} are no keys of a dictionary")
    return {"type": kind, "context": json.dumps(keys), "children_spec": children}


def _shown(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 100 else text[:100] + "…"
