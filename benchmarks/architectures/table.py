"""Write the results as a table of a documentation page."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers
import tvm

from benchmarks.architectures.check import STEPS
from benchmarks.architectures.finding import Finding
from benchmarks.architectures.results import Row

BEGIN = "<!-- architectures: begin -->\n"
END = "<!-- architectures: end -->\n"
"""What stands before and after the table in the page."""

_COLUMNS = (
    *("architecture", "weights", "operators", "torch calls", "import", ".pt2", "ONNX", "partition"),
    *("2 stages", "4 stages", "run", "date"),
)

_INTRODUCTION = """{counts} of {all} architectures.
torch {torch}, transformers {transformers}, TVM {tvm}.

| {columns} |
|---|--:|--:|{rest}
"""


def as_table(rows: Mapping[str, Row]) -> str:
    """Return the table, with what is not equal, or not as plain as the others, below it."""
    counts = [
        f"{step} equal to torch {sum(_outcome(row, step) == 'equal' for row in rows.values())}"
        for step in STEPS
    ]
    head = _INTRODUCTION.format(
        counts=", ".join(counts),
        all=len(rows),
        torch=torch.__version__.partition("+")[0],
        transformers=transformers.__version__,
        tvm=tvm.__version__,
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


def cell(finding: Finding) -> str:
    """Return the error where it is equal, or else what became of it."""
    if finding.outcome == "equal":
        return f"{finding.error:.0e}"
    return "–" if finding.outcome == "inapplicable" else finding.outcome


def with_table(page: str, table: str) -> str:
    """Return a page with another table between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table; put {BEGIN.strip()} and {END.strip()} there")
    return f"{before}{BEGIN}{table}{END}{after}"


def _outcome(row: Row, step: str) -> str:
    return row.findings[step].outcome if step in row.findings else ""
