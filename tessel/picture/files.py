"""One function from a schedule, or a comparison, to a file: the path's suffix says what is drawn.

`.svg`, `.png` and `.pdf` are pictures, `.html` a page for any browser, `.json` a trace for Perfetto and
`.txt` the text that terminals show. Checked in tests/tessel/picture/test_files.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tessel.comparison import Comparison, compare_schedules
from tessel.documents import save_document
from tessel.picture.page.document import page_document
from tessel.picture.text import text_grid
from tessel.picture.trace import trace_document
from tessel.schedule import Schedule

if TYPE_CHECKING:
    from tessel.picture.style import PictureStyle

PICTURES = (".svg", ".png", ".pdf")
FORMATS = (*PICTURES, ".html", ".json", ".txt")


def draw(
    subject: Schedule | Comparison,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    step_us: float | None = None,
    critical_path: bool = False,
    gains: bool = False,
    style: PictureStyle | None = None,
    width: float | None = None,
    device_names: Sequence[str] | None = None,
) -> None:
    """Write the picture, page, trace or text that the path's suffix asks for; the file appears whole or not.

    Args:
        subject: a schedule, or a comparison, whose schedules stand on one time axis. A page always compares;
            of a comparison, a trace and a text show the fastest schedule.
        path: a file with one of the suffixes `FORMATS`.
        title: above it.
        step_us: microseconds of a step; time is counted in steps if None.
        critical_path: whether to draw the critical path through the bars of a picture.
        gains: whether the picture of a comparison is a bar chart of the gains over 1F1B.
        style: how numbers, bars and critical paths of a picture look, over the defaults.
        width: of a picture, in inches; that of a screen if None.
        device_names: of each row, what its device is called; the numbers from 0 on if None.

    Raises:
        ValueError: the suffix is none of these.
        DocumentError: the folder cannot be written.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(
            f"{path} has the suffix {path.suffix or '(none)'}, which names no picture; end it with one of "
            f"{', '.join(FORMATS)}"
        )
    step_ms = None if step_us is None else step_us / 1000
    if path.suffix == ".html":
        comparison = compare_schedules(subject, step_us=step_us) if isinstance(subject, Schedule) else subject
        save_document(
            path, page_document(comparison, title=title, step_ms=step_ms, device_names=device_names)
        )
    elif path.suffix in PICTURES:
        from tessel.picture.captions import save_figure
        from tessel.picture.figures import comparison_figure, gains_figure, schedule_figure
        from tessel.picture.sizes import SCREEN_INCHES
        from tessel.picture.style import PictureStyle

        style = style or PictureStyle()
        width = SCREEN_INCHES if width is None else width
        if isinstance(subject, Comparison) and gains:
            figure = gains_figure(
                subject,
                title=title,
                annotation_args=style.annotation_args,
                rectangle_args=style.rectangle_args,
                width=width,
            )
        else:
            make = (
                partial(comparison_figure, subject)
                if isinstance(subject, Comparison)
                else partial(schedule_figure, subject)
            )
            figure = make(
                step_ms=step_ms,
                title=title,
                critical_path=critical_path,
                annotation_args=style.annotation_args,
                rectangle_args=style.rectangle_args,
                line_args=style.line_args,
                width=width,
                device_names=device_names,
            )
        save_figure(figure, path)
    elif path.suffix == ".json":
        trace = trace_document(
            _fastest(subject),
            step_us=1.0 if step_us is None else step_us,
            name=title,
            device_names=device_names,
        )
        save_document(path, trace)
    else:
        save_document(path, text_grid(_fastest(subject), device_names=device_names).plain.encode())


def _fastest(subject: Schedule | Comparison) -> Schedule:
    return subject if isinstance(subject, Schedule) else dict(subject.schedules)[subject.rows[0].schedule]
