"""What each phase of the schedule search is worth: leave it out, and see what is lost.

    python -m benchmarks.search_ablation --write

Every variant searches the same hard problems with the same limit on work, so that the figures do not depend
on the machine or what else it does. Whole schedules: 26 problems, of which a variant's loss is the mean, over
the problems, of how much longer its schedule is and how much lower its bound. Repetends: ten problems, and
how much longer the period is, how many proofs are lost, and how much more work the same takes.

`--write` puts the table into its report, between the two lines that say so; `--only` runs some of the
variants.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.search_ablation.cases import makespan_cases, repetend_cases
from benchmarks.search_ablation.losses import find_makespans, find_periods, makespan_loss, repetend_loss
from benchmarks.search_ablation.variants import VARIANTS, Variant
from tessel.search import MakespanParams, RepetendParams

DOCUMENT = Path(__file__).parents[1] / "reports" / "search_ablation_intel-xeon_2026-11.md"

BEGIN = "<!-- The table below is written by `python -m benchmarks.search_ablation --write`. -->"

END = "<!-- End of the table. -->"


def table(work: float, only: str) -> Iterator[str]:
    """Yield the lines of the table."""
    cases, cyclic = list(makespan_cases()), list(repetend_cases())
    whole = find_makespans(cases, MakespanParams(), work)
    full = Variant("", "", "", repetend=RepetendParams())
    periods = find_periods(cyclic, full, work)
    yield f"{len(cases)} whole schedules and {len(cyclic)} repetends, {work:g} units of work each."
    yield ""
    yield "| phase | module under `tessel.search` | after | lost without it |"
    yield "|---|---|---|---|"
    for variant in VARIANTS:
        if only not in variant.phase:
            continue
        importlib.import_module(f"tessel.search.{variant.module}")
        if variant.makespan is not None:
            loss = makespan_loss(whole, find_makespans(cases, variant.makespan, work))
        else:
            loss = repetend_loss(periods, find_periods(cyclic, variant, work))
        yield f"| {variant.phase} | `{variant.module}` | {variant.source} | {loss} |"
    yield ""
    won = sorted({answer.found_by for answer in whole})
    yield (
        "Best schedules found by: "
        + ", ".join(f"{name} {sum(answer.found_by == name for answer in whole)}" for name in won)
        + f"; {sum(answer.is_proven for answer in whole)} of {len(whole)} proven optimal."
    )


def write_table(lines: Sequence[str]) -> None:
    """Put the table into the document."""
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=float, default=0.5, help="units of work of each search")
    parser.add_argument("--only", default="", help="run the variants whose phase contains this")
    parser.add_argument("--write", action="store_true", help="put the table into its report")
    arguments = parser.parse_args()
    lines = []
    for line in table(arguments.work, arguments.only):
        print(line, flush=True)
        lines.append(line)
    if arguments.write and not arguments.only:
        write_table(lines)


if __name__ == "__main__":
    main()
