"""Documents come back as they were written, appear whole, and are refused by name."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.documents import DocumentKind, detect_kind, load_placement, load_schedule, save_document
from tessel.errors import DocumentError, ScheduleError
from tessel.handwritten.construction.greedy import read_flow, run_greedily
from tessel.schedule import Schedule
from tessel.search import find_schedule
from tessel.shapes import SHAPES, make_shape, vshape


def schedule_of(name: str, micro_batches: int = 3) -> Schedule:
    placement = make_shape(name, 4)
    flow = read_flow(placement)
    return Schedule.of(
        placement,
        run_greedily(flow, micro_batches=micro_batches, in_flight=flow.depth),
        micro_batches=micro_batches,
        found_by="test",
    )


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_schedules_and_placements_round_trip(name: str, tmp_path: Path) -> None:
    schedule = schedule_of(name)
    save_document(tmp_path / "schedule.json", schedule.to_json())
    assert load_schedule(tmp_path / "schedule.json") == schedule
    assert detect_kind(tmp_path / "schedule.json") is DocumentKind.SCHEDULE
    document = json.loads((tmp_path / "schedule.json").read_text())
    (tmp_path / "placement.json").write_text(json.dumps(document["placement"]))
    assert load_placement(tmp_path / "placement.json") == schedule.placement
    assert detect_kind(tmp_path / "placement.json") is DocumentKind.PLACEMENT


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_a_valid_schedule(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    text = bytearray(schedule_of("vshape").to_json())
    text[position % len(text)] = byte
    path = tmp_path_factory.mktemp("fuzz") / "schedule.json"
    path.write_bytes(text)
    # Any other exception fails the test.
    with contextlib.suppress(DocumentError, ScheduleError):
        load_schedule(path)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(DocumentError):
        save_document(tmp_path / "missing" / "file.json", b"{}")
    path = tmp_path / "schedule.json"
    path.write_bytes(b"before")
    save_document(path, vshape(2).devices.to_bytes(1, "big"))
    assert path.read_bytes() == b"\x02"
    assert os.listdir(tmp_path) == ["schedule.json"]


PLACEMENT = (
    '{{"schema_version":1,"devices":{devices},'
    '"blocks":[{{"name":{name},"kind":"forward","devices":[0],"span":1,"memory":{memory}}}]}}'
)


@pytest.mark.parametrize("found_by", ["a\x1b[2J", "\x00", "z" * 100_000])
def test_schedule_found_by_what_cannot_be_printed_is_refused(found_by: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    document = msgspec.json.decode(find_schedule(vshape(2), micro_batches=1).to_json())
    path.write_bytes(msgspec.json.encode({**document, "found_by": found_by}))
    with pytest.raises(DocumentError, match="found_by name") as refused:
        load_schedule(path)
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("devices", "name", "memory", "message"),
    [
        (10**9, '"f0"', 0, "65536 are the most"),
        (1, '"f0\\u001b[2J"', 0, "cannot be printed"),
        (1, '"f0\\nf1"', 0, "cannot be printed"),
        (1, f'"{"f" * 100_000}"', 0, "100000 characters"),
        (1, '"f0"', 10**15, "has memory"),
        (1, '"f0"', -(10**15), "has memory"),
    ],
)
def test_placement_that_claims_too_much_is_refused_in_a_short_line(
    devices: int, name: str, memory: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "placement.json"
    path.write_text(PLACEMENT.format(devices=devices, name=name, memory=memory))
    with pytest.raises(DocumentError, match=message) as refused:
        load_placement(path)
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batches": 10**9}, "1000000000 micro-batches"),
        ({"starts": [{"block": "f0", "micro_batch": 0, "start": 10**18}]}, "after step"),
        ({"memory": [10**30]}, "out of range|memory limit"),
        ({"x" * 100_000: 1}, "unknown field"),
    ],
)
def test_schedule_that_claims_too_much_is_refused_at_once(change: dict, message: str, tmp_path: Path) -> None:
    block = {"name": "f0", "kind": "forward", "devices": [0], "span": 1, "memory": 0}
    document = {
        "schema_version": 1,
        "placement": {"schema_version": 1, "devices": 1, "blocks": [block], "edges": []},
        "micro_batches": 1,
        "memory": None,
        "starts": [{"block": "f0", "micro_batch": 0, "start": 0}],
        "makespan": 1,
        "lower_bound": 1,
        "optimal": True,
        "bubble_ratio": 0.0,
        "peak_memory": [0],
        "repetend": None,
    }
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(document))
    load_schedule(path)
    path.write_text(json.dumps(document | change))
    with pytest.raises(DocumentError, match=message) as refused:
        load_schedule(path)
    assert len(str(refused.value)) < 1000
