"""The tab key in a real bash, zsh and fish, with what `tessel --install-completion` installs."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from scripts.options.completion_words import joined

ROOT = Path(__file__).parents[3]
LONGEST_S = 120.0

LINES = {
    "tessel sch": "tessel schedule",
    "tessel tune gpt2:ti": "tessel tune gpt2:tiny",
    "tessel tune mlp --optimizer=ad": "tessel tune mlp --optimizer=adam",
    "tessel draw s.json --schedules 1f1b,gp": "tessel draw s.json --schedules 1f1b,gpipe",
}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_tab_key_completes_words_with_colons_and_equals_signs(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = home_with_tessel(tmp_path)
    # Two commands, or the shell would become the first and could not be recognised.
    install = [shell, "-c", "tessel --install-completion; true"]
    done = subprocess.run(install, env=environment, capture_output=True, text=True, check=True)
    assert f"{shell} completion installed" in done.stdout

    # Ctrl-A goes to the begin of the line, so that the shell prints what it completed.
    shown = type_into([shell, "-i"], environment, [f"{line}\t\x01echo G''OT \r" for line in LINES])

    completed = [" ".join(words.split()) for words in re.findall(r"GOT (tessel [^\r\n\x1b]*)", shown)]
    assert completed == list(LINES.values())


def home_with_tessel(home: Path) -> dict[str, str]:
    """Return the environment of a user whose home is that folder and who has the command."""
    (home / "bin").mkdir()
    command = home / "bin" / "tessel"
    command.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{ROOT}" "{sys.executable}" -m scripts "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ZDOTDIR"))}
    return {**kept, "HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "TERM": "dumb"}


def type_into(command: list[str], environment: dict[str, str], lines: list[str]) -> str:
    """Type lines into a shell on a terminal of its own, each when it waits for one; return what it showed."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, environment)
    shown, typed, end = b"", 0, time.monotonic() + LONGEST_S
    try:
        while time.monotonic() < end:
            answers = len(re.findall(rb"GOT tessel[^\n]*\n", shown))
            if answers == len(lines):
                break
            if answers == typed and is_editing(terminal) and not select.select([terminal], [], [], 0.2)[0]:
                os.write(terminal, lines[typed].encode())
                typed += 1
            elif select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 65536)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    return shown.decode(errors="replace")


def is_editing(terminal: int) -> bool:
    """Whether the shell reads keys one by one, as it does at its prompt alone."""
    return not termios.tcgetattr(terminal)[3] & termios.ICANON


@pytest.mark.parametrize(
    ("words", "current", "whole", "kept"),
    [
        (["tessel", "tune", "gp"], 2, ["tessel", "tune", "gp"], ""),
        (["tessel", "tune", "gpt2", ":"], 3, ["tessel", "tune", "gpt2:"], "gpt2:"),
        (["tessel", "tune", "gpt2", ":", "ti"], 4, ["tessel", "tune", "gpt2:ti"], "gpt2:"),
        (["tessel", "tune", "gpt2", ":", "tiny", ""], 5, ["tessel", "tune", "gpt2:tiny", ""], ""),
        (["tessel", "--shape", "=", "x", "=", "1"], 5, ["tessel", "--shape=x=1"], "--shape=x="),
        (["tessel", "tune", "gpt2:ti"], 2, ["tessel", "tune", "gpt2:ti"], ""),
    ],
)
def test_words_that_bash_split_are_put_together(
    words: list[str], current: int, whole: list[str], kept: str
) -> None:
    assert joined(words, current) == (whole, len(whole) - 1, kept)
