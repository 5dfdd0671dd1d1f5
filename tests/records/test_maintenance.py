from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records import Measurement, RecordStore, Status, open_store
from records.maintenance import import_items, is_same_store, merge_items, prune
from tests.records.strategies import items, make_environment, make_measurement, make_workload


def contents(store: RecordStore) -> list[Measurement]:
    return [record.measurement for record in store.iterate()]


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


def fill_for_prune(store: RecordStore) -> None:
    """Two keys: one of ten successes of which the third is fastest, one of three failures."""
    workload, failing = make_workload(8), make_workload(16)
    latencies = [9.0, 8.0, 1.0, 7.0, 6.0, 5.0, 9.0, 8.0, 7.0, 6.0]
    store.append_many(
        (workload, make_measurement(workload, [latency], measured_at=float(index)))
        for index, latency in enumerate(latencies)
    )
    store.append_many(
        (failing, make_measurement(failing, status=Status.ERROR, message="no", measured_at=float(index)))
        for index in range(3)
    )


def test_prune_counts_first_and_removes_when_told(store: RecordStore) -> None:
    fill_for_prune(store)
    before = contents(store)
    plan = prune(store, keep_newest=2)
    assert (plan.removed, plan.kept, plan.applied) == (8, 5, False)
    assert contents(store) == before
    done = prune(store, keep_newest=2, apply=True)
    assert (done.removed, done.kept, done.applied) == (8, 5, True)
    assert [record.record_id for record in store.iterate()] == [3, 9, 10, 12, 13]
    assert prune(store, keep_newest=2).removed == 0
    assert store.verify() == []


def test_prune_keeps_keys_apart(store: RecordStore) -> None:
    workload = make_workload()
    store.append_many(
        (
            workload,
            make_measurement(workload, backend=backend, target=target, settings=setting, environment=place),
        )
        for backend in ("tvm", "blas")
        for target in ("llvm", "cuda")
        for setting in ("", "trials=8")
        for place in (make_environment(), make_environment(num_threads=1))
    )
    assert prune(store, keep_newest=1, apply=True).removed == 0
    assert store.stats().measurements == 16


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    measured=st.lists(
        st.tuples(st.integers(0, 2), st.floats(1, 100) | st.none(), st.integers(0, 5)), max_size=25
    ),
    keep=st.integers(1, 4),
)
def test_pruning_changes_neither_the_best_nor_the_latest(
    tmp_path_factory: pytest.TempPathFactory, measured: list, keep: int
) -> None:
    workloads = [make_workload(rows) for rows in (8, 16, 32)]
    found_by = {"backend": "tvm", "target": "llvm", "environment": make_environment()}
    with open_store(str(tmp_path_factory.mktemp("prune") / "records.db")) as store:
        for index, latency, measured_at in measured:
            status = Status.OK if latency else Status.TIMEOUT
            store.append(
                workloads[index],
                make_measurement(workloads[index], [latency], status=status, measured_at=float(measured_at)),
            )
        best = store.best()
        latest = [store.find(workload.fingerprint, **found_by)[-keep:] for workload in workloads]
        prune(store, keep_newest=keep, apply=True)
        assert store.best() == best
        after = [store.find(workload.fingerprint, **found_by) for workload in workloads]
        assert [found[-keep:] for found in after] == latest
        assert all(len(found) <= keep + 1 for found in after)


def test_pruned_ids_and_unused_workloads_do_not_come_back(store: RecordStore) -> None:
    fill_for_prune(store)
    prune(store, keep_newest=1, apply=True)
    workload = make_workload(64)
    assert store.append(workload, make_measurement(workload)) > 13
    assert store.stats().workloads == 3


def test_prune_gives_space_back(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    workload = make_workload()
    with open_store(str(path)) as store:
        store.append_many((workload, make_measurement(workload, [1.0 + index])) for index in range(3000))
    before = path.stat().st_size
    with open_store(str(path)) as store:
        prune(store, keep_newest=1, apply=True)
    assert path.stat().st_size < before / 4


def test_prune_keeps_at_least_one(store: RecordStore) -> None:
    with pytest.raises(ValueError, match="keep at least the newest"):
        prune(store, keep_newest=0)


def test_the_same_file_by_another_name_is_the_same_store(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with (
        open_store(str(path)) as one,
        open_store(f"sqlite:///{tmp_path}/./records.db") as two,
        open_store(str(tmp_path / "other.db")) as other,
    ):
        assert is_same_store(one, two)
        assert not is_same_store(one, other)
