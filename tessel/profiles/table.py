"""The plain table: the profile that a person writes, a row a layer, as CSV with a header or as JSON.

    layer,forward_ms,backward_ms,backward_input_ms,backward_weight_ms,weights_mib,saved_mib,boundary_mib
    embed,0.3,1.1,,1.1,600,20,16

Units stand in the names of the columns, so that `forward_us` or `weights_gib` are read as what they say. Rows
stand in model order; with the columns `micro_batch`, `tensor_parallel`, `context_parallel` and
`expert_parallel` they repeat for each combination that was measured, and with `length` or `class` for each
kind of micro-batch. `spread` says how much a row's times vary. What is left blank is unknown, except
for one half of a backward whose other half is given: that is 0, as of a first layer, which needs no gradient
of its input. Checked in tests/tessel/profiles/test_table.py.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tessel.documents import save_document
from tessel.errors import ScheduleError
from tessel.names import name_of_path
from tessel.profiles.figures import decode_json, make_cost, read_count, read_number, refusal
from tessel.profiles.profile import MAX_SPREAD, CostTable, Degrees, Layer, Profile, StageCosts
from tessel.profiles.reading import Reading
from tessel.progress.manual import manual

SCHEMA_VERSION = 1

_TIMES = {
    "forward": "forward_us",
    "backward": "backward_us",
    "backward_input": "backward_input_us",
    "backward_weight": "backward_weight_us",
    "recompute": "recompute_us",
    "update": "update_us",
    "gradient_pass": "gradient_pass_us",
}
"""Attribute of `StageCosts` by what a column's name begins with."""

_SIZES = {
    "weights": "weight_bytes",
    "trained": "trained_bytes",
    "reduced": "reduced_bytes",
    "expert": "expert_bytes",
    "saved": "saved_bytes",
    "saved_for_weight": "saved_for_weight_bytes",
    "peak": "peak_bytes",
    "boundary": "boundary_bytes",
}

_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_BYTES = {"bytes": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "kb": 1e3, "mb": 1e6, "gb": 1e9}

_TEXTS = ("layer", "tie")
_COUNTS = Degrees._fields
_CLASSES = ("length", "class")
_SPREAD = "spread"
_PLAIN = (*_TEXTS, *_COUNTS, *_CLASSES, _SPREAD)
_USUAL_COLUMNS = "layer,forward_ms,backward_ms,weights_mib,saved_mib,boundary_mib"

COLUMNS = {
    **{
        f"{quantity}_{unit}": (name, factor)
        for quantity, name in _TIMES.items()
        for unit, factor in _US.items()
    },
    **{
        f"{quantity}_{unit}": (name, factor)
        for quantity, name in _SIZES.items()
        for unit, factor in _BYTES.items()
    },
}
"""Attribute of `StageCosts` and factor to its unit, by the name of a column."""

WRITTEN = (
    *(f"{quantity}_ms" for quantity in _TIMES),
    *(f"{quantity}_mib" for quantity in _SIZES),
)
"""Columns of figures as `save_table` writes them."""

_FORMULA = ("=", "+", "-", "@")
"""What a cell begins with that a spreadsheet computes, a call of another program included."""

MAX_RATIO = 100.0
"""How many times as long as all forwards all backwards may take, and the reverse. Backwards take about twice
as long as forwards; one column in another unit makes it a thousand."""


class TableDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table as a JSON document.

    Attributes:
        layers: its rows, in model order: a value by the name of its column.
        model: of what it is a profile.
        device: kind of device measured on.
    """

    layers: tuple[dict[str, str | float | int | None], ...]
    model: str = ""
    device: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class _Row:
    """One row as it stands in a file: where, and its value by column, blanks left out."""

    place: str
    values: Mapping[str, object]


def read_csv(path: Path, text: bytes) -> Reading:
    """Read the table from a CSV file: separated by commas, semicolons or tabs, `#` begins a comment.

    Comments before the header may say `# model: NAME` and `# device: NAME`.

    Raises:
        DocumentError: it is none; the message names the row and what to do.
    """
    lines = text.decode("utf-8-sig").splitlines()
    said = _comments(lines)
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    if not numbered:
        raise refusal(
            path, "", "it has no header", "write the columns' names first, such as layer,forward_ms"
        )
    separator = max(",;\t", key=numbered[0][1].count)
    try:
        fields = list(csv.reader((line for _, line in numbered), delimiter=separator, strict=True))
    except csv.Error as error:
        raise refusal(path, "", f"it is no CSV file, {error}", "write one row a line") from error
    if len(fields) != len(numbered):
        raise refusal(path, "", "a quoted field goes over several lines", "write one row a line")
    header, rows = _without_blank_columns([[field.strip() for field in row] for row in fields])
    places = [f"row {number}" for number, _ in numbered]
    _check_header(header, path, places[0])
    found = []
    for place, row in zip(places[1:], rows, strict=True):
        if len(row) != len(header):
            raise refusal(
                path,
                place,
                f"it has {len(row)} fields and the header {len(header)}",
                "give each column a field, left blank where it is unknown",
            )
        values = {name: value for name, value in zip(header, row, strict=True) if value}
        found.append(_Row(place, values | {name: _plain(values[name]) for name in _TEXTS if name in values}))
    return _read_rows(
        found, header, path, model=said.get("model", name_of_path(path.stem)), device=said.get("device", "")
    )


def read_json(path: Path, text: bytes) -> Reading:
    """Read the table from a JSON document, or from a JSON list of its rows.

    Raises:
        DocumentError: it is none; the message names the row and what to do.
    """
    if text.lstrip().startswith(b"["):
        rows = decode_json(text, tuple[dict[str, str | float | int | None], ...], path)
        document = TableDocument(layers=rows)
    else:
        document = decode_json(text, TableDocument, path)
    if document.schema_version != SCHEMA_VERSION:
        raise refusal(
            path,
            "",
            f"it has schema_version {document.schema_version}, and this installation reads {SCHEMA_VERSION}",
            "use the version that wrote it",
        )
    found = []
    header: dict[str, None] = {}
    for number, row in enumerate(document.layers, 1):
        _check_header(list(row), path, f"row {number}", complete=False)
        header |= dict.fromkeys(row)
        values = {name: value for name, value in row.items() if value is not None and value != ""}
        found.append(_Row(f"row {number}", values))
    _check_header(list(header), path, "")
    return _read_rows(
        found, list(header), path, model=document.model or name_of_path(path.stem), device=document.device
    )


def save_table(profile: Profile, path: str | Path) -> None:
    """Write a profile as the plain table, JSON where the path ends so and else CSV; whole or not at all.

    In a CSV file, names that a spreadsheet would take for formulas begin with an apostrophe, which `read_csv`
    takes off again.

    Raises:
        DocumentError: the file cannot be written.
    """
    rows = list(_rows_of(profile))
    if Path(path).suffix == ".json":
        document = TableDocument(layers=tuple(rows), model=profile.name, device=profile.device)
        save_document(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        return
    header = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    out = io.StringIO()
    for key, value in (("model", profile.name), ("device", profile.device)):
        if value:
            out.write(f"# {key}: {value}\n")
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    writer.writerow(header)
    for row in rows:
        line = io.StringIO()
        fields = ["" if row[name] is None else _cell(row[name]) for name in header]
        if str(fields[0]).startswith("#"):  # quoted, it is no comment
            csv.writer(line, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow(fields)
        else:
            csv.writer(line, lineterminator="\n").writerow(fields)
        out.write(line.getvalue())
    save_document(path, out.getvalue().encode())


def _cell(value: object) -> object:
    """Return a value as a cell; what a spreadsheet would compute is marked as text by an apostrophe."""
    is_marked = isinstance(value, str) and value.lstrip("'").startswith(_FORMULA)
    return f"'{value}" if is_marked else value


def _plain(cell: str) -> str:
    """Return the text that a cell of `_cell` stands for."""
    is_marked = cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA)
    return cell[1:] if is_marked else cell


def _comments(lines: Iterable[str]) -> dict[str, str]:
    """Return what comments say, by their key."""
    said: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.removeprefix("#").partition(":")
        if line.startswith("#") and colon and value.strip().isprintable():
            said.setdefault(key.strip().lower(), value.strip())
    return said


def _without_blank_columns(fields: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows without columns that have neither a name nor a value, as spreadsheets write."""
    header, *rows = fields
    while header and not header[-1] and not any(row[len(header) - 1 :] != [""] for row in rows):
        header = header[:-1]
        rows = [row[: len(header)] for row in rows]
    return header, rows


def _check_header(header: Sequence[str], path: Path, place: str, *, complete: bool = True) -> None:
    """Refuse columns that are unknown, given twice or missing.

    Args:
        place: where they stand.
        complete: whether these are all of them.
    """
    seen: dict[str, str] = {}
    for name in header:
        attribute = name if name in _PLAIN else COLUMNS.get(name, ("", 1.0))[0]
        if not attribute:
            raise refusal(path, place, *_unknown_column(name))
        if attribute in seen:
            raise refusal(
                path, place, f"the columns {seen[attribute]} and {name} say the same", "keep one of them"
            )
        seen[attribute] = name
    if not complete:
        return
    if set(_CLASSES) <= seen.keys():
        raise refusal(path, place, "it has lengths and classes of micro-batches", "keep one of the columns")
    trains = any(name.startswith("backward") for name in seen)
    needed = {"layer": "layer", "forward_us": "forward_ms", "weight_bytes": "weights_mib"}
    needed["boundary_bytes"] = "boundary_mib"
    if trains:
        needed["saved_bytes"] = "saved_mib"
    for attribute, name in needed.items():
        if attribute not in seen:
            raise refusal(path, place, f"the column {name} is missing", "add it, 0 where there is nothing")
    has_halves = {"backward_input_us", "backward_weight_us"} <= seen.keys()
    if trains and "backward_us" not in seen and not has_halves:
        raise refusal(
            path,
            place,
            "the column backward_ms is missing",
            "add it, or both backward_input_ms and backward_weight_ms",
        )


def _unknown_column(name: str) -> tuple[str, str]:
    """Return what is wrong with a column's name, and what to do."""
    if not name:
        return "a column has no name", "name it, or take it out"
    if name in _TIMES or name in _SIZES:
        unit = "ms" if name in _TIMES else "mib"
        return f"the column {name!r} has no unit", f"name it {name}_{unit}"
    known = (*_PLAIN, *COLUMNS)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? " if near else f"a table begins with {_USUAL_COLUMNS}; "
    return f"the column {name!r} is not known", f"{hint}{manual('profiles.md')} has all columns"


def _read_rows(
    rows: Sequence[_Row], header: Sequence[str], path: Path, *, model: str, device: str
) -> Reading:
    """Return the profile that the rows are.

    Raises:
        DocumentError: a row cannot be used.
    """
    if not rows:
        raise refusal(path, "", "it has no layers", "give one row for each layer, in model order")
    groups: dict[tuple[Degrees, str | int | msgspec.UnsetType], dict[str, _Row]] = {}
    for row in rows:
        name = _text(row, "layer", path)
        if not name:
            raise refusal(path, row.place, "the layer has no name", "give each layer a name of its own")
        keys = [read_count(row.values.get(key, 1), path, f"{row.place}, {key}") for key in _COUNTS]
        for key in (*_COUNTS, *_CLASSES):
            if key in header and key not in row.values:
                raise refusal(path, row.place, f"{key} is blank", "give it in every row, or in none")
        group = groups.setdefault((Degrees(*keys), _class_of(row, path)), {})
        if name in group:
            raise refusal(
                path,
                row.place,
                f"the layer {name!r} stands already in {group[name].place}",
                f"give each layer one row, or tell them apart by {', '.join((*_COUNTS, *_CLASSES))}",
            )
        group[name] = row
    return Reading(
        _profile(groups, path, model=model, device=device), says_micro_batch="micro_batch" in header
    )


def _class_of(row: _Row, path: Path) -> str | int | msgspec.UnsetType:
    """Return the length or the class of a row's micro-batches; `UNSET` where it says neither."""
    if "length" in row.values:
        return read_count(row.values["length"], path, f"{row.place}, length")
    return _text(row, "class", path) if "class" in row.values else msgspec.UNSET


def _profile(
    groups: Mapping[tuple[Degrees, str | int | msgspec.UnsetType], Mapping[str, _Row]],
    path: Path,
    *,
    model: str,
    device: str,
) -> Profile:
    first = next(iter(groups.values()))
    names = list(first)
    ties = [_text(row, "tie", path) for row in first.values()]
    tables = []
    for (degrees, of), group in groups.items():
        where = degrees.title if isinstance(of, msgspec.UnsetType) else f"{degrees.title} of {of}"
        _check_same_layers(names, ties, group, path, where)
        costs = tuple(_cost(row, path) for row in group.values())
        _check_backwards(costs, list(group.values()), path)
        spreads = tuple(_spread(row, path) for row in group.values())
        tables.append(
            CostTable(
                **degrees._asdict(), costs=costs, of=of, spreads=spreads if any(spreads) else msgspec.UNSET
            )
        )
    layers = tuple(_layer(row, path) for row in first.values())
    try:
        return Profile(name=model, device=device, layers=layers, tables=tuple(tables))
    except ScheduleError as error:
        raise refusal(path, "", error, f"see {manual('profiles.md')}") from error


def _layer(row: _Row, path: Path) -> Layer:
    try:
        return Layer(_text(row, "layer", path), _text(row, "tie", path))
    except ScheduleError as error:
        raise refusal(path, row.place, error, "rename it") from error


def _check_same_layers(
    names: Sequence[str], ties: Sequence[str], group: Mapping[str, _Row], path: Path, where: str
) -> None:
    """Refuse rows of another micro-batch size or degree that are not the same layers in the same order."""
    for name, tie, (found, row) in zip(names, ties, group.items(), strict=False):
        if found != name:
            raise refusal(
                path,
                row.place,
                f"the layer {found!r} stands where {name!r} is expected at {where}",
                "give the same layers in the same order for every micro_batch and degree",
            )
        if _text(row, "tie", path) != tie:
            raise refusal(
                path, row.place, f"the tie of {name!r} is another one at {where}", "give it alike everywhere"
            )
    if len(group) != len(names):
        last = list(group.values())[-1]
        raise refusal(
            path,
            last.place,
            f"{where} ends after {len(group)} layers, and the first has {len(names)}",
            "give every layer a row for every micro_batch and degree",
        )


def _text(row: _Row, column: str, path: Path) -> str:
    value = row.values.get(column, "")
    if not isinstance(value, str):
        raise refusal(path, f"{row.place}, {column}", f"{value} is no text", "write a name")
    return value.strip()


def _cost(row: _Row, path: Path) -> StageCosts:
    """Return what the row costs.

    Raises:
        DocumentError: a figure cannot be used, or one is missing that every layer has.
    """
    figures: dict[str, float | None] = {}
    for column, value in row.values.items():
        if column in COLUMNS:
            name, factor = COLUMNS[column]
            figures[name] = read_number(value, path, f"{row.place}, {column}") * factor
    if "forward_us" not in figures:
        raise refusal(
            path, row.place, "forward_ms is blank", "give the time of the forward, 0 if it has none"
        )
    halves = ("backward_input_us", "backward_weight_us")
    if any(half in figures for half in halves):
        figures = {**dict.fromkeys(halves, 0.0), **figures}
    trains = any(name.startswith("backward") for name in figures)
    for name, column in (
        ("weight_bytes", "weights_mib"),
        ("boundary_bytes", "boundary_mib"),
        ("saved_bytes", "saved_mib"),
    ):
        if name not in figures and (name != "saved_bytes" or trains):
            raise refusal(path, row.place, f"{column} is blank", "give it, 0 where there is nothing")
    return make_cost(figures, path, row.place)


def _spread(row: _Row, path: Path) -> float:
    """Return how much a row's times vary; 0 where it says nothing."""
    place = f"{row.place}, {_SPREAD}"
    found = read_number(row.values.get(_SPREAD, 0), path, place)
    if found > MAX_SPREAD:
        raise refusal(
            path, place, f"{found:g} is no share of a time", f"give 0.1 for 10 %, {MAX_SPREAD:g} at most"
        )
    return found


def _check_backwards(costs: Sequence[StageCosts], rows: Sequence[_Row], path: Path) -> None:
    """Refuse backwards that are missing in some rows, or of another unit than the forwards."""
    without = [cost.joint_backward_us is None for cost in costs]
    if any(without) and not all(without):
        row = rows[without.index(True)]
        raise refusal(
            path,
            row.place,
            "it has no backward, and other rows have one",
            "give backward_ms, 0 if it has none",
        )
    forward = sum(cost.forward_us for cost in costs)
    backwards = [cost.joint_backward_us or 0.0 for cost in costs]
    ratio = sum(backwards) / forward if forward else 1.0
    if ratio and not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        longest = max(range(len(costs)), key=lambda index: max(backwards[index], costs[index].forward_us))
        raise refusal(
            path,
            rows[longest].place,
            f"all backwards take {ratio:.3g} times as long as all forwards, which cannot be of one unit",
            "give both in milliseconds",
        )


def _rows_of(profile: Profile) -> Iterable[dict[str, str | float | int | None]]:
    """Yield the rows of the table, every column in each; of context and experts only where there are any."""
    left_out = set() if profile.has_experts else {"expert_mib"}
    for name in ("context_parallel", "expert_parallel"):
        if all(getattr(table, name) == 1 for table in profile.tables):
            left_out.add(name)
    for table in profile.tables:
        for index, (layer, cost) in enumerate(zip(profile.layers, table.costs, strict=True)):
            row: dict[str, str | float | int | None] = {"layer": layer.name}
            for column in WRITTEN:
                if column in left_out:
                    continue
                name, factor = COLUMNS[column]
                value = getattr(cost, name)
                # Bytes are divided by a power of two, which is exact; times have digits that only the
                # conversion has.
                is_exact = name.endswith("_bytes")
                row[column] = None if value is None else _written(value / factor, is_exact=is_exact)
            row["tie"] = layer.tie
            row |= {name: value for name, value in table.degrees._asdict().items() if name not in left_out}
            if not isinstance(table.of, msgspec.UnsetType):
                row["length" if isinstance(table.of, int) else "class"] = table.of
            if profile.has_spreads:
                row[_SPREAD] = table.spread_by_layer[index]
            yield row


def _written(value: float, *, is_exact: bool) -> float | int:
    """Return a number as it is written: whole where it is, else with the digits that count."""
    rounded = value if is_exact else float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() else rounded
