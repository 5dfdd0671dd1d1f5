"""Measured chunks of prompts: a CSV with a row for each, `tokens,prefix,time_us`, of one stage.

`prefix` is how many tokens came before, 0 where the column is left out. Checked in
tests/tessel/jobs/test_chunking.py.
"""

from __future__ import annotations

import csv
import io
import os

from tessel.batches.chunk_law import MeasuredChunk
from tessel.documents import read_bytes
from tessel.profiles.figures import read_number, refusal

COLUMNS = ("tokens", "prefix", "time_us")


def read_chunk_table(path: str | os.PathLike[str]) -> tuple[MeasuredChunk, ...]:
    """Read measured chunks.

    Raises:
        DocumentError: the file cannot be read, lacks a column, or has a figure that is none.
    """
    try:
        rows = [row for row in csv.reader(io.StringIO(read_bytes(path).decode()), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise refusal(path, "", f"it is no CSV, {error}", "write one row a chunk") from error
    names = [name.strip() for name in rows[0]]
    missing = [name for name in ("tokens", "time_us") if name not in names]
    if missing:
        raise refusal(path, "", f"it has no column {missing[0]}", f"give it {','.join(COLUMNS)}")
    found = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise refusal(
                path, f"row {number}", f"it has {len(row)} values for {len(names)} columns", "give each one"
            )
        figures = {
            name: read_number(value, path, f"row {number}, {name}")
            for name, value in zip(names, row, strict=True)
            if name in COLUMNS
        }
        for name in ("tokens", "prefix"):
            if figures.get(name, 0) % 1:
                raise refusal(
                    path, f"row {number}, {name}", f"{figures[name]:g} is not whole", "count tokens"
                )
        found.append(MeasuredChunk(int(figures["tokens"]), int(figures.get("prefix", 0)), figures["time_us"]))
    return tuple(found)
