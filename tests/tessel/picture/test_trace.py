"""Traces keep the rules of the Trace Event Format, which viewers do not say they were broken.

Rules, after the Chromium project's document: every event has a phase, a process and a thread; complete events
have a duration >= 0 and lie inside or beside each other on their thread; a flow is one `s` and one `f` of the
same id, category and name, each in a slice of its thread, the start not after the end; counters are numbers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import draw_schedule as random_schedule

from tessel.picture.bars import bars_of, memory_curves
from tessel.picture.trace import MeasuredSlice, trace_document
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.shapes import make_shape

Event = dict[str, Any]
EPSILON_US = 1e-6

PLACEMENTS = {
    "vshape": make_shape("vshape", 3),
    "split, with hops": make_shape("vshape", 3, split_backward=True, lag=2),
    "either backward": make_shape("vshape", 2, choose_backward=True),
    "tensor-parallel": make_shape("mshape", 3),
    "two chunks": make_shape("zbv", 2, split_backward=True),
}


def events_of(schedule: Schedule, **arguments: Any) -> list[Event]:
    document = json.loads(trace_document(schedule, **arguments))
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = document["traceEvents"]
    return events


def schedule_of(placement: Placement, micro_batches: int, seed: int) -> Schedule:
    return random_schedule(placement, micro_batches, np.random.default_rng(seed))


def check_rules(events: list[Event]) -> None:
    slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    flows: dict[tuple[str, str, Any], dict[str, Event]] = defaultdict(dict)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for event in events:
        assert event["ph"] in "MXCsf"
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        elif event["ph"] in "sf":
            key = (event["cat"], event["name"], event["id"])
            assert event["ph"] not in flows[key], "a flow has one start and one end"
            flows[key][event["ph"]] = event
    assert slices.keys() <= named
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    for own in slices.values():
        for before, after in pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"] + EPSILON_US
    for flow in flows.values():
        assert flow.keys() == {"s", "f"}
        assert flow["s"]["ts"] <= flow["f"]["ts"] + EPSILON_US
        assert flow["f"]["bp"] == "e"  # binds to the slice that encloses it, not to the next
        for end in flow.values():
            assert any(
                piece["ts"] - EPSILON_US <= end["ts"] <= piece["ts"] + piece["dur"] + EPSILON_US
                for piece in slices[end["pid"], end["tid"]]
            )


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@settings(max_examples=8, deadline=None)
@given(micro_batches=st.integers(1, 4), seed=st.integers(0, 99), step_us=st.sampled_from([0.1, 1.0, 5.0]))
def test_traces_keep_the_format_s_rules(
    placement: Placement, micro_batches: int, seed: int, step_us: float
) -> None:
    schedule = schedule_of(placement, micro_batches, seed)
    events = events_of(schedule, step_us=step_us)

    check_rules(events)

    slices = [event for event in events if event["ph"] == "X"]
    bars = bars_of(schedule)
    assert sorted((event["tid"], event["ts"], event["dur"]) for event in slices) == sorted(
        (bar.device + 1, bar.start * step_us, (bar.end - bar.start) * step_us) for bar in bars
    )
    run = {(start.block, start.micro_batch) for start in schedule.starts}
    across = [
        edge
        for edge in placement.edges
        if placement.block(edge.source).devices != placement.block(edge.target).devices
    ]
    expected = sum(
        (edge.source, m) in run and (edge.target, m) in run for edge in across for m in range(micro_batches)
    )
    assert sum(event["ph"] == "s" for event in events) == expected


def test_counters_are_the_memory_of_each_device() -> None:
    schedule = schedule_of(PLACEMENTS["vshape"], 3, 0)
    held = defaultdict(list)
    for event in events_of(schedule, step_us=2.0):
        if event["ph"] == "C":
            held[event["name"]].append((event["ts"] / 2.0, event["args"]["held"]))
    for curve in memory_curves(schedule):
        assert held[f"memory of device {curve.device}"] == list(zip(curve.steps, curve.units, strict=True))


def test_what_really_ran_is_a_process_of_its_own_below() -> None:
    schedule = schedule_of(PLACEMENTS["vshape"], 2, 0)
    slices = [(0, "0F0", 0.0, 5.0), (1, "1F0", 6.5, 4.0), (0, "0B0", 20.0, 9.0)]
    measured = [MeasuredSlice(*each) for each in slices]
    events = events_of(schedule, measured=measured, name="net")

    check_rules(events)
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert names == {"net": 1, "net, as it ran": 2}
    threads = [event for event in events if event["name"] == "thread_name"]
    assert len({event["tid"] for event in threads}) == len(threads) == 5
    ran = [(event["name"], event["ts"]) for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert ran == [("0F0", 0.0), ("1F0", 6.5), ("0B0", 20.0)]
