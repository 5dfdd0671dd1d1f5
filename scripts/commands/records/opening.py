"""Options that the commands about records share, and how they open and name records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from records import Record, RecordStore


UrlOption = Annotated[
    str,
    typer.Option("--records", metavar="URL", help="`sqlite:///path`, a path, or `postgresql+psycopg://…`."),
]


@contextmanager
def open_existing(url: str) -> Iterator[RecordStore]:
    """Open records that exist: a command that only reads must not answer a mistyped path with a new file.

    Raises:
        RecordFileError: there is no such file, or it cannot be used.
    """
    from records import RecordFileError, open_store
    from records.database.connection import parse_url

    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists():
        raise RecordFileError(
            f"records file {parsed.database} does not exist; `tessel tune` makes one, or name another with "
            "--records"
        )
    with open_store(url) as store:
        yield store


def name_operators(record: Record, *, limit: int | None = None) -> str:
    """Return the names of a record's operators, or its role where it has none."""
    names = [operator.name for operator in record.workload.operators]
    if not names:
        return record.workload.role
    shown = names if limit is None else names[:limit]
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + rest
