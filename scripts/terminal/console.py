"""Output of the commands: results on stdout, everything else on stderr.

Tables fit 100 columns on a terminal, and are never folded in a pipe. Colours, bold and dim text are left out
where the output is no terminal or NO_COLOR is set. Names come from files, and files from strangers: whatever
is printed goes through `printable`, so that no name moves the cursor, colours text, or makes a line that
looks like one of ours.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from scripts.terminal import output_streams
from tessel.jobs.shown.sections import Sections, Table
from tessel.progress import messages
from tessel.progress.control_characters import CONTROLS, printable

if TYPE_CHECKING:
    import msgspec
    from _typeshed import DataclassInstance

MAX_WIDTH = 100

UNFOLDED = 10_000
"""Columns of a table in a pipe or a file: a row is a line, for what reads it next."""


def stdout(*, width_in_pipe: int = MAX_WIDTH) -> Console:
    """Return a console on stdout that fits 100 columns, or as many as are given where it is no terminal."""
    stream = output_streams.results()
    console = Console(file=stream, highlight=False, emoji=False, color_system=messages.color_system())
    if console.is_terminal and console.width <= MAX_WIDTH:
        return console
    width = MAX_WIDTH if console.is_terminal else width_in_pipe
    return Console(
        file=stream, highlight=False, emoji=False, color_system=messages.color_system(), width=width
    )


def print_json(document: msgspec.Struct | DataclassInstance) -> None:
    """Print one JSON document on stdout, keys sorted, and nothing else.

    In whatever encoding stdout has: characters that it lacks are escaped as JSON does.

    Args:
        document: a value of a type that `docs/schemas/` has a schema of (see scripts/documents).
    """
    stream = output_streams.results()
    stream.write(json_text(document, stream.encoding or "utf-8") + "\n")


def json_text(document: object, encoding: str) -> str:
    """Return a document as indented JSON, keys sorted, that an encoding can write and a terminal shows."""
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2).decode()
        text.encode(encoding)
    except UnicodeEncodeError:  # also for a file's name that is not UTF-8
        plain = msgspec.to_builtins(document, order="sorted")
        text = json.dumps(plain, indent=2, sort_keys=True, allow_nan=False)
    # JSON escapes the first 32 characters by itself; outside of strings there are line ends alone.
    return CONTROLS.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def print_line(text: str = "") -> None:
    """Print a line on stdout without markup; line ends before and after it are empty lines."""
    line = text.strip("\n")
    before, _, after = text.partition(line) if line else ("", "", text)
    stdout().print(f"{before}{printable(line)}{after}", markup=False, soft_wrap=True)


def print_drawing(drawing: Text) -> None:
    """Print on stdout what was drawn with characters, line by line."""
    lines = drawing.split("\n", allow_blank=True)
    shown = [line if printable(line.plain) == line.plain else Text(printable(line.plain)) for line in lines]
    stdout().print(Text("\n").join(shown), end="")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: int = 1,
    folded: Collection[str] = (),
) -> None:
    """Print a table on stdout; see `Table`."""
    table = Table(title=title, columns=columns, rows=rows, text_columns=text_columns, folded=folded)
    stdout(width_in_pipe=UNFOLDED).print(table.shown())


def print_sections(sections: Sections) -> None:
    """Print lines and tables on stdout."""
    for part in sections:
        if isinstance(part, str):
            print_line(part)
        else:
            stdout(width_in_pipe=UNFOLDED).print(part.shown())
