"""Changes to what runs today, each tried by running the whole step again, and what each of them saves.

A change keeps everything else: layers move while the order stays, the order changes while the cuts stay. So
what is said of one change holds for it alone; two of them together save less, or more. Tried are:

- one layer more for a neighbouring stage, at every cut;
- another order on the same stages: the hand-written ones and one that is searched;
- split backwards, where the profile has both halves;
- recomputation, where memory is short, and less of it where there is room;
- other micro-batch sizes of the same global batch, where the profile has them;
- other sizes of Megatron's groups.

Work is counted in tasks, so that equal calls give equal advice; cuts between unequal stages are tried first.
Checked in tests/tessel/checking/test_assessment.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from tessel.checking.case import (
    Case,
    Simulated,
    case_of_layout,
    orders_of_schedule,
    simulate,
    simulated,
    with_cuts,
    with_layout,
)
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.handwritten.strongest import build_strongest
from tessel.placement import Placement
from tessel.planning.layout import Layout
from tessel.schedule import Schedule

MAX_SIMULATED_TASKS = 1_500_000
"""Tasks that moves of layers may run in all, some seconds; the least promising cuts are left out beyond."""

MAX_RULE_TASKS = 100_000
"""Tasks of a schedule above which hand-written orders are not built one after the other."""

WORTH_NAMING = 5e-4
"""Part of the step that a change has to save to be named: less is rounding of spans to whole steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change and what it gives.

    Attributes:
        change: what to do, in words.
        kind: `move`, `order`, `split`, `recompute`, `keep`, `micro-batch` or `groups`.
        saves: microseconds, or steps where a step has no length; negative where the change only makes it fit.
        saves_ratio: the same as part of the step.
        fits: whether it keeps the memory limit.
        after: what becomes of it.
        case: the changed case.
    """

    change: str
    kind: str
    saves: float
    saves_ratio: float
    fits: bool
    after: Simulated
    case: Case


Search = Callable[[Placement, int, tuple[int, ...] | None, Schedule | None], Schedule | None]
"""Searches a schedule of a placement, micro-batches and limits, from one that fits on; None where it finds
none."""


def find_advice(
    case: Case, before: Simulated, orders: Sequence[Schedule], *, search: Search | None = None
) -> tuple[Advice, ...]:
    """Return the changes that save something or make the case fit, the one worth most first.

    Args:
        case: what runs today; it does not deadlock.
        before: what became of it.
        orders: other schedules of the same blocks; see `best_orders`.
        search: looks for orders of changed cases beside the hand-written ones; None to leave that out.
    """
    found: list[Advice] = []
    changes = chain(
        _changes_of_layers(case, before, search),
        _changes_of_order(case, orders, search) if case.is_order_free else (),
        (("groups", change, replace(case, orders=other), None) for change, other in case.other_orders),
    )
    for kind, change, changed, schedule in changes:
        try:
            after = simulate(changed) if schedule is None else simulated(changed, schedule)
        except ScheduleError:
            continue  # the change is impossible, such as weights that exceed the memory
        advice = _advice(kind, change, changed, before, after)
        if advice is not None:
            found.append(advice)
    return tuple(sorted(_best_of_each_kind(found), key=_worth))


def _worth(advice: Advice) -> tuple[bool, float]:
    return (not advice.fits, -advice.saves)


def _advice(kind: str, change: str, case: Case, before: Simulated, after: Simulated) -> Advice | None:
    saves = before.length - after.length
    ratio = saves / before.length if before.length else 0.0
    is_remedy = after.fits and not before.fits
    if not is_remedy and (ratio < WORTH_NAMING or (before.fits and not after.fits)):
        return None
    return Advice(
        change=change, kind=kind, saves=saves, saves_ratio=ratio, fits=after.fits, after=after, case=case
    )


def _best_of_each_kind(found: Sequence[Advice]) -> Iterator[Advice]:
    """Yield all moves of layers, and of every other kind the best: two orders are no two changes."""
    best: dict[str, Advice] = {}
    for advice in found:
        if advice.kind == "move":
            yield advice
        elif advice.kind not in best or _worth(advice) < _worth(best[advice.kind]):
            best[advice.kind] = advice
    yield from best.values()


_Change = tuple[str, str, Case, Schedule | None]
"""Kind, words, the changed case, and its schedule where that is known already."""


def _changes_of_layers(case: Case, before: Simulated, search: Search | None) -> Iterator[_Change]:
    if case.priced is not None:
        yield from _moves(case)
        yield from _recomputations(case, before)
        yield from _micro_batch_sizes(case, search)


def _changes_of_order(case: Case, orders: Sequence[Schedule], search: Search | None) -> Iterator[_Change]:
    yield from _ordered_as(case, "order", "run the order {}", orders)
    split = _split(case)
    if split is not None:
        yield from _ordered_as(
            split, "split", "split the backward and run the order {}", best_orders(split, search)
        )


def _moves(case: Case) -> Iterator[_Change]:
    priced = case.priced
    assert priced is not None
    cuts = priced.layout.cuts
    names = [layer.name for layer in priced.profile.layers]
    moves = [
        (source, target)
        for stage in range(len(cuts) - 1)
        for source, target in ((stage, stage + 1), (stage + 1, stage))
        if cuts[source][0] < cuts[source][1]
    ]
    work = [_stage_work(case, stage) for stage in range(len(cuts))]
    moves.sort(key=lambda move: (work[move[1]] - work[move[0]], move))
    for source, target in moves[: max(1, MAX_SIMULATED_TASKS // max(1, case.num_tasks))]:
        moved = cuts[source][1] if target > source else cuts[source][0]
        changed = list(cuts)
        first, last = cuts[source]
        changed[source] = (first, last - 1) if target > source else (first + 1, last)
        first, last = cuts[target]
        changed[target] = (first - 1, last) if target > source else (first, last + 1)
        words = f"move layer {names[moved]} from stage {source} to {target}"
        yield from _with(case, "move", words, with_cuts(priced.layout, changed))


def _stage_work(case: Case, stage: int) -> int:
    """Return the steps of a stage's blocks; of its cheapest backward where there are several."""
    span = {block.name: block.span for block in case.placement.blocks}
    backward = [span[f"b{stage}"]] if f"b{stage}" in span else []
    if f"b{stage}_input" in span:
        backward.append(span[f"b{stage}_input"] + span[f"b{stage}_weight"])
    return span[f"f{stage}"] + min(backward, default=0)


def _recomputations(case: Case, before: Simulated) -> Iterator[_Change]:
    """Recompute on devices that are too full; keep activations where stages recompute."""
    priced = case.priced
    assert priced is not None
    if not priced.profile.is_training:
        return
    stages = range(len(priced.layout.cuts))
    today = priced.layout.recompute or (False,) * len(stages)
    if not before.fits and case.limits is not None:
        full = {
            device
            for device, (held, room) in enumerate(zip(before.schedule.peak_memory, case.limits, strict=True))
            if held > room
        }
        wanted = tuple(today[stage] or priced.layout.device_of(stage) in full for stage in stages)
        if wanted != today:
            words = f"recompute {_stages_text([s for s in stages if wanted[s] and not today[s]])}"
            yield from _with(case, "recompute", words, _recomputing(priced.layout, wanted))
    if any(today):
        for stage in stages:
            if today[stage]:
                wanted = tuple(recomputes and other != stage for other, recomputes in enumerate(today))
                words = f"keep the activations of stage {stage} in place of recomputing them"
                yield from _with(case, "keep", words, _recomputing(priced.layout, wanted))
        words = "keep all activations in place of recomputing them"
        yield from _with(case, "keep", words, _recomputing(priced.layout, ()))


def _recomputing(layout: Layout, recompute: tuple[bool, ...]) -> Layout:
    return msgspec.structs.replace(layout, recompute=recompute)


def _micro_batch_sizes(case: Case, search: Search | None) -> Iterator[_Change]:
    """Other sizes that the profile has, with as many samples in the step."""
    priced = case.priced
    assert priced is not None
    layout = priced.layout
    samples = layout.micro_batch * layout.micro_batches
    for table in priced.profile.tables:
        size = table.micro_batch
        if table.tensor_parallel != layout.tensor_parallel or size == layout.micro_batch or samples % size:
            continue
        other = msgspec.structs.replace(layout, micro_batch=size, micro_batches=samples // size)
        today = f"{layout.micro_batches} of {layout.micro_batch}"
        words = f"use {samples // size} micro-batches of {size} in place of {today}"
        try:
            changed = case_of_layout(
                case.name,
                replace(priced, layout=other),
                (),
                micro_batches=other.micro_batches,
                make_orders=case.make_orders,
                is_order_free=case.is_order_free,
            )
        except ScheduleError:
            continue
        orders = (
            None if case.make_orders is None else case.make_orders(changed.placement, other.micro_batches)
        )
        if orders is not None:
            yield "micro-batch", words, replace(changed, orders=orders), None
        elif case.is_order_free:
            yield from _ordered_as(
                changed, "micro-batch", f"{words}, in the order {{}}", best_orders(changed, search)
            )


def _split(case: Case) -> Case | None:
    """Return the case with backwards in halves; None where orders split them, or halves are not known."""
    priced = case.priced
    if priced is None or priced.layout.split_backward:
        return None
    if not all(cost.is_splittable for table in priced.profile.tables for cost in table.costs):
        return None
    try:
        return with_layout(case, msgspec.structs.replace(priced.layout, split_backward=True))
    except ScheduleError:
        return None


def _ordered_as(case: Case, kind: str, words: str, orders: Sequence[Schedule]) -> Iterator[_Change]:
    for schedule in orders:
        yield kind, words.format(f"of {schedule.found_by}"), _ordered(case, schedule), schedule


def best_orders(case: Case, search: Search | None) -> tuple[Schedule, ...]:
    """Return the shortest hand-written schedule that fits, and what is searched from there on."""
    if case.limits is not None and min(case.limits) < 0:
        return ()
    by_hand = shortest_by_hand(case)
    found = None if search is None else search(case.placement, case.micro_batches, case.limits, by_hand)
    schedules = [schedule for schedule in (by_hand, found) if schedule is not None]
    if len(schedules) == 2 and schedules[1].makespan >= schedules[0].makespan:
        # The search proves more about the same order.
        return (replace_bound(schedules[0], schedules[1]),)
    return tuple(schedules)


def replace_bound(schedule: Schedule, proven: Schedule) -> Schedule:
    """Return a schedule with the bound that is known of another one of the same blocks."""
    return msgspec.structs.replace(
        schedule, lower_bound=proven.lower_bound, optimal=proven.lower_bound == schedule.makespan
    )


def _ordered(case: Case, schedule: Schedule) -> Case:
    return replace(case, orders=orders_of_schedule(schedule))


def shortest_by_hand(case: Case) -> Schedule | None:
    """Return the shortest hand-written schedule of the stages that keeps the limits; None without one."""
    if len(case.placement.blocks) * case.micro_batches > MAX_RULE_TASKS:
        return None
    best: Schedule | None = None
    for rule in HANDWRITTEN:
        if rule.needs_limit and case.limits is None:
            continue
        if rule.why_not(case.placement, case.micro_batches, case.limits) is not None:
            continue
        built = build_strongest(rule, case.placement, micro_batches=case.micro_batches, memory=case.limits)
        if best is None or built.makespan < best.makespan:
            best = built
    return best


def _with(case: Case, kind: str, words: str, layout: Layout) -> Iterator[_Change]:
    """Yield the case of another layout, where the profile can price it."""
    try:
        yield kind, words, with_layout(case, layout), None
    except ScheduleError:
        return


def _stages_text(stages: Sequence[int]) -> str:
    return f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
