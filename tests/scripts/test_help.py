"""Every command explains itself: an example that its own parser takes, JSON on request, no wide lines."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from scripts.app import app
from scripts.options.dataclass_options import ADVANCED


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group with the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


COMMANDS = dict(walk(typer.main.get_command(app)))
LEAVES = [path for path, command in COMMANDS.items() if not hasattr(command, "commands")]


def examples(command: Any) -> list[str]:
    found: list[str] = re.findall(r"`(tessel [^`]+)`", command.help or "")
    return [example for example in found if "COMMAND" not in example]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_fits_a_hundred_columns(
    tessel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    outcome = tessel(*path, "--help")
    assert outcome.status == 0
    assert "Example" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 100


def test_no_help_waits_for_a_heavy_import() -> None:
    code = (
        "import sys; from scripts.main import main\n"
        "for path in sys.argv[1:]: assert main([*path.split(), '--help']) == 0\n"
        "heavy = {'tvm', 'torch', 'xgboost', 'matplotlib', 'numba', 'sqlalchemy', 'networkx', 'numpy',\n"
        "         'msgspec', 'packaging'}\n"
        "sys.exit(', '.join(sorted(heavy & sys.modules.keys())) or None)"
    )
    paths = [" ".join(path) for path in COMMANDS]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_examples_are_taken_by_the_parser(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    own = [example for example in examples(command) if example.startswith(f"tessel {' '.join(path)}")]
    assert own
    for example in own:
        words = shlex.split(example)[1 + len(path) :]
        command.make_context("tessel", words)  # raises what a user would see


@pytest.mark.parametrize(
    "name", ["tune", "plan", "schedule", "check", "stages", "compile", "chunk", "draw", "compare"]
)
def test_every_common_option_says_what_holds_without_it(name: str) -> None:
    for option in COMMANDS[(name,)].params:
        is_common = getattr(option, "rich_help_panel", None) != ADVANCED and option.opts[0].startswith("--")
        if is_common and option.default is None and not option.is_flag and not option.required:
            assert re.search("left out|default|needed|[Ii]n place of", option.help or ""), option.opts


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_that_has_a_result_prints_json_on_request(path: tuple[str, ...]) -> None:
    serves = path in (("fleet", "worker"), ("fleet", "server"))
    assert serves != any("--json" in parameter.opts for parameter in COMMANDS[path].params)


SCHEDULE = ("schedule", "vshape", "--devices", "2", "--micro-batches", "2")


@pytest.mark.parametrize("flags", [("--quiet",), ("-q",)])
def test_quiet_says_nothing_but_results(tessel: Callable[..., Any], tmp_path: Path, flags: Any) -> None:
    path = tmp_path / "schedule.json"
    assert "written" in tessel(*SCHEDULE, "--save", path).stderr
    outcome = tessel(*SCHEDULE, "--save", path, *flags)
    assert outcome.stderr == ""
    assert "makespan" in outcome.stdout


def test_verbose_shows_where_an_error_comes_from(tessel: Callable[..., Any]) -> None:
    assert "Traceback" not in tessel("draw", "nowhere.json").stderr
    assert "Traceback" in tessel("draw", "nowhere.json", "--verbose").stderr


def test_no_color_is_obeyed_and_a_forced_colour_is_seen(
    tessel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.json"
    tessel(*SCHEDULE, "--save", path)
    assert "\x1b" not in tessel("draw", path).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in tessel("draw", path).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", tessel("draw", path).stdout)


NEAR = {
    "command": (("scedule", "vshape"), "schedule"),
    "sub-command": (("records", "lst"), "list"),
    "option": (("schedule", "vshape", "--micro-batch", "2"), "--micro-batches"),
    "shape": (("schedule", "vshap", "--devices", "2"), "vshape"),
    "optimizer": (("tune", "mlp", "--optimizer", "adamm"), "'adam'"),
    "price": (("partition", "mlp", "--price", "activ"), "'active'"),
    "schedule": (("compare", "{file}", "--schedules", "1f1,gpipe"), "'1f1b'"),
    "model": (("tune", "gpt3"), "'gpt2'"),
    "schedule to draw": (("draw", "{file}", "--out", "x.svg", "--schedules", "gpip"), "'gpipe'"),
}


@pytest.mark.parametrize("case", NEAR)
def test_a_wrong_name_suggests_the_near_one(tessel: Callable[..., Any], tmp_path: Path, case: str) -> None:
    path = tmp_path / "schedule.json"
    tessel(*SCHEDULE, "--save", path)
    arguments, near = NEAR[case]
    outcome = tessel(*(argument.format(file=path) for argument in arguments))
    assert outcome.status == 2
    assert near in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (("partition", "bart"), "'bert'"),
        (("partition", "gpt2:tinny"), "'tiny'"),
        (("partition", "mlp", "--backends", "tvn"), "'tvm'"),
        (("backends", "--target", "cpuu"), "cpu"),
    ],
)
def test_a_wrong_model_backend_or_target_suggests_the_near_one(
    tessel: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], near: str
) -> None:
    records = () if arguments[0] == "backends" else ("--records", f"sqlite:///{tmp_path}/records.db")
    outcome = tessel(*arguments, *records)
    assert outcome.status == 2
    assert f"did you mean {near}" in outcome.stderr
