"""The contract of a store, kept by SQLite and PostgreSQL alike."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records import Match, Record, RecordError, RecordStore, Status, Tensor, open_store
from records.database import store as store_module
from records.database.counts import Stats, count_records
from records.database.migration import prepare_schema
from records.database.pruning import prune
from tests.records.strategies import items, make_environment, make_measurement, make_workload, texts

ROUND_TRIP = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
APPENDS = 25
FOUND_BY = {"backend": "tvm", "target": "llvm", "environment": make_environment()}


@ROUND_TRIP
@given(items=st.lists(items(), min_size=1, max_size=4))
def test_what_is_appended_comes_back_equal(store: RecordStore, items: list) -> None:
    record_ids = store.append_many(items)
    for record_id, (workload, measurement) in zip(record_ids, items, strict=True):
        assert store.get(record_id) == Record(record_id=record_id, workload=workload, measurement=measurement)
        assert store.workload(workload.fingerprint) == workload


@ROUND_TRIP
@given(item=items(), message=st.text(st.characters()))
def test_no_measurement_is_lost_over_its_message(store: RecordStore, item: tuple, message: str) -> None:
    workload, measurement = item
    odd = type(measurement)(
        **{
            **{name: getattr(measurement, name) for name in measurement.__struct_fields__},
            "message": message + "\0\ud800",
        }
    )
    assert store.get(store.append(workload, odd)).measurement.message.endswith("\ufffd\ufffd")


def test_appending_the_same_measurement_again_returns_its_id(store: RecordStore) -> None:
    workload = make_workload()
    measurement = make_measurement(workload)
    first = store.append(workload, measurement)
    other = store.append(workload, make_measurement(workload, [11.0]))
    assert store.append_many([(workload, measurement)] * 2) == [first, first]
    assert store.stats().measurements == 2
    assert other > first


def test_many_appends_return_ids_in_order(store: RecordStore) -> None:
    workload = make_workload()
    given_items = [(workload, make_measurement(workload, [1.0 + index])) for index in range(2500)]
    record_ids = store.append_many(given_items)
    assert len(set(record_ids)) == 2500
    assert [record.record_id for record in store.iterate()] == sorted(record_ids)
    assert [store.get(record_ids[index]).measurement for index in (0, 1234, 2499)] == [
        given_items[index][1] for index in (0, 1234, 2499)
    ]


def test_appending_nothing_returns_nothing(store: RecordStore) -> None:
    assert store.append_many([]) == []


def test_a_batch_with_a_bad_item_changes_nothing(store: RecordStore) -> None:
    workload, other = make_workload(8), make_workload(16)
    with pytest.raises(ValueError, match="append each measurement with the workload that it measured"):
        store.append_many([(workload, make_measurement(workload)), (workload, make_measurement(other))])
    assert store.stats().measurements == 0


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "a\0b"},
        {"target": "\ud800"},
        {"settings": "\0"},
        {"seed": 2**63},
        {"measured_at": float("nan")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_a_database_cannot_keep_is_refused_by_name(store: RecordStore, change: dict) -> None:
    workload = make_workload()
    with pytest.raises(ValueError, match=next(iter(change))):
        store.append(workload, make_measurement(workload, **change))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([10**400, 2**63, -(2**63), math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7e308]),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**62), 2**62).map(np.int64),
    st.sampled_from(
        [np.bool_(1), np.float64(2.5), Fraction(1, 3), Decimal("1.5"), 1j, b"7", np.str_("text")]
    ),
    st.text(st.characters(), max_size=5),
    st.sampled_from(["\ud800", "a\0b", "x" * 5000, "\x1b[31m"]),
)
"""Anything that a caller may hand over by mistake."""

FIELDS = (
    "samples_us", "backend", "settings", "target", "message", "peak_memory_bytes", "relative_error",
    "measured_at", "seed", "status",
)  # fmt: skip
ENVIRONMENT_FIELDS = ("device_kind", "device_model", "num_cores", "num_threads", "driver", "versions")


@ROUND_TRIP
@given(
    name=st.sampled_from((*FIELDS, *ENVIRONMENT_FIELDS)),
    value=SCALARS,
    container=st.sampled_from([lambda v: (v,), lambda v: [v, v], lambda v: (1, v, 2.5), lambda v: v]),
)
def test_what_is_acknowledged_is_read_back_equal_whatever_its_types(
    store: RecordStore, name: str, value: object, container: Callable[[object], object]
) -> None:
    workload = make_workload()
    given_value = container(value) if name in ("samples_us", "versions") else value
    try:
        if name in ENVIRONMENT_FIELDS:
            environment = msgspec.structs.replace(make_environment(), **{name: given_value})
            odd = make_measurement(workload, environment=environment)
        else:
            odd = msgspec.structs.replace(make_measurement(workload), **{name: given_value})
    except (ValueError, TypeError):
        return  # There is no such measurement at all.
    before = store.stats().measurements
    try:
        record_id = store.append(workload, odd)
    except ValueError:
        assert store.stats().measurements == before
        return
    kept = store.get(record_id).measurement
    plain = {"samples_us": tuple(map(float, odd.samples_us))}
    for each in ("measured_at", "relative_error"):
        found = getattr(odd, each)
        plain[each] = None if found is None else float(found)  # type: ignore[assignment]
    assert kept == msgspec.structs.replace(odd, message=kept.message, **plain)
    assert len(kept.message) == len(odd.message)
    assert store.append(workload, kept) == record_id
    assert store.verify() == []


@pytest.mark.parametrize("change", [{"samples_us": (10,)}, {"samples_us": (np.float32(1.5), np.int64(2))}])
def test_numbers_of_other_types_are_kept_as_plain_ones(store: RecordStore, change: dict) -> None:
    workload = make_workload()
    found = store.get(store.append(workload, make_measurement(workload, **change))).measurement
    assert found.samples_us == tuple(map(float, change["samples_us"]))


def test_a_workload_that_would_be_read_back_as_another_is_refused(store: RecordStore) -> None:
    sound = make_workload()
    for shape, dtype in (((8.0, 8), "f"), ((np.int64(8), 8), "f"), ((True, 8), "f"), ([8, 8], "\ud800")):
        tensor = Tensor(shape, dtype)  # type: ignore[arg-type]  # what is wrong with it
        odd = msgspec.structs.replace(sound, inputs=(tensor, *sound.inputs[1:]))
        with pytest.raises(ValueError, match="the workload cannot be kept"):
            store.append(odd, make_measurement(sound))


def test_the_closest_environment_comes_first_and_a_future_date_last(url: str) -> None:
    now = 1000.0
    workload, here = make_workload(), make_environment()
    other_version, other_threads = make_environment(tvm="0.99"), make_environment(num_threads=7)
    dated = [
        (here, 10.0, "exact"),
        (here, 20.0, "exact and newer"),
        (here, 1e9, "exact but of the future"),
        (other_version, 500.0, "compatible"),
        (other_version, 2e9, "compatible but of the future"),
        (other_threads, 999.0, "any"),
        (other_threads, 3e9, "any but of the future"),
    ]
    with open_store(url, clock=lambda: now) as store:
        ids = store.append_many(
            (workload, make_measurement(workload, environment=environment, measured_at=date))
            for environment, date, _ in dated
        )
        name_by_id = dict(zip(ids, (name for _, _, name in dated), strict=True))
        order = {
            match: [
                name_by_id[r.record_id] for r in store.find(workload.fingerprint, **FOUND_BY, match=match)
            ]
            for match in Match
        }
        many = store.find_many([workload.fingerprint], target="llvm", environment=here, match=Match.ANY)
        assert order[Match.EXACT] == ["exact but of the future", "exact", "exact and newer"]
        assert order[Match.COMPATIBLE] == ["compatible but of the future", "compatible", *order[Match.EXACT]]
        assert order[Match.ANY] == ["any but of the future", "any", *order[Match.COMPATIBLE]]
        assert [name_by_id[record.record_id] for record in many[workload.fingerprint]] == order[Match.ANY]
        prune(store, keep_newest=1, apply=True)
        left = store.find(workload.fingerprint, **FOUND_BY, match=Match.ANY)
        assert name_by_id[left[-1].record_id] == "exact and newer"


def test_find_returns_the_newest_last_and_failures_too(store: RecordStore) -> None:
    workload = make_workload()
    newest = make_measurement(workload, [3.0], measured_at=30.0)
    failure = make_measurement(workload, status=Status.TIMEOUT, measured_at=20.0, message="took 10 s")
    oldest = make_measurement(workload, [1.0], measured_at=10.0)
    store.append_many([(workload, newest), (workload, failure), (workload, oldest)])
    found = store.find(workload.fingerprint, **FOUND_BY)
    assert [record.measurement for record in found] == [oldest, failure, newest]
    assert store.find_latest(workload.fingerprint, **FOUND_BY) == found[-1]


def test_nothing_is_found_of_another_backend_settings_target_or_workload(store: RecordStore) -> None:
    workload = make_workload()
    store.append(workload, make_measurement(workload, settings="trials=64"))
    assert store.find(workload.fingerprint, **FOUND_BY) == []
    assert store.find_latest(workload.fingerprint, **FOUND_BY) is None
    same = {**FOUND_BY, "settings": "trials=64"}
    assert len(store.find(workload.fingerprint, **same)) == 1
    store.append(workload, make_measurement(workload, settings="trials=6"))
    store.append(workload, make_measurement(workload, settings="", measured_at=1.0))
    for setting in ("trials=64", "trials=6", ""):
        (found,) = store.find(workload.fingerprint, **{**FOUND_BY, "settings": setting})
        assert found.measurement.settings == setting
        assert store.find_latest(workload.fingerprint, **{**FOUND_BY, "settings": setting}) == found
    assert store.find(workload.fingerprint, **{**FOUND_BY, "settings": "trials"}) == []
    assert store.find(workload.fingerprint, **{**same, "backend": "blas"}) == []
    assert store.find(workload.fingerprint, **{**same, "target": "cuda"}, match=Match.ANY) == []
    assert store.find(make_workload(16).fingerprint, **same) == []


@pytest.mark.parametrize(
    ("environment", "matches"),
    [
        (make_environment(), {Match.EXACT, Match.COMPATIBLE, Match.ANY}),
        (make_environment(tvm="0.28"), {Match.COMPATIBLE, Match.ANY}),
        (make_environment(num_threads=4), {Match.ANY}),
        (make_environment(device_model="Another CPU"), set()),
        (make_environment(device_kind="cuda"), set()),
    ],
    ids=["same", "version", "threads", "model", "kind"],
)
def test_a_match_accepts_what_it_says_and_nothing_else(
    store: RecordStore, environment: object, matches: set
) -> None:
    workload = make_workload()
    store.append(workload, make_measurement(workload))
    asked = {**FOUND_BY, "environment": environment}
    assert {match for match in Match if store.find(workload.fingerprint, **asked, match=match)} == matches
    many = {"target": "llvm", "environment": environment}
    assert {
        match
        for match in Match
        if store.find_many([workload.fingerprint], **many, match=match)[workload.fingerprint]
    } == matches


@pytest.mark.parametrize("match", Match)
@pytest.mark.parametrize(
    ("message", "is_found"),
    [
        ("ValueError: not this shape", True),
        ("not by the program: ModuleNotFoundError: No module named 'torch'", False),
        ("the process was killed during build, most likely because the machine was short of memory", False),
    ],
)
def test_a_failure_that_tells_nothing_of_the_program_is_kept_and_not_found(
    store: RecordStore, match: Match, message: str, is_found: bool
) -> None:
    workload = make_workload()
    good = store.append(workload, make_measurement(workload, measured_at=1.0))
    failed = msgspec.structs.replace(
        make_measurement(workload, measured_at=2.0), status=Status.ERROR, samples_us=(), message=message
    )
    newest = store.append(workload, failed)
    assert failed.tells_of_program == is_found
    wanted = newest if is_found else good
    found = store.find_latest(workload.fingerprint, **FOUND_BY, match=match)
    assert found is not None
    assert found.record_id == wanted
    where = {"target": FOUND_BY["target"], "environment": FOUND_BY["environment"]}
    many = store.find_many([workload.fingerprint], **where, match=match)[workload.fingerprint]
    assert many[-1].record_id == wanted
    assert store.get(newest).measurement == failed


def test_find_many_has_every_key_and_all_backends(store: RecordStore) -> None:
    known, unknown = make_workload(8), make_workload(16)
    store.append_many(
        [(known, make_measurement(known, backend=backend)) for backend in ("tvm", "blas")]
        + [(known, make_measurement(known, target="cuda"))]
    )
    found = store.find_many(
        [known.fingerprint, unknown.fingerprint], target="llvm", environment=make_environment()
    )
    assert {record.measurement.backend for record in found[known.fingerprint]} == {"tvm", "blas"}
    assert found[unknown.fingerprint] == []
    assert list(found) == [known.fingerprint, unknown.fingerprint]


def test_find_many_takes_thousands_of_fingerprints(store: RecordStore) -> None:
    workloads = [make_workload(rows) for rows in range(1, 1100)]
    store.append_many((workload, make_measurement(workload)) for workload in workloads)
    found = store.find_many(
        [workload.fingerprint for workload in workloads], target="llvm", environment=make_environment()
    )
    assert all(len(records) == 1 for records in found.values())


def test_iterate_filters_and_goes_on_after_an_id(store: RecordStore) -> None:
    kernel, stage = make_workload(8), make_workload(8, role="stage")
    first, second, third = store.append_many(
        [
            (kernel, make_measurement(kernel)),
            (stage, make_measurement(stage, backend="blas", target="cuda")),
            (kernel, make_measurement(kernel, status=Status.ERROR, message="no")),
        ]
    )

    def ids(**conditions: object) -> list[int]:
        return [record.record_id for record in store.iterate(**conditions)]

    assert ids() == [first, second, third]
    assert ids(after_id=first) == [second, third]
    assert ids(role="kernel") == [first, third]
    assert ids(status=Status.ERROR) == [third]
    assert ids(backend="blas") == ids(target="cuda") == ids(role="stage") == [second]


def test_best_is_the_fastest_success_of_each_workload_target_and_device(store: RecordStore) -> None:
    one, two = make_workload(8), make_workload(16)
    elsewhere = make_environment(device_model="Another CPU")
    slow, fast, _, on_cuda, other_device, of_two = store.append_many(
        [
            (one, make_measurement(one, [9.0])),
            (one, make_measurement(one, [5.0, 4.0, 30.0], backend="blas")),
            (one, make_measurement(one, status=Status.ERROR, message="no")),
            (one, make_measurement(one, [1.0], target="cuda")),
            (one, make_measurement(one, [2.0], environment=elsewhere)),
            (two, make_measurement(two, [7.0])),
        ]
    )

    def ids(*arguments: object, **conditions: object) -> set[int]:
        return {record.record_id for record in store.best(*arguments, **conditions)}

    assert ids() == {fast, on_cuda, other_device, of_two}
    assert ids([one.fingerprint], target="llvm", environment=make_environment()) == {fast}
    assert ids(target="llvm") == {fast, other_device, of_two}
    assert slow not in ids()
    with pytest.raises(ValueError, match="without a target"):
        store.best(environment=elsewhere)


def test_what_a_lost_connection_cut_short_is_done_again(url: str) -> None:
    with open_store(url) as store:
        answers = iter([sa.exc.OperationalError("", {}, Exception("gone"), connection_invalidated=True), 7])

        def work(connection: sa.Connection) -> int:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        assert store.in_transaction(work) == 7


@pytest.mark.parametrize(
    ("message", "was_reached", "waits"),
    [
        ("the database system is starting up", False, True),
        ("gone", True, True),
        ("gone", False, False),
    ],
)
def test_a_server_that_starts_or_was_there_before_is_waited_for(
    message: str, was_reached: bool, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/records.db"
    if was_reached:
        open_store(url).close()
    errors = [sa.exc.OperationalError("", {}, Exception(message), connection_invalidated=True)]

    def prepare(engine: sa.Engine, location: str) -> None:
        if errors:
            raise errors.pop()
        prepare_schema(engine, location)

    monkeypatch.setattr(store_module, "prepare_schema", prepare)
    if waits:
        open_store(url).close()
    else:
        with pytest.raises(RecordError, match=message):
            open_store(url)


def test_a_store_that_is_closed_gives_back_what_it_claims(url: str) -> None:
    with open_store(url) as first, open_store(url) as second:
        assert first.claims.take("0" * 32)
        assert not second.claims.take("0" * 32)
        first.close()
        assert second.claims.take("0" * 32)


def test_stats_count_by_status_target_and_backend(store: RecordStore) -> None:
    one, two = make_workload(8), make_workload(16)
    store.append_many(
        [
            (one, make_measurement(one)),
            (one, make_measurement(one, backend="blas")),
            (two, make_measurement(two, target="cuda", status=Status.UNSUPPORTED, message="no rule")),
        ]
    )
    stats = store.stats()
    assert (stats.measurements, stats.workloads, stats.environments) == (3, 2, 1)
    assert stats.by_status == {"ok": 2, "unsupported": 1}
    assert stats.by_target == {"cuda": 1, "llvm": 2}
    assert stats.by_backend == {"blas": 1, "tvm": 2}


def test_unknown_ids_and_workloads_are_refused_with_what_to_do(store: RecordStore) -> None:
    for record_id in (0, 1, -5, 2**70):
        with pytest.raises(RecordError, match="tessel records list"):
            store.get(record_id)
    with pytest.raises(RecordError, match="only measured workloads"):
        store.workload("f" * 32)


@given(target=texts, backend=texts)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_can_be_looked_up(store: RecordStore, target: str, backend: str) -> None:
    workload = make_workload()
    record_id = store.append(workload, make_measurement(workload, backend=backend, target=target))
    found = store.find(workload.fingerprint, backend=backend, target=target, environment=make_environment())
    assert record_id in [record.record_id for record in found]


def test_a_store_of_sound_records_verifies(store: RecordStore) -> None:
    workload = make_workload()
    store.append_many((workload, make_measurement(workload, [1.0 + index])) for index in range(10))
    assert store.verify() == []


def test_a_store_is_opened_again_with_what_it_held(url: str) -> None:
    workload = make_workload()
    with open_store(url) as store:
        record_id = store.append(workload, make_measurement(workload))
    with open_store(url) as store:
        assert store.get(record_id).measurement == make_measurement(workload)


def test_a_store_is_shared_by_threads(store: RecordStore) -> None:
    workload = make_workload()

    def append(index: int) -> int:
        return store.append(workload, make_measurement(workload, [1.0 + index]))

    with ThreadPoolExecutor(8) as pool:
        record_ids = list(pool.map(append, range(64)))
    assert len(set(record_ids)) == 64


def test_eight_processes_that_append_and_four_that_read_lose_nothing(url: str) -> None:
    with multiprocessing.get_context("fork").Pool(12) as pool:
        readers = [pool.apply_async(_read_until, (url, 8 * APPENDS)) for _ in range(4)]
        acknowledged = [pool.apply_async(_append_alone, (url, writer)) for writer in range(8)]
        record_ids = [record_id for result in acknowledged for record_id in result.get(timeout=600)]
        counts = [reader.get(timeout=600) for reader in readers]
    with open_store(url) as store:
        assert {record.record_id for record in store.iterate()} == set(record_ids)
        assert len(record_ids) == 8 * APPENDS
        assert store.verify() == []
    assert all(counts)


def test_what_one_transaction_reads_is_of_one_moment(url: str) -> None:
    """An append between two queries of `stats` or `verify` must not look like damage."""
    first, second = make_workload(2), make_workload(3)
    with open_store(url) as store, open_store(url) as other:
        store.append(first, make_measurement(first, [1.0]))

        def count_around_an_append(connection: sa.Connection) -> tuple[Stats, Stats]:
            before = count_records(connection, location="here")
            other.append(second, make_measurement(second, [1.0]))
            return before, count_records(connection, location="here")

        before, after = store.in_transaction(count_around_an_append)
        assert before == after
        assert store.stats().measurements == before.measurements + 1


def _append_alone(url: str, writer: int) -> list[int]:
    # Every process meets the missing file, and adds workloads that others add at the same time.
    with open_store(url) as store:
        record_ids = []
        for index in range(APPENDS):
            workload = make_workload(1 + index % 5)
            record_ids.append(store.append(workload, make_measurement(workload, [1.0 + index], seed=writer)))
        return record_ids


def _read_until(url: str, amount: int) -> bool:
    """Read until everything is there; what was seen once stays."""
    seen = 0
    with open_store(url) as store:
        while seen < amount:
            now = store.stats().measurements
            if now < seen:
                return False
            seen = now
            time.sleep(0.01)
    return True
