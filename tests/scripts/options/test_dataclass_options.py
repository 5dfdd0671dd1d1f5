"""Options are declared once, as fields, and are each command's own on the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from scripts.app import app
from scripts.options.command_app import RENAMED_OPTIONS, CheckedCommand
from scripts.options.dataclass_options import ADVANCED, common_options, takes_options
from scripts.options.tuning_options import JsonOption, MeasuringOptions, ModelArgument, TuningOptions

MAX_PARAMETERS = 8


def test_fields_stand_where_the_options_stood_and_come_back_as_one() -> None:
    got: list[object] = []

    @takes_options
    def command(model: ModelArgument, options: TuningOptions, json: JsonOption = False) -> None:
        """Say what it does."""
        got.extend((model, options, json))

    names = list(inspect.signature(command).parameters)
    assert (names[0], names[1], names[-1]) == ("model", "target", "json")
    assert {"records", "price", "proposer"} < set(names)
    assert (command.__name__, command.__doc__) == ("command", "Say what it does.")

    own = typer.Typer()
    own.command()(command)
    own(["net.onnx", "--jobs", "3", "--price", "active", "--json"], standalone_mode=False)
    assert got == ["net.onnx", TuningOptions(jobs=3, price="active"), True]


def test_several_groups_of_options_each_get_their_own_fields() -> None:
    got: list[object] = []

    @takes_options
    def command(first: MeasuringOptions, model: ModelArgument) -> None:
        got.extend((first, model))

    own = typer.Typer()
    own.command()(command)
    own(["--seed", "7", "mlp"], standalone_mode=False)
    assert got == [MeasuringOptions(seed=7), "mlp"]


def test_common_options_stand_first_and_all_others_in_a_panel_of_their_own() -> None:
    @common_options("jobs records")
    @takes_options
    def command(model: ModelArgument, options: MeasuringOptions) -> None: ...

    own = typer.Typer()
    own.command()(command)
    params = typer.main.get_command(own).params
    assert [each.name for each in params[:3]] == ["jobs", "records", "model"]
    panels = {each.name: getattr(each, "rich_help_panel", None) for each in params}
    assert {name for name, panel in panels.items() if panel == ADVANCED} == {
        *("target", "backends", "trials", "threads", "seed"),
    }
    with pytest.raises(ValueError, match="command has no option speed"):
        common_options("jobs speed")(command)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from leaves(child, (*path, name))
        else:
            yield (*path, name), child


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_shows_about_a_dozen_options_and_all_where_it_is_asked_for(
    words: tuple[str, ...], tessel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    options = [each for each in COMMANDS[words].params if each.param_type_name == "option"]
    advanced = [each for each in options if each.rich_help_panel == ADVANCED]
    assert len(options) - len(advanced) <= 14
    some, everything = tessel(*words, "--help").stdout, tessel(*words, "--help-all").stdout
    for each in options:
        name = next(iter(each.opts))
        assert re.search(rf"^│ [* ]*{name}\b", everything, re.MULTILINE), name
        assert bool(re.search(rf"^│ [* ]{{0,3}}{name}(?![\w-])", some, re.MULTILINE)) == (
            each not in advanced
        ), name
    assert (f"{len(advanced)} more options: tessel {' '.join(words)} --help-all" in some) == bool(advanced)


def test_every_renamed_option_is_one_of_some_command_and_the_old_name_of_none() -> None:
    names = {
        name
        for _, command in leaves(typer.main.get_command(app))
        for each in command.params
        for name in each.opts
    }
    assert set(RENAMED_OPTIONS.values()) <= names
    assert not set(RENAMED_OPTIONS) & names


@pytest.mark.parametrize(
    ("written", "read", "is_noted"),
    [
        (["--second-level", "4"], 4, True),
        (["--second-level=4"], 4, True),
        (["--graph-level-search=4"], 4, False),
        (["--", "--second-level"], 0, False),  # the model's name
    ],
)
def test_old_names_are_still_read_and_noted_on_stderr(
    written: list[str], read: int, is_noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    got: list[int] = []

    def command(model: str = typer.Argument(""), graph_level_search: int = 0) -> None:
        got.append(graph_level_search)

    own = typer.Typer()
    own.command(cls=CheckedCommand)(command)
    own(written, standalone_mode=False)
    noted = capsys.readouterr().err
    assert got == [read]
    expected = "--second-level is now --graph-level-search; the old name goes with the next version\n"
    assert noted == (expected if is_noted else "")


def test_an_old_name_is_hidden_and_unknown_where_the_new_one_is(tessel: Callable[..., Any]) -> None:
    assert "--go-on" not in tessel("language", "train", "--help").stdout
    outcome = tessel("records", "stats", "--go-on")
    assert (outcome.status, "--go-on" in outcome.stderr) == (2, True)
