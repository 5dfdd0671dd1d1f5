"""Commands of a group that are imported when they are called, not when they are listed.

Typer builds every command of an application with all of its options before it looks at the command line:
half of what `tessel --help` took. Here a group knows the first line of each command's help, and builds the
one that is asked for. Checked in tests/scripts/options/test_late_commands.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from scripts.options.command_app import MARKUP, CommandApp


def late_group(commands: Mapping[str, str]) -> type[TyperGroup]:
    """Return the class of a group that has these commands before those that Typer gives it.

    Args:
        commands: the first line of each one's help, by its module within `scripts.commands`, a colon, and its
            function, which has the command's name, or that with `_` behind it.
    """

    class LateGroup(TyperGroup):
        """A group that lists commands by their first lines, and imports the one that is called."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._late = _Commands(commands, dict(self.commands))
            self.commands = self._late
            self._is_listing = False

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if self._is_listing and cmd_name in self._late:
                return self._late.listed(cmd_name)
            return super().get_command(ctx, cmd_name)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self._is_listing = True
            super().format_help(ctx, formatter)

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            self._is_listing = True
            return super().shell_complete(ctx, incomplete)

    return LateGroup


class _Commands(MutableMapping[str, Any]):
    """Commands by name, each built when it is first asked for."""

    def __init__(self, late: Mapping[str, str], groups: dict[str, Any]) -> None:
        self._late = {place.partition(":")[2].rstrip("_"): (place, help) for place, help in late.items()}
        self._names = [*self._late, *groups]
        self._built = groups

    def listed(self, name: str) -> Any:
        """Return what a list of commands shows of one: its name and the first line of its help."""
        if name in self._built:
            return self._built[name]
        return TyperCommand(name=name, help=self._late[name][1], rich_markup_mode=MARKUP)

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(name, self._late[name][0])
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._names = [*(each for each in self._names if each != name), name]
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"command {name} of a fixed table cannot be removed")

    def __contains__(self, name: object) -> bool:  # Mapping's builds the command
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _build(name: str, place: str) -> Any:
    module, _, function = place.partition(":")
    alone = CommandApp(add_completion=False, rich_markup_mode=MARKUP)
    alone.command(name)(getattr(importlib.import_module(f"scripts.commands.{module}"), function))
    return typer.main.get_command(alone)
