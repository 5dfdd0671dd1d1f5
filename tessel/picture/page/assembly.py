"""A page is one file: a body, the scripts that fill it and its data, in the frame and style of all pages.

It opens from disk and needs no network; its policy lets it fetch nothing. Checked in
tests/tessel/picture/page/test_page_text.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources

import msgspec


def assembled(body: str, scripts: Sequence[str], data: object, *, title: str) -> bytes:
    """Return a page as HTML.

    Args:
        body: name of the resource beside this module that holds its elements.
        scripts: names of the resources that become its one script, in order; they find the data as `data`.
        data: what the page shows, written as JSON.
        title: of the window, before the scripts run.
    """
    # "</" would end the script element that holds the data, and "<!--<script>" hide its end. Within a text,
    # which is the only place for it, JSON may write "<" by its number.
    text = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    filled = {
        "<!--BODY-->": _resource(body),
        "/*TITLE*/": escape(title),
        "/*STYLE*/": _resource("style.css"),
        "/*SCRIPT*/": "\n".join(map(_resource, scripts)),
        "/*DATA*/": text,
    }
    # In one pass: what is filled in is not looked at for further marks.
    marks = re.compile("|".join(map(re.escape, filled)))
    return marks.sub(lambda mark: filled[mark[0]], _resource("frame.html")).encode()


def _resource(name: str) -> str:
    return (resources.files("tessel.picture.page") / name).read_text()
