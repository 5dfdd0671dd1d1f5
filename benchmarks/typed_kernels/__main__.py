"""Are kernels by data type known on GPUs that were measured, and on those that were not?

`python -m benchmarks.typed_kernels DIR` trains models on parts of aiconfigurator's tables in DIR, and prints
tables of their errors on what was held out, beside a roofline, the nearest measured kernel and interpolation
between eight. Whole extents are held out, or whole generations; calibration never sees what is held out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.typed_kernels.ablation import ablations
from benchmarks.typed_kernels.decisions import cut_regrets, degree_regrets
from benchmarks.typed_kernels.figures import (
    Row,
    after_a_sweep,
    on_new_extents,
    on_new_generations,
    with_all_kernels,
)
from cost_model.gpu.typed.training import Cell, cells_of_tables, model_of_cells
from records.files.aiconfigurator import read_tables

_COLUMNS = ("roofline", "nearest", "interpolation", "model")
_DECIDED = 20_000
"""Kernels of a cell among which decisions find what was measured at every degree."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.typed_kernels", description=__doc__)
    parser.add_argument("folder", type=Path, help="aiconfigurator's systems/data, or a part of it")
    parser.add_argument("--samples", type=int, default=1500, help="kernels of a device and data type")
    parser.add_argument("--kinds", help="comma-separated, and no more; all if left out")
    options = parser.parse_args(arguments)
    started = time.process_time()
    tables = list(read_tables(options.folder))
    print(f"{sum(map(len, tables))} kernels read and checked in {time.process_time() - started:.1f} s\n")
    by_kind = cells_of_tables(tables, rng=np.random.default_rng(0), most=options.samples)
    for kind, cells in by_kind.items():
        if options.kinds and kind not in options.kinds.split(","):
            continue
        print(f"## {kind}: new extents\n")
        _print_rows(on_new_extents(cells))
        print(f"## {kind}: new generations\n")
        _print_rows(on_new_generations(cells))
    if options.kinds:
        return
    everything = cells_of_tables(tables, rng=np.random.default_rng(0), most=_DECIDED)
    products = [cell for cell in by_kind["product"] if cell.name == "bfloat16"]
    whole = {cell.sheet: cell for cell in everything["product"] if cell.name == "bfloat16"}
    print("## bfloat16 products of a new generation after a sweep of 200\n")
    _print(
        ("GPU", "random", "chosen", "two thirds of all", "error"),
        (
            (
                cell.sheet.device.name,
                *(_spread(values) for values in found.values()),
                2 * len(whole[cell.sheet].kernels) // 3,
                f"{with_all_kernels(whole[cell.sheet]):.1f}",
            )
            for cell, found in after_a_sweep(products)
        ),
    )
    print("## what features are worth: errors of products, in per cent\n")
    _print(("left out", "new extents", "new generations"), ablations(by_kind["product"]))
    print("## decisions: regret in per cent\n")
    _print(
        ("GPU", "degrees: chosen among", "median", "mean", "p90", "cuts: median", "mean", "p90"),
        _decisions(by_kind["product"], everything["product"], everything["collective"]),
    )
    print(f"{time.process_time() - started:.0f} s of processor time")


def _decisions(
    drawn: Sequence[Cell], products: Sequence[Cell], collectives: Sequence[Cell]
) -> Iterable[Sequence[object]]:
    """Yield regrets on each device, of a model that was trained on other extents of products."""
    sums = [cell for cell in collectives if cell.name == "all_reduce"]
    model = model_of_cells({"product": list(drawn), "collective": list(collectives)}, num_threads=1)
    trained = {cell.sheet.device.name: cell for cell in drawn if cell.name == "bfloat16"}
    for cell in (each for each in products if each.name == "bfloat16"):
        name = cell.sheet.device.name
        reductions = [each for each in sums if each.sheet.device.name == name]
        seen = set(_keys(trained[name]))
        fresh = cell.some(np.array([key not in seen for key in _keys(cell)]))
        degrees = degree_regrets(model, fresh, reductions[0]) if reductions else []
        predicted = model.predict(fresh.kernels, fresh.sheet).latency_us
        cuts = cut_regrets(fresh.latency_us, predicted, np.random.default_rng(0))
        yield name, len(degrees), *_quantiles(degrees), *_quantiles(cuts)


def _keys(cell: Cell) -> list[tuple[int, ...]]:
    return list(zip(*(values.tolist() for values in cell.kernels.numbers.values()), strict=True))


def _quantiles(values: Sequence[float]) -> tuple[str, str, str]:
    if not values:
        return "–", "–", "–"
    return tuple(f"{each:.1f}" for each in (np.median(values), np.mean(values), np.quantile(values, 0.9)))  # type: ignore[return-value]  # three


def _spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _print_rows(rows: Sequence[Row]) -> None:
    _print(
        ("GPU", "cell", "kernels", *_COLUMNS, "intervals hold", "half width"),
        (
            (
                row.cell.sheet.device.name,
                row.cell.name,
                row.num_kernels,
                *(f"{row.errors[name]:.1f}" for name in _COLUMNS),
                f"{row.coverage:.1f}",
                f"{row.width:.2f} ×",
            )
            for row in rows
        ),
    )


def _print(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print()


if __name__ == "__main__":
    main()
