"""Compare a searched schedule with the hand-written ones on the same placement, limits and micro-batches.

Each rule contributes its strongest schedule (`tessel.handwritten.strongest`), and the searched schedule names
the method that found it; if that is a rule, the search found nothing shorter. A hand-written schedule that
exceeds the memory limit is listed as not fitting; a rule that does not apply is listed with the reason.
Ratios are makespan over 1F1B's makespan, so smaller is faster. Where pairs of the searched schedule run
together, neighbours of the others are paired too, wherever that makes them shorter.
"""

from __future__ import annotations

import difflib
import html
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tessel.handwritten import HANDWRITTEN, OVERLAPPING
from tessel.handwritten.paired import paired_rule
from tessel.schedule import Schedule

SEARCHED = "searched"
OURS = "ours"
BASELINE = "1f1b"


class ComparisonRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One schedule's figures.

    Attributes:
        schedule: its name; `searched` for ours.
        found_by: the method that found ours, such as `1f1b`; None for the others, which their rule built.
        makespan: steps.
        makespan_ms: milliseconds, where a step has a length; simulated from measured blocks.
        bubble_ratio: idle share of all devices' time.
        peak_memory: most units held, one per device.
        peak_memory_bytes: bytes, static memory included, where units are bytes.
        fits: whether it keeps the memory limit.
        ratio_to_1f1b: makespan over 1F1B's; None where 1F1B does not apply.
    """

    schedule: str
    makespan: int
    bubble_ratio: float
    peak_memory: tuple[int, ...]
    fits: bool
    makespan_ms: float | None = None
    peak_memory_bytes: tuple[int, ...] | None = None
    ratio_to_1f1b: float | None = None
    found_by: str | None = None

    @property
    def title(self) -> str:
        """The name, and the method that found it: `ours (by 1f1b)`."""
        name = shown_name(self.schedule)
        return f"{name} (by {self.found_by})" if self.found_by else name

    @property
    def length(self) -> str:
        """The makespan as text: in milliseconds where a step has a length, in steps else."""
        return f"{self.makespan}" if self.makespan_ms is None else format_ms(self.makespan_ms)

    @property
    def unit(self) -> str:
        """What `length` counts."""
        return "steps" if self.makespan_ms is None else "ms"


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows, fastest first, the schedules behind them, and the reasons of those that do not apply."""

    rows: tuple[ComparisonRow, ...]
    schedules: tuple[tuple[str, Schedule], ...]
    not_applicable: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        shown = (
            f"{shown_name(row.schedule)} {row.length} {row.unit}{'' if row.fits else ' (does not fit)'}"
            for row in self.rows
        )
        return f"Comparison({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return the rows as a table, for a notebook."""
        return comparison_html(self.rows)


def compare_schedules(
    searched: Schedule,
    *,
    names: Sequence[str] | None = None,
    step_us: float | None = None,
    static_bytes: tuple[int, ...] | None = None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Comparison:
    """Return the comparison of a schedule with every hand-written one that applies to its placement.

    Args:
        searched: the schedule found; its placement, micro-batches and memory limit are the others' too.
        names: hand-written schedules to compare with; all that apply if None. 1F1B is built for the ratios
            even where it is not among them.
        step_us: microseconds of a step, where rows are to have milliseconds.
        static_bytes: bytes each device holds throughout, where memory is counted in bytes.
        on_progress: told each schedule before it is built, how many were, and how many there are.

    Raises:
        ValueError: no hand-written schedule has one of the names; says which comes near.
    """
    factor = searched.overlap_factor
    if factor is None:
        searched.require_equal("tessel compare")
    rules = HANDWRITTEN if factor is None else OVERLAPPING
    every = (rule.name for rule in rules)
    shown = {SEARCHED, *(every if names is None else map(named_schedule, names))}
    _check_names(shown)
    schedules = [(SEARCHED, searched)]
    not_applicable = []
    wanted = [rule for rule in rules if rule.name in shown | {BASELINE}]
    for number, rule in enumerate(wanted):
        on_progress(rule.name, number, len(wanted))
        # A rule without a use for the limit is shown even where it breaks it, and marked so.
        memory = searched.memory if rule.needs_limit else None
        reason = rule.why_not(searched.placement, searched.micro_batches, memory)
        if reason is not None:
            not_applicable.append((rule.name, reason))
            continue
        built = paired_rule(
            rule,
            searched.placement,
            micro_batches=searched.micro_batches,
            factor=factor,
            memory=searched.memory,
        )
        schedules.append((rule.name, built))
    baseline = next((schedule.makespan for name, schedule in schedules if name == BASELINE), None)
    schedules = [(name, schedule) for name, schedule in schedules if name in shown]
    not_applicable = [(name, reason) for name, reason in not_applicable if name in shown]
    rows = [
        _row(name, schedule, searched.memory, baseline, step_us=step_us, static_bytes=static_bytes)
        for name, schedule in schedules
    ]
    # A stable sort keeps the searched schedule first among equals.
    rows.sort(key=lambda row: row.makespan)
    return Comparison(rows=tuple(rows), schedules=tuple(schedules), not_applicable=tuple(not_applicable))


def comparison_html(rows: Sequence[ComparisonRow], *, caption: str = "") -> str:
    """Return the rows as a table in HTML, fastest first as they come.

    Args:
        rows: of one comparison, at least one.
        caption: text above the table; none if empty.
    """
    in_bytes = all(row.peak_memory_bytes is not None for row in rows)
    memory = "peak memory (MiB)" if in_bytes else "peak memory (units)"
    titles = ("schedule", f"makespan ({rows[0].unit})", "bubble ratio", memory, "fits", "ratio to 1F1B")
    cells = [
        (
            shown_name(row.schedule),
            row.length,
            f"{row.bubble_ratio:.1%}",
            f"{max(row.peak_memory_bytes or row.peak_memory) / (2**20 if in_bytes else 1):.4g}",
            "yes" if row.fits else "no",
            "-" if row.ratio_to_1f1b is None else f"{row.ratio_to_1f1b:.3f}",
        )
        for row in rows
    ]
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in cells
    )
    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def shown_name(schedule: str) -> str:
    """Return what a schedule is called in words: the searched one, as documents name it, is ours."""
    return OURS if schedule == SEARCHED else schedule


_IN_DOCUMENTS = {OURS: SEARCHED, "looped-bfs": "breadth-first"}
"""Names in documents by what users type: in words, or by a name of until version 0.4."""


def named_schedule(text: str) -> str:
    """Return the name in documents of a schedule that is named in words."""
    return _IN_DOCUMENTS.get(text, text)


def format_ms(time_ms: float) -> str:
    """Return milliseconds with a digit after the point, below 10 with three digits."""
    return f"{time_ms:.1f}" if time_ms >= 10 or time_ms == 0 else f"{time_ms:.3g}"


def _check_names(names: Iterable[str]) -> None:
    known = [OURS, *(rule.name for rule in OVERLAPPING)]
    for name in sorted(map(shown_name, names)):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? There are" if near else "choose some of"
            raise ValueError(f"there is no schedule {name!r}; {hint} {', '.join(known)}")


def _row(
    name: str,
    schedule: Schedule,
    memory: tuple[int, ...] | None,
    baseline: int | None,
    *,
    step_us: float | None,
    static_bytes: tuple[int, ...] | None,
) -> ComparisonRow:
    fits = memory is None or all(
        peak <= limit for peak, limit in zip(schedule.peak_memory, memory, strict=True)
    )
    return ComparisonRow(
        schedule=name,
        makespan=schedule.makespan,
        makespan_ms=None if step_us is None else schedule.makespan * step_us / 1000,
        bubble_ratio=schedule.bubble_ratio,
        peak_memory=schedule.peak_memory,
        peak_memory_bytes=None
        if static_bytes is None
        else tuple(a + b for a, b in zip(schedule.peak_memory, static_bytes, strict=True)),
        fits=fits,
        ratio_to_1f1b=None if not baseline else schedule.makespan / baseline,
        found_by=(schedule.found_by or None) if name == SEARCHED else None,
    )
