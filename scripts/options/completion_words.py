"""Whole words for completion, where shells give parts of words or want parts back.

Bash splits words at ":" and "=", so that of `gpt2:ti` it completes the part after the colon alone; the others
give and want back whole words. Typer looks at one word and answers with whole names, but after `--option=`
with the value alone. Here is the one place that turns one into the other, whatever script of Typer's is
installed. Checked in real shells by tests/scripts/options/test_completion_in_shells.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_INSTRUCTION = "_TESSEL_COMPLETE"
_COMPLETE_ON_LOAD = '[[ $funcstack[1] == _tessel ]] && _tessel_completion "$@"'


def is_asked() -> bool:
    """Whether a shell asks for completions."""
    return _INSTRUCTION in os.environ


def answer(complete: Callable[[], int]) -> None:
    """Have Typer answer the shell's question on stdout, in words as the shell has them.

    Args:
        complete: the command, which answers in place of what it does.
    """
    shell = os.environ[_INSTRUCTION].removeprefix("complete_")
    kept = _join_words_of_bash() if shell == "bash" else ""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        complete()
    given = text.getvalue()
    if shell == "bash":
        given = "".join(line.removeprefix(kept) for line in given.splitlines(keepends=True))
    elif shell in ("zsh", "fish"):
        given = _with_option(given, shell, os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    sys.stdout.write(given)
    sys.stdout.flush()


def mend_installed_for_zsh() -> None:
    """Have the first tab key of a session complete too.

    Zsh loads the installed file when completion is first asked for, and takes that for the answer: the file
    must not only say how to complete, but do it.
    """
    path = Path.home() / ".zfunc" / "_tessel"
    if path.is_file() and _COMPLETE_ON_LOAD not in path.read_text():
        with path.open("a") as file:
            file.write(f"\n{_COMPLETE_ON_LOAD}\n")


def joined(words: Sequence[str], current: int) -> tuple[list[str], int, str]:
    """Put together words that bash split at ":" and "=".

    Args:
        words: as bash has them, the separators words of their own.
        current: position of the word that is completed.

    Returns:
        The words up to the current one, its position, and what bash keeps of it and completes after.
    """
    whole: list[str] = []
    kept, glue = "", False
    for word in words[: current + 1]:
        is_separator = bool(re.fullmatch("[:=]+", word))
        kept = whole[-1] if (glue or is_separator) and whole else ""
        if kept:
            whole[-1] += word
            kept = whole[-1] if is_separator else kept
        else:
            whole.append(word)
        glue = is_separator
    return whole, len(whole) - 1, kept


def _join_words_of_bash() -> str:
    words = os.environ.get("COMP_WORDS", "").split("\n")
    current = int(os.environ.get("COMP_CWORD", "0"))
    whole, position, kept = joined([*words, *[""] * (current + 1 - len(words))], current)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(whole), str(position)
    return kept


def _with_option(given: str, shell: str, line: str) -> str:
    option = re.search(r"(?:^|\s)(--[\w-]+=)\S*$", line)
    if option is None or not given.strip():
        return given
    if shell == "zsh":  # which evaluates the answer: the option is no part of what is matched
        return f"compset -P '*=' ; {given}"
    return "".join(f"{option[1]}{name}" for name in given.splitlines(keepends=True))
