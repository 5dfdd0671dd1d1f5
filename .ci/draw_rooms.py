"""Draw the rooms of the packages into docs/images/rooms.svg; `--check` only says whether it is out of date.

The layers are those that import-linter holds (pyproject.toml), what a room is for is the first sentence of
its docstring, and the numbers are the steps of docs/architecture.md that name it.
"""

import ast
import re
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
PAGE = ROOT / "docs" / "architecture.md"

COLORS = {
    "scripts": "#eef2f6",
    "tessel": "#e8f0fa",
    "tuner": "#eaf5ea",
    "cost_model": "#f6eaf6",
    "records": "#fdf0d9",
}

WIDTH, MARGIN, PADDING, GAP = 960, 10, 16, 6
LINE, NAME, ALONE = 15, 26, 30
CHARACTER = 6.8
"""Pixels of a character of a description, about."""
NAME_COLUMN = 125
"""Pixels of the name of a room that has a row to itself."""


def main(*, check: bool) -> int:
    """Draw the picture, or return 1 where it is not as it would be drawn."""
    text = picture()
    if check:
        is_current = PICTURE.exists() and PICTURE.read_text() == text
        if not is_current:
            print("docs/images/rooms.svg is out of date; run python .ci/draw_rooms.py")
        return 0 if is_current else 1
    PICTURE.write_text(text)
    return 0


def picture() -> str:
    """Return the picture of all packages, from those that import most down to those that import nothing."""
    layers = _layers()
    steps = _steps(PAGE.read_text())
    y, shapes = MARGIN, []
    for package in _rows_of(layers["packages"]):
        drawn, height = _package(package[0], layers.get(package[0], []), steps, y)
        shapes += drawn
        y += height + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-size="14" role="img" '
        'font-family="system-ui, sans-serif"><title>The rooms of the project</title>'
        "<desc>Five packages; a room imports only rooms below it.</desc>"
        f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _layers() -> dict[str, list[str]]:
    """Return the layers inside each package, and those of the packages under `packages`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {}
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            for container in contract.get("containers", ["packages"]):
                # Of several contracts for one package, the one about all of its rooms is drawn.
                if len(contract["layers"]) > len(found.get(container, [])):
                    found[container] = contract["layers"]
    return found


def _rows_of(layers: list[str]) -> list[list[str]]:
    return [[name.strip() for name in layer.split("|")] for layer in layers]


def _steps(page: str) -> dict[str, list[str]]:
    """Return the numbers of the steps that name each room, such as `tuner.graph`."""
    found: dict[str, list[str]] = {}
    for number, text in re.findall(r"^(\d+)\. (.*(?:\n {3,4}\S.*)*)", page, flags=re.MULTILINE):
        for package, room in re.findall(r"`(\w+)\.(\w+)[\w.]*`", text):
            numbers = found.setdefault(f"{package}.{room}", [])
            if number not in numbers:
                numbers.append(number)
    return found


def _package(package: str, layers: list[str], steps: dict[str, list[str]], top: int) -> tuple[list[str], int]:
    """Return the shapes of a package and its height: its rooms by layer, then its own modules."""
    folder = ROOT / package
    rows = [[name for name in row if (folder / name / "__init__.py").exists()] for row in _rows_of(layers)]
    shapes, y = [], top + NAME + GAP
    for row in filter(None, rows):
        width = (WIDTH - 2 * (MARGIN + PADDING) - GAP * (len(row) - 1)) / len(row)
        columns = int((width - 2 * GAP - (NAME_COLUMN if len(row) == 1 else 0)) / CHARACTER)
        lines = [_lines(folder / name, columns) for name in row]
        longest = max(map(len, lines))
        height = max(ALONE, LINE * (longest + 1)) if len(row) == 1 else NAME + LINE * longest
        for place, (name, own) in enumerate(zip(row, lines, strict=True)):
            x = MARGIN + PADDING + place * (width + GAP)
            numbers = steps.get(f"{package}.{name}", [])
            shapes += _room(package, name, own, numbers, (x, y, width, height), is_alone=len(row) == 1)
        y += height + GAP
    modules = [
        " ".join([path.stem, *(f"({number})" for number in steps.get(f"{package}.{path.stem}", []))])
        for path in sorted(folder.glob("*.py"))
        if not path.stem.startswith("__")
    ]
    for line in _joined("modules", modules, int((WIDTH - 4 * PADDING) / CHARACTER)):
        y += LINE
        shapes.append(_text(MARGIN + PADDING, y, line, 'font-size="12" fill="#33404d"'))
    height = y + GAP + 4 - top
    frame = (
        f'<rect x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{height}" rx="10" fill="none" '
        'stroke="#9aa7b3"/>'
    )
    title = _text(MARGIN + PADDING, top + 20, package, 'font-weight="700" fill="#22303c"')
    about = _text(
        MARGIN + PADDING + NAME_COLUMN, top + 20, _description(folder), 'font-size="12" fill="#33404d"'
    )
    return [frame, title, about, *shapes], height


def _room(
    package: str,
    name: str,
    lines: list[str],
    numbers: list[str],
    place: tuple[float, float, float, float],
    *,
    is_alone: bool,
) -> list[str]:
    x, y, width, height = place
    shapes = [
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="6" fill="{COLORS[package]}" '
        'stroke="#5b6b7b"/>',
        _text(x + 10, y + 19, name, 'font-weight="600"'),
    ]
    left, top = (x + NAME_COLUMN, y + 19) if is_alone else (x + 10, y + 36)
    for index, line in enumerate(lines):
        shapes.append(_text(left, top + LINE * index, line, 'font-size="12" fill="#33404d"'))
    for index, number in enumerate(reversed(numbers)):
        center = x + width - 12 - 20 * index
        shapes.append(f'<circle cx="{center:.1f}" cy="{y + 11}" r="9" fill="#b3541e"/>')
        shapes.append(
            _text(center, y + 15, number, 'text-anchor="middle" font-size="11" font-weight="600" fill="#fff"')
        )
    return shapes


def _lines(folder: Path, columns: int) -> list[str]:
    """Return what a room is for, and the rooms inside it."""
    inner = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    return [
        *textwrap.wrap(_description(folder), columns),
        *(_joined("rooms", inner, columns) if inner else ()),
    ]


def _joined(title: str, names: list[str], columns: int) -> list[str]:
    return [line.removesuffix(" ·") for line in textwrap.wrap(f"{title}: " + " · ".join(names), columns)]


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _description(folder: Path) -> str:
    """Return the first sentence of a package's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"\.(?:\s|$)", paragraph)[0].replace("`", "")


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
