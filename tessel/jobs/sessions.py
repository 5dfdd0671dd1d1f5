"""A session of measuring whose progress and notes stand on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.progress.bars import Reporter
    from tuner.tuning.search.options import SearchOptions
    from tuner.tuning.session import Report, Session


def shown_report(update: Reporter) -> Report:
    """Return what shows a search's progress in a bar, and its notes as lines."""
    from tuner.tuning.session import Report

    return Report(
        on_progress=lambda progress: update(progress.text, progress.completed, progress.total),
        on_note=messages.note,
    )


@contextmanager
def open_session(options: SearchOptions) -> Iterator[Session]:
    """Open what measuring needs, with its progress shown; finished measurements are kept on any exit.

    Raises:
        ValueError: a number is out of range.
        UnknownNameError: there is no such target or backend.
        TunerError: the target is not the device that is here, or a backend cannot run here.
    """
    from tuner.tuning.search.opening import open_search

    with messages.bar("starting") as update, open_search(options, shown_report(update)) as session:
        yield session
