"""Commands are listed by the first lines of their own help, and imported when they are called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from scripts.app import app


def groups(command: Any) -> Iterator[Any]:
    if hasattr(command, "commands"):
        yield command
        for each in command.commands.values():
            yield from groups(each)


@pytest.mark.parametrize("group", list(groups(typer.main.get_command(app))), ids=lambda group: group.name)
def test_a_listed_command_has_the_first_line_of_its_own_help(group: Any) -> None:
    for name, command in group.commands.items():
        first, _, _ = command.help.partition("\n\n")
        listed, _, _ = group.commands.listed(name).help.partition("\n\n")
        assert listed == " ".join(first.split())


def test_help_of_the_whole_imports_no_command() -> None:
    code = (
        "import sys; from scripts.main import main; assert main(['--help']) == 0;"
        "sys.exit(', '.join(name for name in sys.modules if name.startswith('scripts.commands')) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_is_not_there_is_refused_with_the_nearest(tessel: Any) -> None:
    outcome = tessel("plam", "x.csv")
    assert outcome.status == 2
    assert "No such command 'plam'" in outcome.stderr
    assert "plan" in outcome.stderr.replace("plam", "")
