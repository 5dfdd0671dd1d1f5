"""Figures that say what they show, and saving them.

An SVG carries its title and description where screen readers look for them (`role="img"`, `<title>`,
`<desc>`), and its text as text: it can be searched, selected and read aloud. A PNG and a PDF carry both as
metadata; a PDF embeds its fonts as TrueType, which publishers ask for. The same figure gives the same bytes.
Checked in tests/tessel/picture/test_captions.py. Source: W3C, SVG Accessibility API Mappings 1.0, section 5.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import AbstractContextManager
from io import BytesIO, StringIO
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib
from matplotlib.figure import Figure

from tessel.documents import save_document

_DPI = 150.0
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class DescribedFigure(Figure):
    """A figure with words for those who do not see it.

    Attributes:
        title: what it is, in a line.
        description: what it shows, in sentences.
    """

    title: str = ""
    description: str = ""


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix (svg, png or pdf); the file appears whole or not.

    Raises:
        DocumentError: the folder cannot be written.
    """
    if path.suffix == ".svg":
        save_document(path, svg_document(figure).encode())
        return
    drawn = BytesIO()
    dpi = max(figure.dpi, _DPI) if path.suffix == ".png" else _DPI
    with _saving():
        figure.savefig(drawn, format=path.suffix[1:], dpi=dpi, metadata=_metadata(figure, path.suffix))
    save_document(path, drawn.getvalue())


def svg_document(figure: Figure) -> str:
    """Return the figure as an SVG document that says what it shows."""
    text = StringIO()
    with _saving():
        # Without a date the same figure gives the same bytes.
        figure.savefig(text, format="svg", dpi=_DPI, metadata={"Date": None})
    drawn = _NOT_XML.sub("\ufffd", text.getvalue())  # matplotlib writes control characters as they are
    title, description = _words(figure)
    if not title:
        return drawn
    # Several pictures stand in one document of a notebook, where their ids must differ.
    own = hashlib.sha256(f"{title}\0{description}".encode()).hexdigest()[:12]
    root = drawn.index(">", drawn.index("<svg "))
    return (
        f'{drawn[:root]} role="img" aria-labelledby="title-{own} desc-{own}">\n'
        f' <title id="title-{own}">{escape(title)}</title>\n'
        f' <desc id="desc-{own}">{escape(description)}</desc>{drawn[root + 1 :]}'
    )


def _saving() -> AbstractContextManager[None]:
    return matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tessel", "pdf.fonttype": 42})


def _metadata(figure: Figure, suffix: str) -> dict[str, str | None]:
    title, description = _words(figure)
    if suffix == ".pdf":
        return {"CreationDate": None, "Title": title, "Subject": description}
    return {"Title": title, "Description": description} if suffix == ".png" else {}


def _words(figure: Figure) -> tuple[str, str]:
    """Return title and description as text that XML may hold."""
    if not isinstance(figure, DescribedFigure):
        return "", ""
    title, description = (_NOT_XML.sub("\ufffd", text) for text in (figure.title, figure.description))
    return title, description
