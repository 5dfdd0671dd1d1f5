"""Links from the first use of each of the glossary's terms on a page to its row, which they say when hovered.

Words that are used in their ordinary sense as well are left alone, and so is what stands in code, headings
and links.
"""

import re
from collections.abc import Mapping
from html import escape

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ORDINARY = {
    "ours",
    "searched",
    "kind",
    "rule",
    "choice",
    "race",
    "task",
    "step",
    "target",
    "record",
    "Term",
    "Name",
}
UNTOUCHED = {
    "a",
    "abbr",
    "code",
    "pre",
    "th",
    "title",
    "script",
    "style",
    "svg",
    *(f"h{level}" for level in range(1, 7)),
}
PIECES = re.compile(r"<!--.*?-->|<[^>]*>|[^<]+", re.DOTALL)


def meanings_of(glossary: str) -> dict[str, str]:
    """Return the meaning of each term of the glossary's Markdown, without its marks."""
    found = {}
    for terms, meaning in ROW.findall(glossary):
        for term in terms.split(", "):
            if term not in ORDINARY:
                found[term] = re.sub(r"[*`]", "", meaning)
    return found


def anchor_of(term: str) -> str:
    """Return the id of a term's row."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def with_anchors(html: str, meanings: Mapping[str, str]) -> str:
    """Return the glossary's page with an id at each term."""

    def anchored(cell: re.Match[str]) -> str:
        marks = "".join(
            f'<span id="{anchor_of(term)}"></span>' for term in cell[1].split(", ") if term in meanings
        )
        return f"<tr>\n<td>{marks}{cell[1]}</td>"

    return re.sub(r"<tr>\n<td>([^<]+)</td>", anchored, html)


def linked(html: str, meanings: Mapping[str, str], *, glossary: str) -> str:
    """Return a page whose first use of each term leads to the glossary.

    Args:
        html: of the page's content.
        meanings: of each term.
        glossary: address of its page, seen from this one.
    """
    longest_first = sorted(meanings, key=len, reverse=True)
    words = re.compile(
        rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})(e?s)?(?![\w-])", re.IGNORECASE
    )
    unused = {term.lower(): term for term in meanings}

    def link(word: re.Match[str]) -> str:
        term = unused.pop(word[1].lower(), None)
        if term is None:
            return word[0]
        target, meaning = f"{glossary}#{anchor_of(term)}", escape(meanings[term])
        return f'<a class="term" href="{target}" title="{meaning}">{word[0]}</a>'

    pieces, within = [], []
    for piece in PIECES.findall(html):
        tag = re.match(r"</?([a-zA-Z0-9]+)", piece)
        if tag is None:
            pieces.append(piece if within or piece.startswith("<") else words.sub(link, piece))
            continue
        pieces.append(piece)
        name = tag[1].lower()
        if name in UNTOUCHED and not piece.endswith("/>"):
            if not piece.startswith("</"):
                within.append(name)
            elif name in within:
                within.remove(name)
    return "".join(pieces)
