"""Findings in a file, a line an operator and type, so that an interrupted run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.converter_fuzz.check import Finding


@dataclass(frozen=True)
class Checked:
    """What became of the samples of one operator and type.

    Attributes:
        operator: torch's name of it.
        dtype: type of the samples.
        count: samples that were asked for; torch may have fewer.
        gradients: whether gradients were compared, too.
        findings: none where the operator is left out in this type.
    """

    operator: str
    dtype: str
    count: int
    gradients: bool
    findings: tuple[Finding, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether a sample differs from torch."""
        return any(finding.outcome == "wrong" for finding in self.findings)


class ResultsFile:
    """A file of JSON Lines that findings are appended to; of several lines for the same, the last counts.

    Args:
        path: of the file, which is made with the first line; None keeps them in memory alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._checked: dict[tuple[str, str, int, bool], Checked] = {}
        for line in _whole_lines(path) if path is not None and path.exists() else ():
            self._keep(_from_line(line))

    def find(self, operator: str, dtype: str, *, count: int, gradients: bool) -> Checked | None:
        """Return what the file holds of an operator and type, in as many samples."""
        return self._checked.get((operator, dtype, count, gradients))

    def append(self, checked: Checked) -> None:
        """Keep a line, and write it at once."""
        self._keep(checked)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(checked)) + "\n")

    def findings(
        self, operators: Iterable[str], dtypes: Sequence[str], *, count: int, gradients: bool
    ) -> list[Finding]:
        """Return every finding of some operators and types, in their order."""
        found = [
            self.find(name, dtype, count=count, gradients=gradients) for name in operators for dtype in dtypes
        ]
        return [finding for checked in found if checked is not None for finding in checked.findings]

    def _keep(self, checked: Checked) -> None:
        self._checked[checked.operator, checked.dtype, checked.count, checked.gradients] = checked


def _whole_lines(path: Path) -> list[str]:
    """Return a file's lines, and cut off one that a run was ended in."""
    whole, newline, _ = path.read_text().rpartition("\n")
    path.write_text(whole + newline)
    return whole.splitlines()


def _from_line(line: str) -> Checked:
    fields = json.loads(line)
    return Checked(**{**fields, "findings": tuple(Finding(**each) for each in fields["findings"])})
