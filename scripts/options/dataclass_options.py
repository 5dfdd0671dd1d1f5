"""Options of a command as one value: the fields of a dataclass become parameters that Typer reads.

Typer reads a command's options from its signature. `takes_options` gives it a signature in which every
parameter that is a dataclass has been replaced by its fields, so that a command and what it calls take one
value. Checked in tests/scripts/options/test_dataclass_options.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its dataclass parameters as parameters of its own.

    Args:
        command: its options are parameters, or fields of parameters that are dataclasses; fields stand on the
            command line in the order in which they are declared, those of a base class first.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    parameters = list(_flattened(inspect.signature(command), hints, groups))

    def with_fields(**arguments: Any) -> None:
        values = {
            name: group(**{each.name: arguments.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **arguments)

    with_fields.__name__, with_fields.__doc__ = command.__name__, command.__doc__
    with_fields.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(with_fields)["__signature__"] = inspect.Signature(parameters)
    return with_fields


def _flattened(
    signature: inspect.Signature, hints: dict[str, Any], groups: dict[str, type]
) -> Iterator[inspect.Parameter]:
    for parameter in signature.parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            yield _keyword(parameter.name, parameter.default, hints[parameter.name])
            continue
        types = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield _keyword(field.name, default, types[field.name])


def _keyword(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
