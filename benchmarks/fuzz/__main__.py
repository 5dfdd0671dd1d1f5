"""Fuzz every format that a command reads: changed files are read or refused, and nothing else happens.

    python -m benchmarks.fuzz                                    all formats, the whole counts: some hours
    python -m benchmarks.fuzz placement plan --count 1000        some formats, some mutants
    python -m benchmarks.fuzz placement --seed 41 --count 1 -v   one mutant, with its traceback

Each mutant goes through the function by which the commands read the format, and what was read is written
again as pictures, pages, text and traces. A mutant is a *finding* where that

- ends with an error that is not one of the project's own, or whose message is no single line;
- ends the process, by a signal or otherwise;
- takes more than 5 s of processor time, or 1 GiB of memory beside what the libraries hold;
- runs code: a marker file appears, or Python's audit hooks see a pickle's class, a program, a connection;
- gives a page, a picture or a trace in which a name from the file is more than text.

A worker is forked for a run of mutants; when one ends it, the next goes on after that mutant. Seeds are
mutants: the same seed gives the same file. Times are processor times, so that other load does not matter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter

from benchmarks.fuzz.campaign import Report, fuzz


def main() -> None:
    """Fuzz the formats that the command line names, print a table, and fail where there are findings."""
    # Workers are forked, and OpenMP hangs in a fork of a process in which it had several threads.
    os.environ["OMP_THREAD_LIMIT"] = "1"
    from benchmarks.fuzz.formats.catalogue import all_formats  # needs every extra

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("formats", nargs="*", help="names of formats; all if left out")
    parser.add_argument("--count", type=int, help="mutants of each; the whole counts if left out")
    parser.add_argument("--seed", type=int, default=0, help="the first mutant")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    arguments = parser.parse_args()
    if arguments.verbose:
        os.environ["FUZZ_VERBOSE"] = "1"
    formats = all_formats()
    unknown = set(arguments.formats) - formats.keys()
    if unknown:
        parser.error(f"{min(unknown)!r} is no format; give some of {', '.join(formats)}")
    reports = []
    for name in arguments.formats or formats:
        started = time.monotonic()

        def tell(done: int, name: str = name, started: float = started) -> None:
            if done % 1000 == 0:
                print(f"{name}: {done} mutants in {time.monotonic() - started:.0f} s", file=sys.stderr)

        form = formats[name]()
        count = form.count if arguments.count is None else arguments.count
        reports.append(fuzz(form, seed=arguments.seed, count=count, on_progress=tell))
        _tell_findings(reports[-1])
    if arguments.json:
        document = [
            {"format": report.name, "mutants": report.count, "read": report.read, "refused": report.refused}
            | {"findings": report.findings, "longest_s": report.longest_s, "most_bytes": report.most_bytes}
            for report in reports
        ]
        print(json.dumps(document))
    else:
        _print_table(reports)
    sys.exit(any(report.findings for report in reports))


def _tell_findings(report: Report) -> None:
    kinds = Counter(finding for finding in report.findings.values())
    for finding, times in kinds.most_common(30):
        seed = next(seed for seed, text in report.findings.items() if text == finding)
        print(f"{report.name}: {times} x {finding} (seed {seed})", file=sys.stderr)


def _print_table(reports: list[Report]) -> None:
    print(
        "| format | mutants | read | refused | findings | longest (s) | memory (MiB) | processor time (s) |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for report in reports:
        cells = (
            *(report.name, report.count, report.read, report.refused, len(report.findings)),
            *(f"{report.longest_s:.2f}", report.most_bytes >> 20, f"{report.processor_s:.0f}"),
        )
        print("|" + "|".join(f" {cell} " for cell in cells) + "|")


if __name__ == "__main__":
    main()
