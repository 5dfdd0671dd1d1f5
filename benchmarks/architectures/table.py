"""Write the results as a table of a documentation page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version

import torch
import tvm

from benchmarks.architectures.check import STEPS
from benchmarks.architectures.finding import Finding
from benchmarks.architectures.packaged import PACKAGED
from benchmarks.architectures.results import Row

ARCHITECTURES_TABLE = "architectures"
PACKAGED_TABLE = "packaged models"
"""Names of the places in the page that a table is written to."""

_COLUMNS = (
    *("architecture", "weights", "operators", "torch calls", "import", ".pt2", "ONNX", "partition"),
    *("2 stages", "4 stages", "run", "date"),
)

_INTRODUCTION = """Equal to torch, of those compared: {counts}.
{versions}.

| {columns} |
|---|--:|--:|{rest}
"""


def as_table(rows: Mapping[str, Row]) -> str:
    """Return the table, with what is not equal, or not as plain as the others, below it."""
    head = _INTRODUCTION.format(
        counts=", ".join(_counts(rows)),
        versions=", ".join(_versions(rows)),
        columns=" | ".join(_COLUMNS),
        rest="---|" * (len(_COLUMNS) - 3),
    )
    lines = [
        f"| {name} | {row.parameters:,} | {row.operators or ''} | {', '.join(row.torch_calls)} | "
        + " | ".join(cell(row.findings[step]) if step in row.findings else "" for step in STEPS)
        + f" | {max((each.date for each in row.findings.values()), default='')} |\n"
        for name, row in rows.items()
    ]
    reasons = [
        f"- {name}, {step}: {finding.reason.replace('|', '/').replace('](', '] (')}\n"
        for name, row in rows.items()
        for step, finding in row.findings.items()
        if finding.reason
    ]
    return head + "".join(lines) + ("\n" + "".join(reasons) if reasons else "")


def _counts(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield how many are equal, of those to which a step applies, for each step that was compared."""
    for step in STEPS:
        outcomes = [row.findings[step].outcome for row in rows.values() if step in row.findings]
        compared = [each for each in outcomes if each != "inapplicable"]
        if compared:
            yield f"{step} {compared.count('equal')} of {len(compared)}"


def _versions(rows: Mapping[str, Row]) -> Iterator[str]:
    yield f"torch {torch.__version__.partition('+')[0]}"
    packages = {name.partition("-")[0] for name in rows if name in PACKAGED}
    for package in sorted(packages) or ["transformers"]:
        yield f"{package} {version(package)}"
    yield f"TVM {tvm.__version__}"


def cell(finding: Finding) -> str:
    """Return the error where it is equal, or else what became of it."""
    if finding.outcome == "equal":
        return f"{finding.error:.0e}"
    return "–" if finding.outcome == "inapplicable" else finding.outcome


def marks_of(place: str) -> tuple[str, str]:
    """Return the lines before and after a table in its page."""
    return f"<!-- {place}: begin -->\n", f"<!-- {place}: end -->\n"


def with_table(page: str, table: str, place: str = ARCHITECTURES_TABLE) -> str:
    """Return a page with another table between its marks.

    Raises:
        ValueError: it has no marks.
    """
    begin, end = marks_of(place)
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no place for the table; put {begin.strip()} and {end.strip()} there")
    return f"{before}{begin}{table}{end}{after}"
