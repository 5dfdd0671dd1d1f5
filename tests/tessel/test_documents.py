"""Documents come back as they were written, appear whole, and are refused by name."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.documents import DocumentKind, detect_kind, load_placement, load_schedule, save_document
from tessel.errors import DocumentError, ScheduleError
from tessel.handwritten.greedy import read_flow, run_greedily
from tessel.schedule import Schedule
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
