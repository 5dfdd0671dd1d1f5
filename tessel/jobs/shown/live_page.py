"""A page whose schedule is searched again for other durations, memory and numbers of micro-batches.

    durations of forward blocks   1            one for all, or one per block of that kind: steps; of a plan
                                               milliseconds, such as 0.3,1.5
    memory                        4,4,3,3      one for all devices, or one per device; empty for no limit;
                                               of a plan sizes such as 16GiB, its weights included
    micro-batches                 8

Each answer is a page of its own, found within `SEARCH_S`, with the schedules of other limits on memory that
`FRONTIER_S` finds and, of a model's plan, the graph of its partition. What is asked for stands in its
address, so that it can be kept, reloaded and compared. Checked in tests/tessel/jobs/test_serving.py.
"""

from __future__ import annotations

import contextlib
import operator
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tessel.errors import ScheduleError, UsageError
from tessel.jobs.inputs.arguments import parse_bytes
from tessel.jobs.shown.formatting import format_bytes
from tessel.jobs.shown.pictures import build_comparison, compared_page, verdict_of

if TYPE_CHECKING:
    from tessel.jobs.inputs.plan_view import PlanView
    from tessel.picture.page.document import PageVariant
    from tessel.placement import BlockKind, Placement
    from tessel.schedule import Schedule

SEARCH_S = 0.45
"""Time of a search: with 1F1B beside it and the page, an answer takes less than a second."""

FRONTIER_S = 0.25
"""Time of the searches under other limits on memory."""

FRONTIER_LIMITS = 5
"""Parts of what the schedule holds that are tried as limits, in equal steps."""

MAX_FRONTIER_BLOCKS = 4_000
"""Blocks of all micro-batches up to which they are made: they are all on the page."""

_MILLISECONDS = re.compile(r"\s*[0-9]{1,9}(\.[0-9]{0,9})?(e[-+][0-9]{1,2})?\s*", re.ASCII)
"""A time as a field holds it, in plain digits or as `4.8e-05`."""

MAX_BLOCKS_RUN = 20_000
"""Blocks of all micro-batches: of more, not even the hand-written schedules are there within a second."""


@dataclass(frozen=True, slots=True)
class LivePage:
    """Answers what is asked of one schedule's placement.

    Attributes:
        schedule: what the page shows before anything is asked.
        plan: the plan that it is of, for milliseconds and bytes; None of a schedule alone.
    """

    schedule: Schedule
    plan: PlanView | None
    title: str
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def warm_up(self) -> None:
        """Answer once what the schedule itself asks for, so that the first answer loads nothing."""
        self.answer({name: value for name, (_, value) in self._values({}).items()})

    def answer(self, query: Mapping[str, str]) -> bytes:
        """Return the page of what a form asks for; of the schedule itself where it asks for nothing.

        What cannot be answered is said on the page, which then shows the schedule itself. One search runs at
        a time, so that each has the time that it is given.
        """
        with self._lock:
            if not query:
                return self._page(self.schedule, self._values({}), "")
            began_s = time.monotonic()
            try:
                found = self._find(query)
            except (ScheduleError, UsageError) as error:
                return self._page(self.schedule, self._values(query), f"Not searched: {error}")
            proof = "proven optimal" if found.optimal else f"within {found.gap:.1%} of optimal"
            said = f"Found in {time.monotonic() - began_s:.2f} s: {proof}."
            return self._page(found, self._values(query), said)

    def _find(self, query: Mapping[str, str]) -> Schedule:
        from tessel.search.budget import SearchBudget
        from tessel.search.makespan.find_schedule import find_schedule

        placement = self._with_spans(query)
        (micro_batches,) = _numbers("micro-batches", query.get("micro_batches", ""), (1,), least=1)
        if micro_batches * len(placement.blocks) > MAX_BLOCKS_RUN:
            raise UsageError(
                f"{micro_batches} micro-batches of {len(placement.blocks)} blocks are more than the "
                f"{MAX_BLOCKS_RUN} blocks that are searched within a second; ask for fewer"
            )
        return find_schedule(
            placement,
            micro_batches=micro_batches,
            memory=self._memory(query.get("memory", "").strip()),
            budget=SearchBudget(work_limit=None, time_limit_s=SEARCH_S),
        )

    def _memory(self, text: str) -> tuple[int, ...] | None:
        """Return what blocks may hold on each device: units, or bytes beside what a plan holds there."""
        devices = self.schedule.placement.devices
        if not text:
            return None
        if self.plan is None:
            memory = _numbers("memory", text, (1, devices), least=0)
            return memory * (devices // len(memory))
        sizes = [parse_bytes(part) for part in text.split(",")]
        if len(sizes) not in (1, devices):
            raise UsageError(f"memory is {text[:60]!r}; give 1 or {devices} sizes, separated by commas")
        held = self.plan.static_bytes
        room = tuple(size - own for size, own in zip(sizes * (devices // len(sizes)), held, strict=True))
        if min(room) < 0:
            raise UsageError(
                f"memory is {text[:60]!r}, and weights and what is held beside them take up to "
                f"{format_bytes(max(held))} of a device; give more"
            )
        return room

    def _variants(self, schedule: Schedule) -> tuple[PageVariant, ...]:
        """Return the schedules of tighter limits on memory, each shorter than those that need less.

        A frontier would begin with its ends and halve what is between (`tessel.search.frontier`); in so short
        a time, limits in equal steps show more.
        """
        from tessel.picture.page.document import PageVariant
        from tessel.search.budget import SearchBudget
        from tessel.search.makespan.find_schedule import find_schedule

        if len(schedule.starts) > MAX_FRONTIER_BLOCKS:
            return ()
        peak, found = max(schedule.peak_memory), [schedule]
        for limit in sorted({peak * part // FRONTIER_LIMITS for part in range(1, FRONTIER_LIMITS)}):
            budget = SearchBudget(work_limit=None, time_limit_s=FRONTIER_S / FRONTIER_LIMITS)
            memory = (limit,) * schedule.placement.devices
            with contextlib.suppress(ScheduleError):  # nothing fits
                found.append(
                    find_schedule(
                        schedule.placement,
                        micro_batches=schedule.micro_batches,
                        memory=memory,
                        budget=budget,
                    )
                )
        variants: list[PageVariant] = []
        for each in sorted(found, key=lambda each: max(each.peak_memory)):
            if variants and each.makespan >= variants[-1].schedule.makespan:
                continue
            limits = set(each.memory or ())
            variants.append(
                PageVariant(
                    memory=max(each.peak_memory),
                    schedule=each,
                    # A bound under unequal limits says nothing of equal ones.
                    lower_bound=each.lower_bound if len(limits) < 2 else 0,
                    optimal=each.optimal and len(limits) < 2,
                )
            )
        return tuple(variants)

    def _with_spans(self, query: Mapping[str, str]) -> Placement:
        """Return the placement with the durations asked for, by kind of block, in the order of the blocks."""
        spans: dict[str, int] = {}
        for kind, names in _names_by_kind(self.schedule.placement).items():
            given = self._spans(self._label(kind), query.get(kind, ""), (1, len(names)))
            spans.update(zip(names, given * (len(names) // len(given)), strict=True))
        blocks = tuple(
            msgspec.structs.replace(block, span=spans[block.name]) for block in self.schedule.placement.blocks
        )
        return msgspec.structs.replace(self.schedule.placement, blocks=blocks)

    def _values(self, query: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Return label and value of each field by its name."""
        placement = self.schedule.placement
        limits = self.schedule.memory
        values = {
            str(kind): (
                self._label(kind),
                _joined([placement.block(name).span for name in names], self._duration),
            )
            for kind, names in _names_by_kind(placement).items()
        }
        if self.plan is None:
            values["memory"] = ("Memory of a device, units", "" if limits is None else _joined(limits))
        else:
            held = self.plan.static_bytes
            sizes = [] if limits is None else list(map(operator.add, limits, held))
            values["memory"] = ("Memory of a device, weights included", _joined(sizes, _size))
        values["micro_batches"] = ("Micro-batches", str(self.schedule.micro_batches))
        return {name: (label, query.get(name, value)) for name, (label, value) in values.items()}

    def _label(self, kind: str) -> str:
        words = kind.replace("_", " ")
        return f"Steps of {words} blocks" if self.plan is None else f"{words.capitalize()} blocks, ms"

    def _duration(self, span: int) -> str:
        """Return a span as a field holds it: steps, or milliseconds in the fewest digits that say it."""
        if self.plan is None:
            return str(span)
        step_ms = self.plan.step_us / 1e3
        texts = (f"{span * step_ms:.{digits}g}" for digits in range(3, 18))
        return next(text for text in texts if round(float(text) / step_ms) == span)

    def _spans(self, name: str, text: str, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the spans of a field.

        Raises:
            UsageError: they are none, or not as many as one of the counts.
        """
        if self.plan is None:
            return _numbers(name, text, counts, least=0)
        parts = text.split(",")
        if len(parts) not in counts or not all(map(_MILLISECONDS.fullmatch, parts)):
            allowed = " or ".join(map(str, sorted(set(counts))))
            raise UsageError(f"{name} is {text[:60]!r}; give {allowed} times, separated by commas: 0.3,1.5")
        return tuple(round(float(part) * 1e3 / self.plan.step_us) for part in parts)

    def _page(self, schedule: Schedule, values: Mapping[str, tuple[str, str]], said: str) -> bytes:
        from tessel.picture.page.document import PageField, PageForm, with_form

        fields = tuple(
            PageField(name=name, label=label, value=value) for name, (label, value) in values.items()
        )
        comparison = build_comparison(schedule, self.plan, ("1f1b",))
        is_changed = schedule is not self.schedule
        title = f"{self.title}, changed" if is_changed else self.title
        if self.plan is not None and not is_changed:
            title = f"{title}: {verdict_of(self.plan)}"
        return with_form(
            compared_page(
                comparison,
                self.plan,
                title=title,
                variants=self._variants(schedule),
                is_changed=is_changed,
            ),
            PageForm(fields=fields, said=said),
        )


def _names_by_kind(placement: Placement) -> dict[BlockKind, list[str]]:
    found: dict[BlockKind, list[str]] = {}
    for block in placement.blocks:
        found.setdefault(block.kind, []).append(block.name)
    return found


def _joined(numbers: Sequence[int], shown: Callable[[int], str] = str) -> str:
    return shown(numbers[0]) if len(set(numbers)) == 1 else ",".join(map(shown, numbers))


def _size(num_bytes: int) -> str:
    """Return a size that is read back as it was."""
    for unit, power in (("GiB", 30), ("MiB", 20)):
        text = f"{num_bytes / 2**power:.6g}"
        if float(text) >= 1 and float(text) * 2**power == num_bytes:
            return f"{text}{unit}"
    return str(num_bytes)


def _numbers(name: str, text: str, counts: tuple[int, ...], *, least: int) -> tuple[int, ...]:
    """Return the whole numbers of a field.

    Raises:
        UsageError: they are none, too small, or not as many as one of the counts.
    """
    parts = text.split(",")
    allowed = " or ".join(map(str, sorted(set(counts))))
    if len(parts) not in counts or not all(
        part.strip().isascii() and part.strip().isdigit() for part in parts
    ):
        raise UsageError(f"{name} is {text[:60]!r}; give {allowed} whole numbers, separated by commas")
    numbers = tuple(int(part) for part in parts if len(part) < 20)
    if len(numbers) < len(parts) or min(numbers) < least:
        raise UsageError(f"{name} is {text[:60]!r}; each is at least {least}, and of fewer than 20 digits")
    return numbers
