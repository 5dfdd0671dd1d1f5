"""Tables of runs: best latency after so many trials over the best by anybody."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tuner.language.evaluation import Run

COUNTS = (1, 2, 4, 8, 16, 32, 64)


def curve_tables(runs: Sequence[Run]) -> str:
    """Return a table of the ratios by kernel, and one of their geometric means and quartiles.

    Only kernels that every proposer has run with some seed are in the means, so that all are compared on the
    same ones.
    """
    counts = [count for count in COUNTS if count <= max(len(run.latencies_us) for run in runs)]
    proposers = sorted({run.proposer for run in runs})
    best = {
        kernel: min(run.best_us(10**6) for run in runs if run.kernel == kernel)
        for kernel in sorted({run.kernel for run in runs})
    }
    shared = [
        kernel for kernel in best if {run.proposer for run in runs if run.kernel == kernel} == set(proposers)
    ]
    lines = [_header(["kernel", "best of all", "proposer", "seeds"], counts)]
    for kernel, best_us in best.items():
        for proposer in proposers:
            mine = [run for run in runs if (run.kernel, run.proposer) == (kernel, proposer)]
            if mine:
                cells = [_cell(_long_enough(mine, count), count, best_us) for count in counts]
                lines.append(_row([kernel, f"{best_us:.1f} µs", proposer, str(len(mine)), *cells]))
    lines += ["", _header(["proposer", f"over {len(shared)} kernels", "s a run"], counts)]
    for proposer in proposers:
        mine = [run for run in runs if run.proposer == proposer]
        seconds = f"{statistics.median(run.seconds for run in mine):.0f}"
        means, spreads = [], []
        for count in counts:
            if not shared:
                continue
            enough = _long_enough(mine, count)
            if {run.kernel for run in enough if run.kernel in shared} != set(shared):
                means.append("-")
                spreads.append("-")
                continue
            medians = [
                _median([run for run in enough if run.kernel == kernel], count, best[kernel])
                for kernel in shared
            ]
            means.append(f"**{statistics.geometric_mean(medians):.2f}**")
            ratios = [run.best_us(count) / best[run.kernel] for run in enough if run.kernel in shared]
            spreads.append(_quartiles(ratios))
        lines.append(_row([proposer, "geometric mean of medians", seconds, *means]))
        lines.append(_row(["", "quartiles of all runs", "", *spreads]))
    return "\n".join(lines)


def winner_table(latencies_us: Mapping[str, Mapping[str, float]]) -> str:
    """Return each proposer's best schedule, all of a kernel measured again in turn.

    Args:
        latencies_us: by kernel and proposer.
    """
    proposers = sorted({proposer for found in latencies_us.values() for proposer in found})
    lines = [_header(["kernel"], proposers)]
    for kernel, found in latencies_us.items():
        cells = [f"{found[proposer]:.1f} µs" if proposer in found else "-" for proposer in proposers]
        lines.append(_row([kernel, *cells]))
    return "\n".join(lines)


def _long_enough(runs: Sequence[Run], count: int) -> list[Run]:
    """Return the runs that went on for so many trials: evolution does for one seed alone."""
    return [run for run in runs if len(run.latencies_us) >= count]


def _cell(runs: Sequence[Run], count: int, best_us: float) -> str:
    return f"{_median(runs, count, best_us):.2f}" if runs else "-"


def _median(runs: Sequence[Run], count: int, best_us: float) -> float:
    return statistics.median(run.best_us(count) / best_us for run in runs)


def _quartiles(ratios: Sequence[float]) -> str:
    if len(ratios) < 2:
        return "-"
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{low:.2f}–{high:.2f}"


def _header(names: Sequence[str], columns: Sequence[object]) -> str:
    cells = [*names, *map(str, columns)]
    return f"{_row(cells)}\n|{'---|' * len(cells)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
