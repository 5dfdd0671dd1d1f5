"""Import public architectures and compare them with torch.

    python -m benchmarks.architectures                      all of them: some ten minutes
    python -m benchmarks.architectures gpt2 swin detr       some
    python -m benchmarks.architectures --partition          partitioned too, each backend preferred once
    python -m benchmarks.architectures --table architectures.md

Each is built in a tiny configuration with random weights (nothing is downloaded), exported, imported,
lowered by TVM's default pipeline, and run beside torch on the same inputs; equal is within 1e-5 of the
largest output. With `--partition` each is also partitioned, by prices that favour one backend after another
instead of measured ones, and compared with torch within the tolerance of its data type. Status 1 where one
is refused or differs.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
import tvm

from benchmarks.architectures.check import Outcome, check
from benchmarks.architectures.models import ARCHITECTURES

LIMIT = 1e-5

_INTRODUCTION = """# Architectures

Public architectures in tiny configurations with random weights, imported and compared with torch, by
`python -m benchmarks.architectures --table FILE`. The error is the largest difference over
the largest output. {equal} of {all} are equal to torch.
torch {torch}, transformers {transformers}, TVM {tvm}, {date}.

| architecture | parameters | operators | error |
|---|--:|--:|---|
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of architectures; all by default")
    parser.add_argument("--table", type=Path, help="file that the table is written to")
    parser.add_argument("--partition", action="store_true", help="lower a partition too, and compare it")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(ARCHITECTURES))
    if unknown:
        print(f"there is no architecture {unknown[0]!r}; choose {', '.join(ARCHITECTURES)}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    outcomes = []
    for name in given.names or ARCHITECTURES:
        outcome = check(name, ARCHITECTURES[name], partitions=given.partition)
        outcomes.append(outcome)
        print(
            f"{name:20} {outcome.operators:5} operators  {outcome.import_cpu_s:5.1f} s  {_result(outcome)}"
            f"{_partition(outcome)}",
            flush=True,
        )
    equal = sum(map(is_equal, outcomes))
    print(f"{equal} of {len(outcomes)} equal torch")
    if given.table:
        given.table.write_text(as_table(outcomes))
    return 0 if equal == len(outcomes) else 1


def is_equal(outcome: Outcome) -> bool:
    """Say whether an architecture gives what torch gives, partitioned as well where that was asked for."""
    return outcome.error is not None and outcome.error <= LIMIT and not outcome.partition


def as_table(outcomes: Sequence[Outcome]) -> str:
    """Return the page of the documentation."""
    head = _INTRODUCTION.format(
        equal=sum(map(is_equal, outcomes)),
        all=len(outcomes),
        torch=torch.__version__.partition("+")[0],
        transformers=transformers.__version__,
        tvm=tvm.__version__,
        date=time.strftime("%Y-%m-%d"),
    )
    rows = [
        f"| {each.name} | {each.parameters:,} | {each.operators or ''} | {_result(each)} |\n"
        for each in outcomes
    ]
    return head + "".join(rows)


def _result(outcome: Outcome) -> str:
    return outcome.reason.replace("|", "/") if outcome.error is None else f"{outcome.error:.0e}"


def _partition(outcome: Outcome) -> str:
    """Return the last column: nothing where no partition was asked for."""
    if outcome.partition is None:
        return ""
    faults = "; ".join(f"{backend}: {fault}" for backend, fault in outcome.partition.items())
    return f"  {faults or 'partitions are equal'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
