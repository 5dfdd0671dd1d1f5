"""Estimated training steps beside real ones: `python -m benchmarks.reality [sailor] [vtrain] [layouts]`.

Prints the tables of the dated report, offline, from the extracts in `benchmarks/data`. No clock is read, so
that every machine prints the same figures. `sailor` and `vtrain` take seconds, `layouts` some minutes. From
the full collections, which rewrites the extracts:

    git clone https://github.com/eth-easl/sailor
    git clone https://github.com/VIA-Research/vTrain
    git clone https://github.com/sitar-lab/NeuSight
    python -m benchmarks.reality sailor --clone sailor        (runs Sailor's simulator: numpy and torch)
    python -m benchmarks.reality vtrain --clone vTrain NeuSight
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.reality import hand_layouts, sailor_report, vtrain
from benchmarks.reality.calibration import calibrate
from benchmarks.reality.sailor_data import Collection, load_extract, read_clone, save_extract


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if left out")
    parser.add_argument("--clone", nargs="+", type=Path, default=[], help="clones of one part's collections")
    parser.add_argument("--work", type=float, default=2.0, help="units of work of each plan of `layouts`")
    options = parser.parse_args(arguments)
    parts = options.parts or list(PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; choose of {', '.join(PARTS)}")
    if options.clone and len(parts) != 1:
        parser.error("--clone is of one part's collections; name that part alone")
    for part in parts:
        for line in ("", f"## {part}", "", *PARTS[part](options)):
            print(line, flush=True)


def sailor_lines(options: argparse.Namespace) -> Iterator[str]:
    """Yield the tables of Sailor's runs."""
    collection = from_clone(options.clone[0].resolve()) if options.clone else load_extract()
    estimated = sailor_report.estimate_all(collection)
    for table in (
        sailor_report.summary(estimated),
        sailor_report.calibrated(calibrate(collection)),
        sailor_report.repeats(estimated),
        sailor_report.ablation(collection),
        sailor_report.ranking(estimated),
        sailor_report.every_run(estimated),
        sailor_report.left_out(collection.runs),
    ):
        yield from table
        yield ""


def from_clone(clone: Path) -> Collection:
    """Return the collection of a clone, its own simulator's figures included, and keep it as the extract."""
    printed = subprocess.run(
        [sys.executable, "-m", "benchmarks.reality.sailor_simulator", str(clone)],
        stdout=subprocess.PIPE,
        check=True,
    )
    simulated = {name: (pair[0], pair[1]) for name, pair in json.loads(printed.stdout).items()}
    collection = read_clone(clone, simulated)
    save_extract(collection)
    return collection


def vtrain_lines(options: argparse.Namespace) -> Iterator[str]:
    """Yield the tables of vTrain's runs."""
    clones = options.clone
    return vtrain.tables(vtrain.read_clones(*clones) if clones else vtrain.load_extract())


def layout_lines(options: argparse.Namespace) -> Iterator[str]:
    """Yield the table of layouts that were written by hand."""
    return hand_layouts.tables(options.work)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "sailor": sailor_lines,
    "vtrain": vtrain_lines,
    "layouts": layout_lines,
}

if __name__ == "__main__":
    main()
