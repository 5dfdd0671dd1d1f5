"""Tables with a length or a class: read, written, interpolated, combined, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel.errors import DocumentError, ScheduleError
from tessel.profiles import Profile, load_profile, save_table
from tessel.profiles.classes import class_profile, least_profile, mean_profile

HEADER = "layer,length,forward_ms,backward_ms,weights_mib,saved_mib,boundary_mib\n"
ROWS = "a,1000,4,8,10,1,2\nb,1000,2,2,10,1,2\na,3000,24,48,10,3,6\nb,3000,6,6,10,3,6\n"


def read(tmp_path: Path, text: str) -> Profile:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return load_profile(path)


def test_lengths_are_read_written_and_interpolated_by_layer(tmp_path: Path) -> None:
    profile = read(tmp_path, HEADER + ROWS)
    assert profile.classes == (1000, 3000)
    between = class_profile(profile, 2000).costs(micro_batch=1)
    # a is 2 ms a thousand and 2 ms a million, b 2 ms a thousand alone.
    assert between[0].forward_us == pytest.approx(12_000)
    assert between[1].forward_us == pytest.approx(4_000)
    assert between[0].saved_bytes == 2 << 20
    assert between[0].weight_bytes == 10 << 20
    for name in ("again.csv", "again.json"):
        save_table(profile, tmp_path / name)
        assert load_profile(tmp_path / name).tables == profile.tables
    own = [class_profile(profile, length) for length in (1000, 3000)]
    mean, least = (each.costs(micro_batch=1)[0] for each in (mean_profile(own, (3, 1)), least_profile(own)))
    assert (mean.forward_us, mean.saved_bytes) == (9_000, 3 << 20)
    assert (least.forward_us, least.saved_bytes) == (4_000, 1 << 20)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + ROWS.replace("b,3000,6,6,10,3,6\n", ""), "ends after 1 layers"),
        (HEADER + ROWS.replace("a,3000", "a,"), "length is blank"),
        (HEADER + ROWS.replace("a,3000", "a,0.5"), "whole number"),
        (HEADER + ROWS + "a,3000,1,1,1,1,1\n", "stands already in row 4"),
        (HEADER.replace("layer,", "layer,class,") + "a,x,1000,4,8,10,1,2\n", "keep one of the columns"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        read(tmp_path, text)


def test_classes_are_not_taken_for_one_kind(tmp_path: Path) -> None:
    profile = read(tmp_path, HEADER + ROWS)
    with pytest.raises(ScheduleError, match="one kind is asked for"):
        profile.costs(micro_batch=1)
    named = read(tmp_path, (HEADER + ROWS).replace("length", "class"))
    with pytest.raises(ScheduleError, match="there is no class 2000"):
        class_profile(named, 2000)
    heavier = read(tmp_path, HEADER + ROWS.replace("b,3000,6,6,10", "b,3000,6,6,11"))
    with pytest.raises(ScheduleError, match="weights are one model's"):
        mean_profile([class_profile(heavier, each) for each in heavier.classes], (1, 1))
