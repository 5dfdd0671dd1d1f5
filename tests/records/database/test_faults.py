"""Killed processes, full disks and servers that go away: what was acknowledged is never lost.

Each fault test makes a child process say what it has done, one line at a time, kills it at a random moment,
and compares what it said with what is stored. The slow variants do it 200 times;
`python -m benchmarks.records_faults` runs those and writes down what came of them.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from records import RecordError, RecordStore, open_store
from records.database.merging import import_items, merge_items
from records.database.pruning import prune
from records.database.writer import PAGE
from records.files.exchange import read_records, save_records
from tests.records.postgres_server import PostgresServer
from tests.records.strategies import make_measurement, make_workload
from tests.records.version_1 import build_version_1

ROOT = Path(__file__).parents[3]
NUM_OLD = 2000

APPEND = """
from records import open_store
from tests.records.strategies import make_measurement, make_workload

workload = make_workload()
with open_store(sys.argv[1]) as store:
    say("open")
    for index in range(10**9):
        samples = [1.0 + index]
        say(store.append(workload, make_measurement(workload, samples, seed=int(sys.argv[2]))))
"""

UPGRADE = """
from records import open_store

say("started")
with open_store(sys.argv[1]) as store:
    say(store.stats().measurements)
"""

IMPORT = """
from records import open_store
from records.files.exchange import read_records
from records.database.merging import import_items

say("started")
with open_store(sys.argv[1]) as store:
    import_items(store, read_records(sys.argv[2]))
say("done")
"""

MERGE = """
from records import open_store
from records.database.merging import merge_items

say("started")
with open_store(sys.argv[1]) as store, open_store(sys.argv[2]) as other:
    merge_items(store, ((record.workload, record.measurement) for record in other.iterate()))
say("done")
"""

PRUNE = """
from records import open_store
from records.database.pruning import prune

say("started")
with open_store(sys.argv[1]) as store:
    prune(store, keep_newest=1, apply=True)
say("done")
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    head = "import sys\ndef say(text):\n    print(text, flush=True)\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )


def kill_after(process: subprocess.Popen[str], seconds: float, *, num_lines: int = 1) -> list[str]:
    """Kill a process this long after its first lines; return all its whole lines."""
    assert process.stdout is not None
    first = "".join(process.stdout.readline() for _ in range(num_lines))
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.wait(timeout=600)
    return [line for line in (first + rest).split("\n")[:-1] if line]


def trials(num_kills: int, was_cut: Callable[[], bool]) -> Iterator[int]:
    """Count kills: as many as asked for, and more until one is in time, which a busy machine puts off."""
    for trial in range(20 * num_kills):
        if trial >= num_kills and was_cut():
            return
        yield trial


@pytest.fixture(params=[2, pytest.param(200, marks=pytest.mark.slow)], ids=["few", "many"])
def num_kills(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_kill_during_append_loses_at_most_what_was_in_flight(tmp_path: Path, num_kills: int) -> None:
    path = tmp_path / "records.db"
    rng = random.Random(1)
    acknowledged: set[int] = set()
    for trial in range(num_kills):
        # Some appends, then any moment of the next one.
        process = start(APPEND, str(path), str(trial))
        lines = kill_after(process, rng.uniform(0.0, 0.01), num_lines=rng.randint(1, 20))
        acknowledged |= set(map(int, lines[1:]))
        with open_store(str(path)) as store:
            stored = {record.record_id for record in store.iterate()}
            assert acknowledged <= stored
            # At most the one in flight was written without its answer being heard, each time.
            assert len(stored) <= len(acknowledged) + trial + 1
    with open_store(str(path)) as store:
        assert store.verify() == []
    assert len(acknowledged) > num_kills


def test_kill_during_upgrade_leaves_the_old_or_the_new_file(tmp_path: Path, num_kills: int) -> None:
    workload = make_workload()
    rng = random.Random(2)
    cut: list[bool] = []
    old = tmp_path / "old.db"
    build_version_1(
        f"sqlite:///{old}",
        [(index + 1, workload, make_measurement(workload, [1.0 + index])) for index in range(NUM_OLD)],
    )
    for trial in trials(num_kills, lambda: any(cut)):
        path = tmp_path / f"{trial}" / "records.db"
        path.parent.mkdir()
        path.write_bytes(old.read_bytes())
        said = kill_after(start(UPGRADE, str(path)), rng.uniform(0.0, 0.3) if any(cut) else 0.0)
        cut.append(len(said) == 1)
        with open_store(str(path)) as store:
            assert [record.record_id for record in store.iterate()] == list(range(1, NUM_OLD + 1))
            assert store.verify() == []
    assert any(cut)


@pytest.mark.parametrize(
    "program", [IMPORT, pytest.param(MERGE, marks=pytest.mark.slow)], ids=["import", "merge"]
)
def test_kill_during_import_or_merge_is_mended_by_doing_it_again(
    tmp_path: Path, num_kills: int, program: str
) -> None:
    source = _make_source(tmp_path, program)
    with open_store(str(tmp_path / "source.db")) as store:
        whole = {record.digest for record in store.iterate()}
    rng = random.Random(3)
    cut: list[bool] = []
    for trial in trials(num_kills, lambda: any(cut)):
        path = tmp_path / f"{trial}.db"
        with open_store(str(path)) as store:
            workload = make_workload(3)
            own = store.append(workload, make_measurement(workload))
        kill_after(start(program, str(path), source), rng.uniform(0.0, 0.3) if any(cut) else 0.0)
        with open_store(str(path)) as store:
            found = {record.digest for record in store.iterate(after_id=own)}
            assert found <= whole
            assert len(found) % PAGE == 0  # a batch is there whole or not at all
            cut.append(found < whole)
            assert store.get(own).workload == workload
            assert store.verify() == []
            do_again(store, Path(source))
            assert {record.digest for record in store.iterate(after_id=own)} == whole
    assert any(cut)


@pytest.mark.slow
def test_kill_during_prune_leaves_all_records_or_those_that_stay(tmp_path: Path, num_kills: int) -> None:
    source = tmp_path / "source.db"
    with open_store(str(source)) as store:
        workload, other = make_workload(), make_workload(16)
        store.append_many((workload, make_measurement(workload, [1.0 + index])) for index in range(NUM_OLD))
        store.append(other, make_measurement(other))  # the only one of its key: it always stays
    whole = list(range(1, NUM_OLD + 2))
    kept = [1, NUM_OLD, NUM_OLD + 1]  # the fastest and the newest of the first key
    content = source.read_bytes()
    rng = random.Random(4)
    seen = set()
    for trial in trials(num_kills, lambda: len(whole) in seen):
        path = tmp_path / f"{trial}.db"
        path.write_bytes(content)
        kill_after(start(PRUNE, str(path)), rng.uniform(0.0, 0.15) if len(whole) in seen else 0.0)
        with open_store(str(path)) as store:
            found = [record.record_id for record in store.iterate()]
            assert found in (whole, kept)
            seen.add(len(found))
            assert store.verify() == []
            prune(store, keep_newest=1, apply=True)
            assert [record.record_id for record in store.iterate()] == kept
            workload = make_workload(32)
            assert store.append(workload, make_measurement(workload)) == NUM_OLD + 2
    assert len(whole) in seen  # some were killed before the end


def do_again(store: RecordStore, source: Path) -> None:
    """Do in this process what the killed one was at."""
    if source.suffix == ".jsonl":
        import_items(store, read_records(source))
        return
    with open_store(str(source)) as other:
        merge_items(store, ((record.workload, record.measurement) for record in other.iterate()))


def _make_source(folder: Path, program: str) -> str:
    """Return what the program reads: `source.db`, or the same as JSON Lines."""
    with open_store(str(folder / "source.db")) as store:
        workload = make_workload()
        store.append_many((workload, make_measurement(workload, [1.0 + index])) for index in range(NUM_OLD))
        save_records(store, folder / "source.jsonl")
    return str(folder / ("source.jsonl" if program == IMPORT else "source.db"))


def test_a_full_disk_keeps_what_was_acknowledged_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    limited = """
import resource
from records import RecordError, open_store
from tests.records.strategies import make_measurement, make_workload

workload = make_workload()
with open_store(sys.argv[1]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    try:
        for index in range(10**9):
            say(store.append(workload, make_measurement(workload, [1.0 + index])))
    except RecordError as error:
        say(f"refused: {error}")
    say(f"then {len(list(store.iterate()))}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say(f"after {store.append(workload, make_measurement(workload, [0.5]))}")
"""
    output, _ = start(limited, str(path)).communicate(timeout=600)
    *lines, refusal, then, after = output.splitlines()
    assert refusal.startswith("refused:")
    assert "earlier records are kept" in refusal
    assert then == f"then {len(lines)}"
    assert after == f"after {len(lines) + 1}"
    with open_store(str(path)) as store:
        assert [record.record_id for record in store.iterate()] == [*map(int, lines), len(lines) + 1]
        assert store.verify() == []


def test_a_full_disk_stops_an_upgrade_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    workload = make_workload()
    build_version_1(
        f"sqlite:///{path}",
        [(index + 1, workload, make_measurement(workload, [1.0 + index])) for index in range(500)],
    )
    limited = """
import resource
from records import RecordError, open_store

resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
try:
    open_store(sys.argv[1])
except RecordError as error:
    say(error)
"""
    output, _ = start(limited, str(path)).communicate(timeout=600)
    assert "its backup" in output
    assert "free some space" in output
    assert not list(tmp_path.glob("*backup*"))
    with open_store(str(path)) as store:
        assert store.stats().measurements == 500


def test_a_full_disk_leaves_the_earlier_export(tmp_path: Path) -> None:
    path, lines = tmp_path / "records.db", tmp_path / "records.jsonl"
    workload = make_workload()
    with open_store(str(path)) as store:
        store.append_many((workload, make_measurement(workload, [1.0 + index])) for index in range(200))
    lines.write_text("earlier")
    limited = """
import resource
from records import RecordError, open_store
from records.files.exchange import save_records

with open_store(sys.argv[1]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    try:
        save_records(store, sys.argv[2])
    except RecordError as error:
        say(error)
"""
    output, _ = start(limited, str(path), str(lines)).communicate(timeout=600)
    assert "free some space" in output
    assert lines.read_text() == "earlier"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.postgres
def test_a_server_that_restarts_loses_nothing_and_stops_nobody(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    workload = make_workload()
    acknowledged: list[int] = []
    stop = threading.Event()

    def append(writer: int) -> None:
        index = 0
        with open_store(postgres_url) as store:
            while not stop.is_set():
                index += 1
                measurement = make_measurement(workload, [1.0 + index], seed=writer)
                acknowledged.append(store.append(workload, measurement))

    writers = [_started(append, writer) for writer in range(3)]
    for mode in ("fast", "immediate"):
        _wait_for_more(acknowledged)
        postgres_server.stop(mode)
        postgres_server.start()
    before = len(acknowledged)
    _wait_for_more(acknowledged)
    stop.set()
    for writer in writers:
        writer.join(timeout=600)
        assert not writer.is_alive()
    assert len(acknowledged) > before
    with open_store(postgres_url) as store:
        stored = [record.record_id for record in store.iterate()]
        assert sorted(acknowledged) == stored


@pytest.mark.postgres
def test_a_server_that_stays_away_is_an_error(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(postgres_url) as store:
        postgres_server.stop()
        try:
            # Short only while the server is away: what it takes to answer again is the machine's affair.
            with monkeypatch.context() as patched:
                patched.setattr("records.database.store.RESTART_PATIENCE_S", 0.5)
                with pytest.raises(RecordError, match="start the server"):
                    store.stats()
        finally:
            postgres_server.start()
        assert store.stats().measurements == 0


@pytest.mark.postgres
def test_a_store_can_be_opened_while_a_server_restarts(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(postgres_url) as store:
        kept = store.append(make_workload(), make_measurement(make_workload(), [1.0]))
    postgres_server.stop("immediate")
    starting = _started(lambda seconds: (time.sleep(seconds), postgres_server.start())[0], 1)
    with open_store(postgres_url) as store:
        assert [record.record_id for record in store.iterate()] == [kept]
    starting.join(timeout=600)


@pytest.mark.postgres
def test_a_server_that_never_answered_is_an_error_at_once(
    postgres_server: PostgresServer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    never = postgres_url.replace(f":{postgres_server.port}/", ":1/")
    with pytest.raises(RecordError, match="start the server"):
        open_store(never)
    assert "trying again" not in caplog.text


def _wait_for_more(acknowledged: list[int]) -> None:
    """Wait for more answers than were under way."""
    wanted = len(acknowledged) + 10
    give_up_at = time.monotonic() + 600
    while len(acknowledged) < wanted:
        assert time.monotonic() < give_up_at, "nobody appends any more"
        time.sleep(0.01)


def _started(work: Callable[[int], None], argument: int) -> threading.Thread:
    thread = threading.Thread(target=work, args=(argument,), daemon=True)
    thread.start()
    return thread
