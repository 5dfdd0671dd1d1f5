from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records import RecordStore, Status, open_store
from records.database.merging import import_items, is_same_store, merge_items
from tests.records.strategies import items, make_environment, make_measurement, make_workload


def test_import_counts_what_is_new(store: RecordStore) -> None:
    workload = make_workload()
    measured = [(workload, make_measurement(workload, [1.0 + index])) for index in range(2300)]
    store.append_many(measured[:100])
    summary = import_items(store, iter(measured + measured[:7]))
    assert (summary.read, summary.new, summary.known) == (2307, 2200, 107)
    assert store.stats().measurements == 2300


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.lists(items(), max_size=4), second=st.lists(items(), max_size=4))
def test_a_merge_is_the_union_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, first: list, second: list
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    with open_store(str(folder / "one.db")) as one, open_store(str(folder / "two.db")) as two:
        one.append_many(first)
        two.append_many(second)
        summary = merge_items(one, second)
        merge_items(two, first)
        digests = {record.digest for record in one.iterate()}
        assert digests == {record.digest for record in two.iterate()}
        assert summary.read == len(second)
        assert one.stats().measurements == len(digests)
        assert merge_items(one, second).new == 0


def test_contradictions_between_sources_are_reported_and_kept(store: RecordStore) -> None:
    workload, other = make_workload(8), make_workload(16)
    kept = store.append(workload, make_measurement(workload, [10.0]))
    failed = store.append(other, make_measurement(other, status=Status.ERROR, message="no"))
    summary = merge_items(
        store,
        [
            (workload, make_measurement(workload, [30.0])),
            (workload, make_measurement(workload, [11.0])),
            (workload, make_measurement(workload, [30.0], backend="blas")),
            (workload, make_measurement(workload, [30.0], environment=make_environment(num_threads=1))),
            (other, make_measurement(other, [5.0])),
            (other, make_measurement(other, status=Status.ERROR, message="still no")),
        ],
    )
    assert summary.new == 6
    assert [(conflict.kept_id, conflict.problem) for conflict in summary.conflicts] == [
        (kept, "3.00 times the latency (10 us and 30 us)"),
        (failed, "was error, and is ok where it was added from"),
    ]
    assert store.stats().measurements == 8


def test_repeats_within_one_source_are_no_conflict(store: RecordStore) -> None:
    workload = make_workload()
    repeats = [(workload, make_measurement(workload, [10.0**power])) for power in range(4)]
    assert merge_items(store, repeats).conflicts == ()


def test_a_tolerance_that_makes_noise_a_conflict_is_refused(store: RecordStore) -> None:
    for tolerance in (1.0, 0.5, float("nan")):
        with pytest.raises(ValueError, match="tolerance"):
            merge_items(store, [], tolerance=tolerance)


def test_the_same_file_by_another_name_is_the_same_store(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with (
        open_store(str(path)) as one,
        open_store(f"sqlite:///{tmp_path}/./records.db") as two,
        open_store(str(tmp_path / "other.db")) as other,
    ):
        assert is_same_store(one, two)
        assert not is_same_store(one, other)
