from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records import Measurement, RecordStore, Status, open_store
from records.database.pruning import prune
from tests.records.strategies import make_environment, make_measurement, make_workload


def contents(store: RecordStore) -> list[Measurement]:
    return [record.measurement for record in store.iterate()]


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


def test_of_no_records_none_is_kept(store: RecordStore) -> None:
    done = prune(store, keep_newest=1, apply=True)
    assert (done.removed, done.kept) == (0, 0)


def test_prune_keeps_keys_apart(store: RecordStore) -> None:
    # Three of each: of keys that are taken for one, the fastest, the newest and no other would be kept.
    same = make_workload()
    differing: dict[str, list] = {
        "backend": ["tvm", "blas", "mix"],
        "target": ["llvm", "cuda", "rocm"],
        "settings": ["", "trials=8", "trials=64"],
        "environment": [make_environment(num_threads=number) for number in (1, 3, 4)],
    }
    items = [(same, make_measurement(same, **{name: each})) for name in differing for each in differing[name]]
    items += [(workload, make_measurement(workload)) for workload in map(make_workload, (16, 32, 64))]
    store.append_many(items)
    before = store.stats().measurements
    assert prune(store, keep_newest=1, apply=True).removed == 0
    assert store.stats().measurements == before == 13


def test_a_prune_keeps_the_oldest_of_equally_fast_ones_and_takes_a_future_date_for_the_oldest(
    url: str,
) -> None:
    workload = make_workload()
    with open_store(url, clock=lambda: 100.0) as store:
        ids = [
            store.append(workload, make_measurement(workload, [latency], measured_at=date, seed=number))
            for number, (latency, date) in enumerate(
                [(2.0, 50.0), (1.0, 10.0), (1.0, 20.0), (3.0, 100.0), (3.0, 101.0), (3.0, 100.0)]
            )
        ]
        prune(store, keep_newest=2, apply=True)
        assert [record.record_id for record in store.iterate()] == [ids[1], ids[3], ids[5]]
        prune(store, keep_newest=1, apply=True)
        assert [record.record_id for record in store.iterate()] == [ids[1], ids[5]]
        assert store.verify() == []


def test_a_date_in_the_future_is_older_than_the_oldest_date(url: str) -> None:
    workload = make_workload()
    with open_store(url, clock=lambda: 100.0) as store:
        for latency, date in ((1.0, -5.0), (2.0, 0.0), (3.0, 101.0)):
            store.append(workload, make_measurement(workload, [latency], measured_at=date))
        prune(store, keep_newest=1, apply=True)
        assert [measurement.measured_at for measurement in contents(store)] == [-5.0, 0.0]


def test_a_prune_removes_what_no_record_refers_to_any_more(store: RecordStore) -> None:
    workload, other = make_workload(), make_workload(16)
    kept = make_measurement(other, target="cuda", environment=make_environment(num_threads=7))
    store.append_many([(other, kept), (workload, make_measurement(workload, [1.0]))])
    store.append(workload, make_measurement(workload, [2.0], measured_at=1.0))
    store.append(workload, make_measurement(workload, [3.0], measured_at=2.0))
    assert prune(store, keep_newest=1, apply=True).removed == 1
    tables = ("workloads", "environments", "targets")

    def rows(connection: sa.Connection) -> list[int]:
        return [connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) for table in tables]

    assert store.in_transaction(rows) == [2, 2, 2]
    by_hand = sa.text("DELETE FROM measurements WHERE id = 1")
    store.in_transaction(lambda connection: connection.execute(by_hand), writes=True)
    prune(store, keep_newest=1, apply=True)
    assert store.in_transaction(rows) == [1, 1, 1]


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
