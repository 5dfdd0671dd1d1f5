"""Files from strangers: of many thousand changed ones, each is read or refused by name, whatever was
changed."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from records import Record, RecordError, open_store
from records.files.exchange import encode_line, read_records
from records.files.metaschedule import RECORD_FILE, WORKLOAD_FILE, read_database
from tests.records.files.test_metaschedule import entry, write
from tests.records.strategies import make_measurement, make_workload

MAX_MEMORY_BYTES = 64 * 2**20

_PIECES = (
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"\xff", b"\\ud800", b"\\u0000", b"null", b"-1",
    b"1e999", b"-0.0", b"NaN", b"9" * 400, b"[" * 2000, b'{"a":' * 2000, b"__import__", b"true", b'"' * 3,
    b"\xf0\x9f\x92\xa9", b"0" * 30, b"1E5", b'{"py/object":"os.system"}',
)  # fmt: skip


def changed(rng: random.Random, content: bytes) -> bytes:
    """Return the content with one to four random changes, from one bit to pieces copied about."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + int(rng.expovariate(0.1)))
        kind = rng.randrange(5)
        if kind == 0 and start < len(content):
            content = content[:start] + bytes([content[start] ^ 1 << rng.randrange(8)]) + content[start + 1 :]
        elif kind == 1:
            content = content[:start] + content[end:]
        elif kind == 2:
            content = content[:start] + rng.choice(_PIECES) + content[end:]
        elif kind == 3:
            at = rng.randrange(len(content) + 1)
            content = content[:at] + content[start:end] + content[at:]
        else:
            content = content[:start]
    return content


def lines() -> bytes:
    parts = []
    for index, workload in enumerate([make_workload(8), make_workload(16, name="nn.softmax")]):
        measurement = make_measurement(workload, [1.5, 2.5], settings="trials=8", seed=index)
        parts.append(encode_line(Record(record_id=1, workload=workload, measurement=measurement)) + b"\n")
    return b"".join(parts)


@pytest.fixture(params=[1500, pytest.param(100_000, marks=pytest.mark.slow)], ids=["some", "many"])
def num_inputs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def check_all(num_inputs: int, read: Callable[[random.Random], int]) -> None:
    """Call `read` on many changed inputs: it returns or raises a `RecordError`, within bounded memory."""
    refused = 0
    tracemalloc.start()
    try:
        for seed in range(num_inputs):
            refused += not _accepts(read, random.Random(seed))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > num_inputs / 2
    assert peak < MAX_MEMORY_BYTES


def _accepts(read: Callable[[random.Random], int], rng: random.Random) -> bool:
    try:
        read(rng)
    except RecordError as error:
        message = str(error)
    else:
        return True
    assert "\n" not in message
    assert ";" in message  # what was found and why it is wrong; what to do
    return False


def test_changed_json_lines_are_read_or_refused(tmp_path: Path, num_inputs: int) -> None:
    sound, path = lines(), tmp_path / "file.jsonl"

    def read(rng: random.Random) -> int:
        path.write_bytes(changed(rng, sound))
        return sum(1 for _ in read_records(path))

    check_all(num_inputs, read)


def test_changed_metaschedule_databases_are_read_or_refused(tmp_path: Path, num_inputs: int) -> None:
    folder = write(tmp_path / "db", entry(), entry("[1e10]"), entry("[0.5]"))
    sound = {name: (folder / name).read_bytes() for name in (WORKLOAD_FILE, RECORD_FILE)}

    def read(rng: random.Random) -> int:
        name = rng.choice([WORKLOAD_FILE, RECORD_FILE])
        for other, content in sound.items():
            (folder / other).write_bytes(changed(rng, content) if other == name else content)
        return sum(1 for _ in read_database(folder))

    check_all(num_inputs, read)


@pytest.mark.parametrize("amount", [60, pytest.param(2_500, marks=pytest.mark.slow)])
def test_changed_databases_are_read_or_refused(tmp_path: Path, amount: int) -> None:
    sound, path = tmp_path / "sound.db", tmp_path / "changed" / "records.db"
    with open_store(str(sound)) as store:
        for rows in range(1, 30):
            workload = make_workload(rows)
            store.append(workload, make_measurement(workload))
    content = sound.read_bytes()

    def read(rng: random.Random) -> int:
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        path.write_bytes(_overwritten(rng, content))
        with open_store(str(path)) as store:
            store.stats()
            workload = make_workload()
            store.append(workload, make_measurement(workload, [7.0]))
            return sum(1 for _ in store.iterate())

    refused = sum(not _accepts(read, random.Random(seed)) for seed in range(amount))
    assert refused > amount / 10


def _overwritten(rng: random.Random, content: bytes) -> bytes:
    """Return the content with a few runs of bytes replaced, mostly where something is stored."""
    changing = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(changing))
        length = 1 + int(rng.expovariate(0.2))
        changing[start : start + length] = rng.randbytes(len(changing[start : start + length]))
    return bytes(changing)
