"""Commands that refuse options without effect, and whose help says which those are.

`CommandApp` is Typer's own, but each of its commands is checked against `scripts.options.option_rules` once
its command line is parsed and before anything of it runs. While it runs, stdout is for its results alone, and
options that were renamed are still read by their old names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperOption

from scripts.options import option_rules
from scripts.options.dataclass_options import ADVANCED, takes_options
from scripts.options.rules.rule import CommandLine
from scripts.terminal import output_streams
from tessel.progress import messages

MARKUP: Literal["markdown"] = "markdown"
"""How docstrings of commands are read."""

_FROM_USER = "COMMANDLINE"

RENAMED_OPTIONS = {"--go-on": "--resume", "--second-level": "--graph-level-search"}
"""Options by their names until version 0.1, which the next version no longer reads."""


HELP_ALL = "--help-all"


class CheckedCommand(TyperCommand):
    """A command whose options all take effect, or are refused; its help shows the common ones."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, old names of options included; each is noted once on stderr."""
        if HELP_ALL in args[: args.index("--") if "--" in args else None]:
            ctx.meta[HELP_ALL] = True
            args = ["--help"]
        known = {name for parameter in self.params for name in parameter.opts}
        return super().parse_args(ctx, _with_new_names(args, known))

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.BadParameter: an option that was given has no effect.
        """
        problem = option_rules.problem_of(_path_of(ctx), command_line_of(ctx))
        if problem is not None:
            raise typer.BadParameter(problem)
        with output_streams.for_results_alone():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, each option with what it needs; advanced ones after `--help-all` alone."""
        num_hidden = 0 if HELP_ALL in ctx.meta else sum(map(_is_advanced, self.params))
        if num_hidden:
            self.epilog = f"{num_hidden} more options: `{ctx.command_path} {HELP_ALL}`"
        for parameter in self.params:
            if isinstance(parameter, TyperOption):
                rules = option_rules.help_of(_path_of(ctx), _long_name(parameter.opts))
                if rules and rules not in (parameter.help or ""):
                    parameter.help = f"{parameter.help or ''} {rules}".strip()
            if isinstance(parameter, TyperOption) and _is_advanced(parameter):
                parameter.hidden = num_hidden > 0
        super().format_help(ctx, formatter)


def _is_advanced(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) == ADVANCED


class CommandApp(typer.Typer):
    """An application, or a group of one, whose commands are checked."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = CheckedCommand, **settings: Any
    ) -> Callable[[Any], Any]:
        """Register a command as Typer does, of options that may be declared by their help alone."""
        register = super().command(name, cls=cls, **settings)
        return lambda function: register(takes_options(function))


def _with_new_names(arguments: list[str], known: set[str]) -> list[str]:
    """Return the arguments with options of old names by those that the command knows."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    renamed = []
    for argument in arguments[:end]:
        option, equals, value = argument.partition("=")
        new = RENAMED_OPTIONS.get(option, option)
        if new != option and new in known:
            messages.note(f"{option} is now {new}; the old name goes with the next version")
            argument = f"{new}{equals}{value}"
        renamed.append(argument)
    return renamed + arguments[end:]


def command_line_of(ctx: Any) -> CommandLine:
    """Return what the command of a parsed context was given."""
    given, values = set(), {}
    for parameter in ctx.command.params:
        if parameter.name not in ctx.params:
            continue
        value = ctx.params[parameter.name]
        if not isinstance(parameter, TyperOption):
            values[parameter.name] = value
            continue
        name = _long_name(parameter.opts)
        values[name] = value
        source = ctx.get_parameter_source(parameter.name)
        if source is not None and source.name == _FROM_USER:
            is_off = value is False and bool(parameter.secondary_opts)
            given.add(_long_name(parameter.secondary_opts) if is_off else name)
    return CommandLine(frozenset(given), values)


def _long_name(names: list[str]) -> str:
    return next((name for name in names if name.startswith("--")), names[0])


def _path_of(ctx: Any) -> str:
    """Return the words of a command after `tessel`."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name)
        ctx = ctx.parent
    return " ".join(words)
