"""Rebuild values of torch's schema from JSON, field by field, of nothing but what types and rules allow.

Checked in tests/tuner/frontend/torch/exported/test_exported_program.py.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from torch._export.serde import schema
from torch._export.serde.union import _Union

from tuner.frontend.torch.exported.text_rules import (
    Rule,
    device_rule,
    expression_rule,
    file_rule,
    name_rule,
    operator_rule,
    path_rule,
    shown,
    text_rule,
)

_MAX_INTEGER = 2**64


def typed(kind: Any, data: Any, rule: Rule) -> Any:
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
        return None if data is None else typed(some, data, rule)
    if origin is list and isinstance(data, list):
        return [typed(arguments[0], item, rule) for item in data]
    if origin is dict and isinstance(data, dict):
        return {key: typed(arguments[1], value, rule) for key, value in data.items()}
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        return _struct(kind, data)
    if isinstance(kind, type) and origin is None and not isinstance(data, list | dict):
        return _scalar(kind, data, rule)
    raise ValueError(f"{shown(data)} stands where a value of {kind} belongs")


def _struct(kind: Any, data: Mapping[str, Any]) -> Any:
    """Return an instance of one of the schema's classes; keys of later versions are left out."""
    hints = _hints(kind)
    if issubclass(kind, _Union):
        if len(data) != 1 or next(iter(data)) not in hints:
            raise ValueError(f"{shown(list(data))} is no choice of {kind.__name__}")
        ((name, value),) = data.items()
        made = {name: typed(hints[name], value, _rule(kind, name))}
        return kind.create(**made)
    values = {
        name: typed(hints[name], data[name], _rule(kind, name))
        for name in hints
        if name in data and (kind.__name__, name) not in _LEFT_OUT
    }
    for name in hints:
        if (kind.__name__, name) in _NAMED_BY_KEY:
            for key in values.get(name, {}):
                name_rule(key)
    if kind is schema.Node:
        said = data.get("metadata")
        said = said if isinstance(said, dict) else {}
        values["metadata"] = {key: text_rule(said[key]) for key in _TOLD if said.get(key) is not None}
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
    raise ValueError(f"{shown(data)} stands where a value of {kind.__name__} belongs")


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return {
        name: hint
        for name, hint in typing.get_type_hints(kind, globalns=vars(schema)).items()
        if not name.startswith("_")
    }


_TOLD = ("nn_module_stack", "stack_trace")
"""What a node says of where it comes from, for messages alone."""

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
    return _RULES.get((kind.__name__, field), name_rule)


_RULES: Mapping[tuple[str, str], Rule] = {
    ("Argument", "as_operator"): operator_rule,
    ("Argument", "as_string"): text_rule,
    ("Argument", "as_strings"): text_rule,
    ("ConstantValue", "as_string"): text_rule,
    ("CustomObjArgument", "class_fqn"): path_rule,
    ("Device", "type"): device_rule,
    ("ExportedProgram", "guards_code"): lambda text: "",
    ("ExportedProgram", "torch_version"): text_rule,
    ("InputToBufferSpec", "buffer_name"): path_rule,
    ("InputToCustomObjSpec", "custom_obj_name"): path_rule,
    ("InputToParameterSpec", "parameter_name"): path_rule,
    ("InputToTensorConstantSpec", "tensor_constant_name"): path_rule,
    ("BufferMutationSpec", "buffer_name"): path_rule,
    ("GradientToParameterSpec", "parameter_name"): path_rule,
    ("ModuleCallEntry", "fqn"): text_rule,
    ("ModuleCallSignature", "in_spec"): text_rule,
    ("ModuleCallSignature", "out_spec"): text_rule,
    ("NamedTupleDef", "field_names"): text_rule,
    ("Node", "target"): operator_rule,
    ("ParameterMutationSpec", "parameter_name"): path_rule,
    ("PayloadMeta", "path_name"): file_rule,
    ("SymExpr", "expr_str"): expression_rule,
}
"""What a text must be, by class and field of the schema; where nothing stands here, an identifier."""
