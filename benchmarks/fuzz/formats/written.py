"""Pages, pictures and texts of what was read, and that a name in them stays text."""

from __future__ import annotations

import html.parser
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def write_all(schedule: Any, plan: Any, folder: Path) -> None:
    """Write a schedule as every kind of picture, and look at what was written.

    Raises:
        AssertionError: a name from the file is more than text in it.
    """
    from tessel.jobs.shown.pictures import write_picture

    suffixes = [".html", ".json", ".txt", ".md"]
    if len(schedule.starts) < 100 and hash(schedule.starts) % 25 == 0:
        suffixes.append(".svg")  # takes a hundred times as long as the others
    for suffix in suffixes:
        path = folder / f"drawn{suffix}"
        title = "title" if plan is None else plan.title
        write_picture(schedule, plan, path, title=title)
        _LOOKS[suffix](path.read_text())


def _look_at_page(text: str) -> None:
    page = _Page()
    page.feed(text)
    page.close()
    assert page.scripts.keys() == {"data", ""}, f"the page has scripts {sorted(page.scripts)}"
    assert "<" not in page.scripts["data"], "the page's data holds the beginning of a tag"
    json.loads(page.scripts["data"])


class _Page(html.parser.HTMLParser):
    """Collects the text of a page's scripts by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self._name: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "img", "a name from the file became a tag of the page"
        if tag == "script":
            self._name = dict(attrs).get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._name = None

    def handle_data(self, data: str) -> None:
        if self._name is not None:
            self.scripts[self._name] = self.scripts.get(self._name, "") + data


def look_at_text(text: str) -> None:
    control = {character for character in text if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
    assert not control, f"the text holds control characters {sorted(control)}"


def _look_at_picture(text: str) -> None:
    ElementTree.fromstring(text)


_LOOKS: Mapping[str, Callable[[str], Any]] = {
    ".html": _look_at_page,
    ".json": json.loads,
    ".txt": look_at_text,
    ".md": look_at_text,
    ".svg": _look_at_picture,
}
