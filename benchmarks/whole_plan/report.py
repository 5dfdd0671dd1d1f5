"""The tables of planned cases, and what the goals ask for beside what was found, in Markdown."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.whole_plan.cases import ROUNDING, SHARES, Row

V_1F1B = "1f1b"

TIGHT = min(SHARES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted of some cases.

    Attributes:
        text: in words.
        models: parts of the names of its models; empty for all.
        devices: of its cases.
        at_least: the geometric mean wanted, of `measure`.
        measure: of a case; None where the case does not count.
        micro_batches: of its cases; 0 for any.
        share: memory limit of its cases; 0 for any.
    """

    text: str
    models: tuple[str, ...]
    devices: int
    at_least: float
    measure: Callable[[Row], float | None]
    micro_batches: int = 0
    share: float = 0.0

    def is_of(self, row: Row) -> bool:
        """Whether a case counts."""
        return (
            row.devices == self.devices
            and (not self.models or any(name in row.model for name in self.models))
            and self.micro_batches in (0, row.micro_batches)
            and self.share in (0.0, row.share)
        )


def over_1f1b(row: Row) -> float | None:
    """Return the step of 1F1B on the plain chain over the plan's."""
    return row.alone.get(V_1F1B)


def over_best(row: Row) -> float | None:
    """Return the step of the fastest way alone over the plan's."""
    return min(row.alone.values(), default=None)


def over_strongest(row: Row) -> float | None:
    """Return the step of the fastest way, alone or with any degrees, over the plan's."""
    return min((*row.alone.values(), *row.ratios.values()), default=None)


def best_over_bound(row: Row) -> float | None:
    """Return the step of the fastest way alone over the bound: no plan could win more."""
    best = over_best(row)
    return None if best is None else best * row.step_ms / row.bound_ms


GOALS = (
    Goal(
        text="GPT-2 small, 4 devices, 16 micro-batches, V-1F1B's memory: at most 0.82 of V-1F1B",
        models=("gpt2",),
        devices=4,
        at_least=1 / 0.82,
        measure=over_1f1b,
        micro_batches=16,
        share=max(SHARES),
    ),
    Goal(
        text="256 k and 1 M words, 8 devices: 2 over V-1F1B",
        models=("256k", "1m"),
        devices=8,
        at_least=2.0,
        measure=over_1f1b,
    ),
    Goal(
        text="50 k words and mT5-like, 8 devices: 1.3 over V-1F1B",
        models=("50k", "mt5"),
        devices=8,
        at_least=1.3,
        measure=over_1f1b,
    ),
    Goal(
        text="8 devices, tighter memory: 1.1 over the best of all baselines",
        models=(),
        devices=8,
        at_least=1.1,
        measure=over_best,
        share=TIGHT,
    ),
)


def goals(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of the goals."""
    yield "| goal | wanted | found (cases) | met | best baseline over the bound |"
    yield "|---|---|---|---|---|"
    for goal in GOALS:
        own = [row for row in rows if row.plan and goal.is_of(row)]
        found = [value for value in map(goal.measure, own) if value is not None]
        most = [value for value in map(best_over_bound, own) if value is not None]
        met = "-" if not found else "yes" if _mean(found) >= goal.at_least else "**no**"
        yield f"| {goal.text} | {goal.at_least:.3f} | {_text(found)} | {met} | {_text(most)} |"
    planned = [row for row in rows if row.plan]
    slower = sum(row.is_slower for row in planned)
    yield ""
    yield (
        f"A hand-written way is faster than the plan in {slower} of {len(planned)} cases; nothing fits in "
        f"{len(rows) - len(planned)} of {len(rows)}. Planning took {_seconds(planned)}."
    )
    pairs, longer = longer_with_more_memory(rows)
    yield ""
    yield (
        f"Of {pairs} pairs of cases that differ in the memory limit alone, the step is longer under the "
        f"looser one in {longer}."
    )


def longer_with_more_memory(rows: Sequence[Row]) -> tuple[int, int]:
    """Count pairs of cases of which one has more memory, and those whose step is longer there."""
    pairs = longer = 0
    for row, other in itertools.combinations((row for row in rows if row.plan), 2):
        if (row.model, row.devices, row.micro_batches) != (other.model, other.devices, other.micro_batches):
            continue
        tight, loose = sorted((row, other), key=lambda each: each.memory_bytes)
        pairs += 1
        longer += loose.step_ms > tight.step_ms * (1 + ROUNDING)
    return pairs, longer


def means(rows: Sequence[Row]) -> Iterator[str]:
    """Yield geometric means by model and number of devices."""
    yield (
        "| model | devices | over V-1F1B | over the best way | the same, tighter memory | over the best with "
        "any degrees, tighter memory | best way over the bound, tighter memory | gap, mean | gap, largest |"
    )
    yield "|---" * 9 + "|"
    for model, devices in dict.fromkeys((row.model, row.devices) for row in rows):
        own = [row for row in rows if (row.model, row.devices) == (model, devices) and row.plan]
        tight = [row for row in own if row.share == TIGHT]
        cells = [
            _text(values)
            for values in (
                [value for value in map(over_1f1b, own) if value is not None],
                [value for value in map(over_best, own) if value is not None],
                [value for value in map(over_best, tight) if value is not None],
                [value for value in map(over_strongest, tight) if value is not None],
                [value for value in map(best_over_bound, tight) if value is not None],
            )
        ]
        gaps = [row.gap for row in own]
        mean = _mean([1 + gap for gap in gaps]) - 1
        largest = max(gaps, default=math.nan)
        yield f"| {model} | {devices} | {' | '.join(cells)} | {mean:.1%} | {largest:.1%} |"


def every_row(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of every case: the ways alone, and the strongest with any degrees."""
    names = sorted({name for row in rows for name in row.alone})
    yield (
        "| model | devices | memory | micro-batches | step ms | gap | s | "
        f"{' | '.join(names)} | best with any degrees | plan |"
    )
    yield "|---" * (9 + len(names)) + "|"
    for row in rows:
        cells = [f"{row.alone[name]:.3f}" if name in row.alone else "-" for name in names]
        name, ratio = min(row.ratios.items(), key=lambda each: each[1], default=("-", 0.0))
        yield (
            f"| {row.model} | {row.devices} | {row.share:g} = {row.memory_bytes / 2**20:.0f} MiB | "
            f"{row.micro_batches} | {row.step_ms:.1f} | {row.gap:.1%} | {row.seconds:.0f} | "
            f"{' | '.join(cells)} | {ratio:.3f} {name} | {row.plan or 'nothing fits'} |"
        )


def markdown(
    rows: Sequence[Row], *, date: str, command: str, commit: str, machine: str, costs: str, link: str
) -> Iterator[str]:
    """Yield the report.

    Args:
        rows: every case.
        date: of the run, as `2026-11`.
        command: that makes the rows.
        commit: that was checked out.
        machine: processor and versions.
        costs: where those of layers come from.
        link: bandwidth and latency between devices.
    """
    yield f"# Whole plans beside hand-written ways, {date}"
    yield ""
    yield f"Command: `{command}`, commit `{commit}`. Machine: {machine}. Layers, divided ones"
    yield f"included, are {costs}; hops and collectives are *given*: {link}. Steps are"
    yield "*simulated* from these. Seconds of planning are wall-clock, under any load that there was."
    yield ""
    yield "Ratios are steps over the plan's: above 1, the plan is faster; in brackets, the number of cases in"
    yield "which the way fits at all. A way alone is a pipeline over all devices, or data or tensor"
    yield "parallelism over all; with any degrees it also has the replicas and the tensor parallelism that"
    yield "suit it best. Each has its own best cut and recomputation under the same memory limit, from the"
    yield "same figures. A limit is a part of what 1F1B on the plain chain, with its fastest cut, holds"
    yield "without one."
    yield ""
    yield "## Goals"
    yield ""
    yield from goals(rows)
    yield ""
    yield "## Geometric means"
    yield ""
    yield from means(rows)
    yield ""
    yield "## Every case"
    yield ""
    yield from every_row(rows)


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean; not a number of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _text(values: Sequence[float]) -> str:
    return f"{_mean(values):.3f} ({len(values)})" if values else "-"


def _seconds(rows: Sequence[Row]) -> str:
    if not rows:
        return "no time"
    seconds = sorted(row.seconds for row in rows)
    return f"{seconds[len(seconds) // 2]:.1f} s in the median and {seconds[-1]:.1f} s at most"
