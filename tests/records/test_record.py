from __future__ import annotations

import msgspec
from hypothesis import given

from records import Match, Measurement
from records.record import measurement_digest, storable
from tests.records.strategies import items, make_measurement, make_workload


@given(items())
def test_digest_names_what_a_measurement_says(item: tuple) -> None:
    _, measurement = item
    copy = msgspec.json.decode(msgspec.json.encode(measurement), type=Measurement)
    assert measurement_digest(copy) == measurement_digest(measurement)
    other = msgspec.structs.replace(measurement, seed=measurement.seed ^ 1)
    assert measurement_digest(other) != measurement_digest(measurement)


@given(items())
def test_what_can_be_kept_is_left_as_it_is(item: tuple) -> None:
    workload, measurement = item
    assert storable(workload, measurement) == measurement


def test_digest_stays_as_it_was_when_files_were_written() -> None:
    # A change here makes every stored file look damaged: raise the schema version with it.
    workload = make_workload()
    assert measurement_digest(make_measurement(workload)) == "6d7b617498d741137781a3da5cf2af8b"


def test_matches_are_spelled_as_the_command_line_spells_them() -> None:
    assert list(Match) == ["exact", "compatible", "any"]
