"""The tables of the report: a line a case, and geometric means over all, over limited and over easy cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.planner.cases import ROUNDING, Row, geometric_mean

COLUMNS = {
    "1f1b": "1F1B",
    "interleaved": "interleaved",
    "zb-h1": "ZB-H1",
    "zb-v": "ZB-V",
    "torch-auto": "torch's split",
    "best": "best of all",
}
"""Ratios by the name of the baseline, and their titles; the best over all baselines last."""


def every_row(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line of Markdown for each case."""
    yield (
        "| profile | head | devices | memory | step ms | bound | order | "
        + " | ".join(f"over {title}" for title in COLUMNS.values())
        + " | s |"
    )
    yield "|---" * (8 + len(COLUMNS)) + "|"
    for row in rows:
        memory = "no limit" if row.memory_bytes is None else f"{row.memory_bytes / 2**30:.1f} GiB"
        begin = f"| {row.profile} | {row.head:.1f} | {row.devices} | {memory} |"
        if row.failure:
            yield f"{begin} {row.failure} |" + " |" * (3 + len(COLUMNS))
            continue
        ratios = (row.ratio(name) for name in COLUMNS)
        cells = ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        gap = row.step_us / row.bound_us - 1
        yield (
            f"{begin} {row.step_us / 1e3:.1f} | {gap:.1%} | {row.order} | "
            f"{' | '.join(cells)} | {row.processor_s:.0f} |"
        )


GROUPS: dict[str, Callable[[Row], bool]] = {
    "all": lambda row: True,
    "memory binds or the head is heavy": lambda row: row.is_hard,
    "memory binds": lambda row: row.share is not None and row.share < 1,
    "the head is heavy, memory as 1F1B takes": lambda row: (
        row.is_hard and (row.share is None or row.share >= 1)
    ),
    "neither": lambda row: not row.is_hard,
}
"""Cases that are summed up together."""


def means(rows: Sequence[Row]) -> Iterator[str]:
    """Yield geometric means of the ratios and of the gaps by group, and what is left to be won."""
    planned = [row for row in rows if not row.failure]
    yield (
        "| cases | number | "
        + " | ".join(f"over {title}" for title in COLUMNS.values())
        + " | gap to the bound | best hand-written over the bound |"
    )
    yield "|---" * (4 + len(COLUMNS)) + "|"
    for title, belongs in GROUPS.items():
        group = [row for row in planned if belongs(row)]
        cells = []
        for name in COLUMNS:
            ratios = [ratio for row in group if (ratio := row.ratio(name)) is not None]
            cells.append(f"{geometric_mean(ratios):.3f} ({len(ratios)})" if ratios else "-")
        gap = geometric_mean([row.step_us / row.bound_us for row in group]) - 1
        left = geometric_mean(
            [row.step_us / row.bound_us * ratio for row in group if (ratio := row.ratio("best"))]
        )
        yield f"| {title} | {len(group)} | {' | '.join(cells)} | {gap:.1%} | {left:.3f} |"


def slower(rows: Sequence[Row]) -> list[Row]:
    """Return rows in which some hand-written schedule is faster than the plan."""
    return [row for row in rows if (ratio := row.ratio("best")) is not None and ratio < 1 - ROUNDING]
