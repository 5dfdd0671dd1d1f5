"""The mix against every single backend, onnxruntime, torch eager and torch.compile, one row a setting.

    python -m benchmarks.mixing --set avx512       convolutions and attention, in eight settings
    python -m benchmarks.mixing --set avx2         the same, with code of a processor without AVX-512
    python -m benchmarks.mixing --set untuned      three networks that nobody tuned for
    python -m benchmarks.mixing resnet18/bfloat16/2/8/avx512        rows by name
    python -m benchmarks.mixing --set avx512 --report               the tables of --out; measures nothing

Each row runs in a process of its own, since libraries read their number of threads when they are loaded. Its
network is partitioned through the records, so that an interrupted row goes on where it stopped; rows that
are in --out already are left alone, unless --again is given. All contenders of a row then run in one
process, on one set of weights, in turn, and their outputs are compared with torch's. Where the mix is less
than ten per cent ahead of the best single backend, the search's bound says how far ahead any mix could be.
In bfloat16, where conversions between all operators make four times as many sub-graphs, only the largest are
priced, and the bound is of these.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.mixing.report import report
from benchmarks.mixing.row import SETS, Row

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
"""Variables that libraries read when they are loaded."""

WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""What importing the tuner sets for OpenMP, which reads it when torch is loaded: here that is before."""


def main() -> None:
    arguments = _parser().parse_args()
    try:
        rows = [Row.parse(text) for text in arguments.rows] or list(SETS[arguments.set])
    except ValueError as error:
        _parser().error(str(error))
    if arguments.one:
        from benchmarks.mixing.measure import measure_row  # noqa: PLC0415 - it loads what reads the variables

        print(json.dumps(measure_row(rows[0], arguments)))
        return
    path = Path(arguments.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    started = time.perf_counter()
    if not arguments.report:
        for row in rows:
            if row.name in figures and not arguments.again:
                print(f"{row.name}: known", file=sys.stderr)
                continue
            if time.perf_counter() - started > 60 * arguments.minutes:
                print(f"{row.name}: left for the next run", file=sys.stderr)
                continue
            found = _measure_apart(row, sys.argv[1:], arguments)
            if found is None:
                continue
            figures[row.name] = found
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(figures, indent=1, sort_keys=True))
            partial.replace(path)
    shown = [figures[row.name] for row in rows if row.name in figures]
    if not shown:
        sys.exit(f"{path} holds none of these rows; measure them first, without --report")
    print(report(shown))


def _measure_apart(row: Row, given: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return a row's figures, measured in a process with its number of threads; None where that fails."""
    options = [text for text in given if text not in arguments.rows and text not in ("--again", "--report")]
    environment = os.environ | WAITING | dict.fromkeys(THREADS, str(row.threads))
    started = time.perf_counter()
    print(f"{row.name}: begins", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "benchmarks.mixing", *options, "--one", row.name]
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, timeout=arguments.limit, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{row.name}: not done after {arguments.limit:.0f} s; run it again", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{row.name}: failed, see above", file=sys.stderr)
        return None
    print(f"{row.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.mixing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="NETWORK/DTYPE/THREADS/BATCH/CODE")
    parser.add_argument("--set", choices=tuple(SETS), default="avx512", help="rows, if none are given")
    parser.add_argument("--records", default="sqlite:///out/mixing.db")
    parser.add_argument("--out", default="out/mixing.json", help="figures, one entry a row")
    parser.add_argument("--backends", default=None, help="by commas; all that are here if left out")
    parser.add_argument("--coalesce", action="store_true", help="try fewer, larger parts too")
    parser.add_argument(
        "--prune", action="store_true", help="price only the largest sub-graphs; in bfloat16 always"
    )
    parser.add_argument("--compile", action="store_true", help="let torch.compile run too")
    parser.add_argument("--seconds", type=float, default=12.0, help="of running in turn, a row")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds a row may take")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no row after so many")
    parser.add_argument("--again", action="store_true", help="measure rows that are known again")
    parser.add_argument("--report", action="store_true", help="print the tables and measure nothing")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
