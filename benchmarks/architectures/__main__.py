"""Import public architectures, partition, train and run them, and compare each with torch.

    python -m benchmarks.architectures                        import all of them: some ten minutes
    python -m benchmarks.architectures gpt2 swin --partition  some, partitioned too
    python -m benchmarks.architectures --files                from .pt2 and ONNX files too
    python -m benchmarks.architectures --train --run          trained in two and four stages; run on ranks too
    python -m benchmarks.architectures --results FILE.json    goes on where an interrupted run stopped
    python -m benchmarks.architectures --results FILE.json --again    and compares once more what is not equal
    python -m benchmarks.architectures --results FILE.json --table benchmarks/reports/architectures_2026-11.md
    python -m benchmarks.architectures --packaged --partition models that torchvision and timm publish

Each is built in a tiny configuration with random weights (nothing is downloaded), exported, imported, lowered
by TVM's default pipeline, and run beside torch on the same inputs; equal is within 1e-5 of the largest
output. `--files` imports it from the `.pt2` and the ONNX file that torch writes, too. Further steps are
compared within the tolerance of the data type, with given prices in place of measured ones: `--partition`
lowers a partition with parts of every backend; `--train` cuts the model in two and in four stages and
compares the loss and every gradient with torch's, by the joint and the split backward; `--run` runs two
stages on two ranks. `--table` writes the table between the marks of a page. `--packaged` takes models of
torchvision and timm in place of the tiny ones, in configurations that they publish (the extra `vision`
installs both; some two hours with `--partition`). Status 1 where one is refused or differs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import transformers

from benchmarks.architectures.check import STEPS
from benchmarks.architectures.models import ARCHITECTURES, MODELS
from benchmarks.architectures.packaged import PACKAGED
from benchmarks.architectures.results import Row, check_all, load_results, save_results
from benchmarks.architectures.table import ARCHITECTURES_TABLE, PACKAGED_TABLE, as_table, cell, with_table

_LIMIT_S = 1000.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of architectures; all by default")
    parser.add_argument("--files", action="store_true", help="import it from .pt2 and ONNX files too")
    parser.add_argument("--partition", action="store_true", help="lower a partition too")
    parser.add_argument("--train", action="store_true", help="train in two and in four stages too")
    parser.add_argument("--run", action="store_true", help="run the stages on two ranks too")
    parser.add_argument("--packaged", action="store_true", help="models of torchvision and timm instead")
    parser.add_argument("--results", type=Path, help="file of results, which are not found again")
    parser.add_argument("--again", action="store_true", help="compare again what is not equal")
    parser.add_argument("--table", type=Path, help="page whose table is written")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds of a step")
    given = parser.parse_args(arguments)
    everything = PACKAGED if given.packaged else ARCHITECTURES
    if not everything:
        print(
            "torchvision is not installed; pip install -e '.[vision]' installs it and timm", file=sys.stderr
        )
        return 2
    unknown = sorted(set(given.names) - set(MODELS))
    if unknown:
        print(f"there is no architecture {unknown[0]!r}; choose {', '.join(everything)}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    rows = load_results(given.results) if given.results else {}
    names = given.names or list(everything)
    chosen = {"import": True, "pt2": given.files, "onnx": given.files}
    steps = [step for step in STEPS if chosen.get(step, getattr(given, step.partition("-")[0], False))]
    for name, row in check_all(names, steps, rows, limit_s=given.limit, again=given.again):
        rows[name] = row
        if given.results:
            save_results(given.results, rows)
        print(
            f"{name:28} {row.operators:5} operators  {row.import_cpu_s:5.1f} s  {_line(row, steps)}",
            flush=True,
        )
    right = sum(_is_right(rows[name], steps) for name in names)
    print(f"{right} of {len(names)} equal torch")
    if given.table:
        place = PACKAGED_TABLE if given.packaged else ARCHITECTURES_TABLE
        given.table.write_text(with_table(given.table.read_text(), as_table(rows), place))
    return 0 if right == len(names) else 1


def _is_right(row: Row, steps: Sequence[str]) -> bool:
    """Say whether every step that applies is equal to torch."""
    return all(
        step in row.findings and row.findings[step].outcome in ("equal", "inapplicable") for step in steps
    )


def _line(row: Row, steps: Sequence[str]) -> str:
    return "  ".join(
        f"{step} {cell(row.findings[step])} {row.findings[step].reason}".rstrip()
        for step in steps
        if step in row.findings
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
