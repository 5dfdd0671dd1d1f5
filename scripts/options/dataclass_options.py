"""Options of a command as one value: the fields of a dataclass become parameters that Typer reads.

Typer reads a command's options from its signature. `takes_options` gives it a signature in which every
parameter that is a dataclass has been replaced by its fields, so that a command and what it calls take one
value, and in which an option that is declared by its help alone, `Annotated[int, "Devices in all."]`, is one
of Typer. Checked in tests/scripts/options/test_dataclass_options.py.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo

ADVANCED = "Advanced"
"""Panel of a command's help for what few of its users need: `--help-all` shows it."""


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its dataclass parameters as parameters of its own.

    Args:
        command: its options are parameters, or fields of parameters that are dataclasses; fields stand on the
            command line in the order in which they are declared, those of a base class first. A flag that is
            declared by its help alone has one name, by which it is turned on.
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
    return _with_parameters(with_fields, parameters)


def common_options(*lines: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that shows these options of a command first, and all others in the panel *Advanced*.

    Args:
        lines: names of parameters, separated by spaces, in the order of the help.

    Raises:
        ValueError: the command has no such parameter.
    """
    names = " ".join(lines).split()

    def ordered(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command).parameters
        if unknown := set(names) - set(parameters):
            raise ValueError(f"{command.__name__} has no option {', '.join(sorted(unknown))}")
        common = [_in_panel(parameters[name], None) for name in names]
        others = [_in_panel(each, ADVANCED) for name, each in parameters.items() if name not in names]
        return _with_parameters(command, [*common, *others])

    return ordered


def _in_panel(parameter: inspect.Parameter, panel: str | None) -> inspect.Parameter:
    """Return a parameter whose option stands in a panel of the help; arguments stay as they are."""
    declared = getattr(parameter.annotation, "__metadata__", None)
    if declared is None or not isinstance(declared[0], OptionInfo):
        return parameter
    option = copy.copy(declared[0])  # commands share it
    option.rich_help_panel = panel
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, option])


def _with_parameters(
    command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


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


def _keyword(name: str, default: object, annotation: Any) -> inspect.Parameter:
    told = getattr(annotation, "__metadata__", (None,))[0]
    if isinstance(told, str):
        kind = annotation.__origin__
        names = (f"--{name.replace('_', '-')}",) if kind is bool else ()
        annotation = Annotated[kind, typer.Option(*names, help=told)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
