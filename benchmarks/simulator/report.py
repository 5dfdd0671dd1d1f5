"""The report of simulated and real makespans."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from typing import NamedTuple

from benchmarks.simulator.provenance import commit, processor
from tessel.engine.synthetic.overheads import Found

MARGIN = 0.05
"""Schedules whose simulated makespans differ by less are not told apart."""


class Row(NamedTuple):
    """One schedule at one duration."""

    case: str
    schedule: str
    plain_ms: float
    calibrated_ms: float
    real_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.real_ms)


def order_errors(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the pairs of schedules of one duration whose real order is not the simulated one."""
    for a, b in combinations(rows, 2):
        if a.case.split(",")[0] != b.case.split(",")[0]:
            continue
        faster, slower = sorted((a, b), key=lambda row: row.calibrated_ms)
        is_apart = slower.calibrated_ms > (1 + MARGIN) * faster.calibrated_ms
        if is_apart and faster.median_ms >= slower.median_ms:
            yield f"{faster.case}: {faster.schedule} before {slower.schedule}"


def report(rows: Sequence[Row], found: Found, arguments: argparse.Namespace, load: str) -> str:
    """Return the report as Markdown."""
    overheads = "; ".join(
        f"{own.action_us / 1000:.2f} ms an action, {own.gap_us / 1000:.2f} ms between actions, "
        f"{own.hop_us / 1000:.2f} ms a hop, {own.collective_us / 1000:.2f} ms a block on all ranks, "
        f"where stages take {duration_us / 1000:.0f} ms"
        for duration_us, own in zip(*found.calibration, strict=True)
    )
    plain = [row.median_ms / row.plain_ms - 1 for row in rows]
    calibrated = [row.median_ms / row.calibrated_ms - 1 for row in rows]
    wrong = list(order_errors(rows))
    ratios = [
        f"- {case}: {_ratio(rows, case)}"
        for case in dict.fromkeys(row.case for row in rows if row.schedule == "searched")
    ]
    table = [
        "| stages | schedule | simulated (ms) | with overheads (ms) | real median (ms) | range (ms) "
        "| real/simulated | real/with overheads |",
        "|---|---|--:|--:|--:|---|--:|--:|",
        *(
            f"| {row.case} | {row.schedule} | {row.plain_ms:.1f} | {row.calibrated_ms:.1f} "
            f"| {row.median_ms:.1f} | {min(row.real_ms):.1f} to {max(row.real_ms):.1f} "
            f"| {row.median_ms / row.plain_ms:.3f} | {row.median_ms / row.calibrated_ms:.3f} |"
            for row in rows
        ),
    ]
    lines = [
        "# Simulated and real makespans",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {processor()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, load average {load} "
        f"from other work, niceness {os.nice(0)}.",
        "",
        "```",
        f"python -m benchmarks.simulator --ranks {arguments.ranks} --ms {' '.join(map(str, arguments.ms))} "
        f"--micro-batches {arguments.micro_batches} --repeats {arguments.repeats}"
        f"{' --shared' if arguments.shared else ''}",
        "```",
        "",
        f"{arguments.ranks} ranks, {arguments.micro_batches} micro-batches, {arguments.repeats} counted "
        "steps of each schedule, the schedules of the same stages in turn. Stages sleep; see the benchmark's "
        "docstring.",
        "",
        *table,
        "",
        f"Plain simulation is {_spread(plain)} off; with overheads {_spread(calibrated)} "
        f"({sum(abs(error) <= 0.05 for error in calibrated)} of {len(rows)} within 5 %). The overheads were "
        f"{'measured before it by runs of their own' if found.is_new else 'found in the records'} and used "
        f"everywhere: {overheads}.",
        "",
        "Order of schedules that differ by over 5 %: "
        + ("always as predicted." if not wrong else "not as predicted for " + "; ".join(wrong) + "."),
        "",
        "Real makespan of the searched schedule over 1F1B's, median of step by step ratios (range):",
        "",
        *ratios,
        "",
        "Real makespans of every counted step, in ms:",
        "",
        *(f"- {row.case}, {row.schedule}: {', '.join(f'{ms:.1f}' for ms in row.real_ms)}" for row in rows),
        "",
    ]
    return "\n".join(lines)


def _ratio(rows: Sequence[Row], case: str) -> str:
    by_name: Mapping[str, Row] = {row.schedule: row for row in rows if row.case == case}
    searched, baseline = by_name["searched"], by_name["1f1b"]
    ratios = [mine / theirs for mine, theirs in zip(searched.real_ms, baseline.real_ms, strict=True)]
    return (
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
        f"simulated {searched.plain_ms / baseline.plain_ms:.3f}"
    )


def _spread(errors: Sequence[float]) -> str:
    return f"{100 * min(errors):+.1f} to {100 * max(errors):+.1f} %"
