"""Valid schedules pass, and each rule is named when it alone is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tessel.errors import ScheduleError
from tessel.placement import Block, Edge, Placement
from tessel.schedule import Schedule, Start
from tessel.schedule.schedule import Repetend
from tessel.shapes import vshape
from tessel.validation import BUBBLE_TOLERANCE, MAX_STEP, MAX_UNITS, check_schedule, find_violations
from tests.oracles.placement_samples import placements
from tests.oracles.schedule_rules import broken_rules, bubble_ratio, makespan, named_rules, peaks
from tests.samples.random_schedules import draw_schedule

replace = msgspec.structs.replace


def figured(schedule: Schedule, starts: Sequence[Start], **changes: object) -> Schedule:
    """Return a schedule of other starts, whose figures are those of its starts."""
    found = replace(schedule, starts=tuple(starts), lower_bound=0, **changes)
    return replace(
        found, makespan=makespan(found), bubble_ratio=bubble_ratio(found), peak_memory=peaks(found)
    )


@st.composite
def schedules(draw: st.DrawFn, *, repeats: bool | None = None, has_choice: bool | None = None) -> Schedule:
    """Return a valid schedule: in some, a part of it is repeated; in some, the limits leave no unit."""
    placement = draw(placements(has_choice=has_choice))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    part = draw_schedule(placement, draw(st.integers(1, 2)), rng)
    repeats = draw(st.booleans()) if repeats is None else repeats
    period = part.makespan + draw(st.integers(0, 1))
    times = draw(st.integers(2, 3)) if repeats and period else 1
    starts = [
        Start(each.block, each.micro_batch + time * part.micro_batches, each.start + time * period)
        for time in range(times)
        for each in part.starts
    ]
    found = figured(part, starts, micro_batches=part.micro_batches * times)
    # A block without span may start where the part ends, which is where it is repeated.
    first = max(0, 1 + max(each.start for each in part.starts) - period)
    if times > 1 and found.makespan >= first + period:
        begin = draw(st.integers(first, found.makespan - period))
        repetend = Repetend(
            period=period,
            micro_batches=part.micro_batches,
            lower_bound=draw(st.integers(0, period)),
            optimal=False,
            start=begin,
            end=draw(st.integers(begin + period, found.makespan)),
        )
        found = replace(found, repetend=repetend)
    room = draw(st.none() | st.integers(0, 1))
    limits = None if room is None else tuple(peak + room for peak in found.peak_memory)
    return replace(found, memory=limits, lower_bound=draw(st.integers(0, found.makespan)))


@settings(max_examples=150)
@given(schedule=schedules(), rounding=st.floats(-0.9, 0.9))
def test_valid_schedules_pass(schedule: Schedule, rounding: float) -> None:
    assert find_violations(schedule) == ()
    rounded = schedule.bubble_ratio + rounding * BUBBLE_TOLERANCE
    check_schedule(replace(schedule, bubble_ratio=rounded))


@settings(max_examples=200)
@given(schedule=schedules(), data=st.data())
def test_a_schedule_of_any_starts_breaks_what_the_definitions_say(
    schedule: Schedule, data: st.DataObject
) -> None:
    moves = st.integers(-2, 2) | st.just(0)
    starts = [
        Start(each.block, each.micro_batch, max(0, each.start + data.draw(moves))) for each in schedule.starts
    ]
    found = figured(schedule, starts)
    assert named_rules(find_violations(found)) == broken_rules(found)


Break = Callable[[Schedule, st.DataObject], Schedule]


def changed_start(**fields: st.SearchStrategy[object]) -> Break:
    def change(schedule: Schedule, data: st.DataObject) -> Schedule:
        at = data.draw(st.integers(0, len(schedule.starts) - 1))
        starts = list(schedule.starts)
        starts[at] = replace(starts[at], **{name: data.draw(values) for name, values in fields.items()})
        return replace(schedule, starts=tuple(starts))

    return change


def changed(name: str, change: Callable[[Schedule], object]) -> Break:
    return lambda schedule, data: replace(schedule, **{name: change(schedule)})


def one_micro_batch_too_many(schedule: Schedule, data: st.DataObject) -> Schedule:
    return changed_start(micro_batch=st.sampled_from([-1, schedule.micro_batches]))(schedule, data)


def one_start_too_few(schedule: Schedule, data: st.DataObject) -> Schedule:
    placement = schedule.placement
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    fewest = (len(placement.blocks) - len(optional) + len(placement.choices)) * schedule.micro_batches
    return replace(schedule, starts=schedule.starts[: fewest - 1])


def another_start(schedule: Schedule, data: st.DataObject) -> Schedule:
    name = data.draw(st.sampled_from([block.name for block in schedule.placement.blocks]))
    micro_batch = data.draw(st.integers(0, schedule.micro_batches - 1))
    step = data.draw(st.integers(0, schedule.makespan + 3))
    return figured(schedule, (*schedule.starts, Start(name, micro_batch, step)))


def no_start(schedule: Schedule, data: st.DataObject) -> Schedule:
    at = data.draw(st.integers(0, len(schedule.starts) - 1))
    return figured(schedule, schedule.starts[:at] + schedule.starts[at + 1 :])


def another_step(schedule: Schedule, data: st.DataObject) -> Schedule:
    at = data.draw(st.integers(0, len(schedule.starts) - 1))
    starts = list(schedule.starts)
    step = max(0, starts[at].start + data.draw(st.sampled_from([-1, 1, -2, 2])))
    starts[at] = replace(starts[at], start=step)
    return figured(schedule, starts)


def no_room_for_one_unit(schedule: Schedule, data: st.DataObject) -> Schedule:
    limits = list(schedule.peak_memory)
    limits[data.draw(st.integers(0, len(limits) - 1))] -= 1
    return replace(schedule, memory=tuple(limits))


def another_repetend(**moves: int) -> Break:
    def change(schedule: Schedule, data: st.DataObject) -> Schedule:
        assume(schedule.repetend is not None)
        name = data.draw(st.sampled_from(sorted(moves)))
        repetend = replace(schedule.repetend, **{name: getattr(schedule.repetend, name) + moves[name]})
        return replace(schedule, repetend=repetend)

    return change


def impossible_repetend(schedule: Schedule, data: st.DataObject) -> Schedule:
    repetend = schedule.repetend
    assume(repetend is not None)
    wrong = {
        "period": [0, repetend.end - repetend.start + 1],
        "micro_batches": [0],
        "lower_bound": [repetend.period + 1],
        "start": [-1, repetend.end - repetend.period + 1],
        "end": [schedule.makespan + 1, repetend.start + repetend.period - 1],
    }
    name = data.draw(st.sampled_from(sorted(wrong)))
    number = data.draw(st.sampled_from(wrong[name]))
    return replace(schedule, repetend=replace(repetend, **{name: number}))


BREAKS: dict[str, Break] = {
    "number of micro-batches": lambda schedule, data: replace(schedule, micro_batches=0, starts=()),
    "number of limits": changed("memory", lambda schedule: (*schedule.peak_memory, 99)),
    "size of limits": lambda schedule, data: replace(
        schedule, memory=(data.draw(st.sampled_from([-1, 1])) * (MAX_UNITS + 1),) * schedule.placement.devices
    ),
    "number of starts": one_start_too_few,
    "known blocks": changed_start(block=st.just("nobody")),
    "known micro-batches": one_micro_batch_too_many,
    "first step": changed_start(start=st.just(-1)),
    "last step": changed_start(start=st.just(MAX_STEP + 1)),
    "starts once": another_start,
    "starts": no_start,
    "one option": lambda schedule, data: data.draw(st.sampled_from([another_start, no_start]))(
        schedule, data
    ),
    "one at a time": another_step,
    "edges": another_step,
    "peak": changed("peak_memory", lambda schedule: (schedule.peak_memory[0] + 1, *schedule.peak_memory[1:])),
    "limits": no_room_for_one_unit,
    "makespan": changed("makespan", lambda schedule: schedule.makespan + 1),
    "lower bound": changed("lower_bound", lambda schedule: schedule.makespan + 1),
    "bubble ratio": lambda schedule, data: replace(
        schedule, bubble_ratio=schedule.bubble_ratio + data.draw(st.sampled_from([-2, 2])) * BUBBLE_TOLERANCE
    ),
    "repetend's figures": impossible_repetend,
    "repetition": another_step,
    "starts in a period": another_repetend(micro_batches=1, period=-1),
}
MALFORMED = list(BREAKS)[: list(BREAKS).index("last step") + 1]
FALSE = ("peak", "makespan", "lower bound", "bubble ratio")


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_is_named_alone(rule: str) -> None:
    repeats = True if rule in ("repetend's figures", "repetition", "starts in a period") else None
    has_choice = True if rule in ("starts", "one option") else None

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(schedule=schedules(repeats=repeats, has_choice=has_choice), data=st.data())
    def check(schedule: Schedule, data: st.DataObject) -> None:
        broken = BREAKS[rule](schedule, data)
        if rule not in MALFORMED and rule not in FALSE:
            assume(broken_rules(broken) == {rule})
        violations = find_violations(broken)
        assert named_rules(violations) == {rule}
        assert rule != "repetend's figures" or "cannot be" in " ".join(violations)
        with pytest.raises(ScheduleError, match="invalid"):
            check_schedule(broken)

    check()


def test_the_largest_numbers_are_allowed() -> None:
    placement = Placement(devices=1, blocks=(Block(name="f", devices=(0,), span=2),))
    found = Schedule.of(placement, {(0, 0): MAX_STEP}, micro_batches=1, memory=(MAX_UNITS,))
    assert find_violations(found) == ()


def test_a_hand_worked_overlap_names_both_blocks() -> None:
    placement = vshape(1)
    schedule = Schedule.of(placement, {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 4}, micro_batches=2)
    (violation,) = [line for line in find_violations(schedule) if "device 0" in line]
    assert violation == "b0 of micro-batch 0 and f0 of micro-batch 1 overlap on device 0 at step 2"


@pytest.mark.parametrize(("lag", "words"), [(0, "f ends at 2"), (3, "f ends at 2 and its lag is 3")])
def test_an_edge_names_its_lag(lag: int, words: str) -> None:
    blocks = (Block(name="f", devices=(0,), span=2), Block(name="b", devices=(1,)))
    placement = Placement(devices=2, blocks=blocks, edges=(Edge("f", "b", lag),))
    schedule = Schedule.of(placement, {(0, 0): 0, (1, 0): 1 + lag}, micro_batches=1)
    expected = f"b of micro-batch 0 starts at step {1 + lag}, but {words}"
    assert find_violations(schedule) == (expected,)


def test_no_more_than_three_violations_are_said() -> None:
    schedule = Schedule.of(vshape(1), {(0, 0): 0, (1, 0): 1}, micro_batches=1)
    wrong = replace(schedule, makespan=9, bubble_ratio=0.5, peak_memory=(7,))
    with pytest.raises(ScheduleError, match=r"bubble_ratio 0.500000, its starts give 0.000000; make"):
        check_schedule(wrong)
    with pytest.raises(ScheduleError, match=r"\(and 1 more\)"):
        check_schedule(replace(wrong, lower_bound=8))
