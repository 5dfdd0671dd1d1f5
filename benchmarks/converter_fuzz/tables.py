"""What was found, as a table by operator."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
import tvm

from benchmarks.converter_fuzz.check import Finding
from benchmarks.converter_fuzz.operators import TYPES

_INTRODUCTION = """# Operators

{question}, by `python -m benchmarks.converter_fuzz {options}--table FILE`:
operators of `torch.testing`'s table, on up to {samples} of torch's own samples for each type ({types}),
lowered by TVM's default pipeline and compared with torch. What is refused is refused by name, with its
line of source. torch {torch}, TVM {tvm}, {date}.

"""


_RIGHT = frozenset({"equal", "mended", "called"})


def summarize(findings: Sequence[Finding]) -> dict[str, dict[str, list[Finding]]]:
    """Return the findings by operator and type."""
    table: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for finding in findings:
        table[finding.operator][finding.dtype].append(finding)
    return {name: dict(by_type) for name, by_type in sorted(table.items())}


def as_table(findings: Sequence[Finding], count: int, *, gradients: bool = False) -> str:
    """Return the table that stands in the documentation.

    Args:
        findings: of every operator and type.
        count: samples that were asked for.
        gradients: whether gradients were compared.
    """
    table = summarize(findings)
    whole: list[str] = []
    called: list[str] = []
    partly: list[str] = []
    never: list[str] = []
    for name, by_type in table.items():
        outcomes = {finding.outcome for each in by_type.values() for finding in each}
        if outcomes <= _RIGHT:
            (called if "called" in outcomes else whole).append(name)
        else:
            (partly if outcomes & _RIGHT else never).append(name)
    lines = [
        _INTRODUCTION.format(
            question="Which of torch's operators train"
            if gradients
            else "Which of torch's operators are imported",
            options="--gradients " if gradients else "",
            samples=count,
            types=", ".join(sorted({finding.dtype for finding in findings}, key=TYPES.index)),
            torch=torch.__version__.split("+")[0],
            tvm=tvm.__version__,
            date=time.strftime("%Y-%m-%d"),
        ),
        f"{len(table)} operators: {len(whole)} equal throughout, {len(called)} equal with calls of torch, "
        f"{len(partly)} refused in part, {len(never)} refused; "
        f"of {len(findings)} samples {_counted(findings)}.\n\n",
        "## Equal to torch\n\n" + ", ".join(f"`{name}`" for name in whole) + "\n\n",
        "## Equal to torch, in some use as calls of torch\n\n"
        + ", ".join(f"`{name}`" for name in called)
        + "\n\n",
        "## Refused, by type and reason\n\n| operator | equal | refused | reason |\n|---|---|---|---|\n",
    ]
    for name in [*partly, *never]:
        by_type = table[name]
        equal = [dtype for dtype, each in by_type.items() if all(f.outcome in _RIGHT for f in each)]
        refused = [f for each in by_type.values() for f in each if f.outcome in ("refused", "wrong")]
        kinds = sorted({finding.dtype for finding in refused}, key=TYPES.index)
        reason = short(Counter(short(finding.reason) for finding in refused).most_common(1)[0][0])
        lines.append(f"| `{name}` | {', '.join(equal)} | {', '.join(kinds)} | {reason} |\n")
    return "".join(lines)


def _counted(findings: Sequence[Finding]) -> str:
    """Return how many samples are what; what is wrong is told even where nothing is."""
    counts = Counter(finding.outcome for finding in findings)
    told = ("equal", *(["mended"] if counts["mended"] else []), "called", "refused", "wrong")
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in told)


def short(reason: str) -> str:
    """Return why something is refused, without what surrounds it in a message."""
    reason = reason.partition("because ")[2] or reason
    return reason.partition("; write")[0].replace("|", "/").replace("\n", " ")[:120]
