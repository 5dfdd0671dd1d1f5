"""Records as lines of JSON, and TVM's own databases."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Format
from benchmarks.fuzz.formats.changes import TEXT_COUNT, change_by_suffix

RECORDS = Path(__file__).parents[3] / "tests" / "cost_model" / "kernels_amd-epyc.jsonl"


def records_format() -> Format:
    from records import RecordError
    from records.files.exchange import read_records

    def read(folder: Path) -> None:
        for _ in read_records(folder / "records.jsonl"):
            pass

    return Format(
        name="records",
        count=TEXT_COUNT,
        samples=lambda: [{"records.jsonl": b"".join(line + b"\n" for line in record_lines())}],
        change=lambda rng, files: {"records.jsonl": mutation.changed_text_file(rng, files["records.jsonl"])},
        read=read,
        own_errors=(RecordError,),
    )


def record_lines(count: int = 3) -> list[bytes]:
    return RECORDS.read_bytes().splitlines()[:count]


def tvm_database_format() -> Format:
    from records import RecordError
    from records.files.metaschedule import RECORD_FILE, WORKLOAD_FILE, read_database

    def read(folder: Path) -> None:
        for name in (WORKLOAD_FILE, RECORD_FILE):
            (folder / name).touch()
        for _ in read_database(folder):
            pass

    trace = [[["GetSBlock", [], ["C", "main"], ["b0"]]], []]
    target = {"keys": ["cpu"], "kind": "llvm", "num-cores": 2, "tag": ""}
    arguments = [
        ["TENSOR", "float32", [16, 8]],
        ["TENSOR", "float32", [8, 4]],
        ["TENSOR", "float32", [16, 4]],
    ]
    entries = [[0, [trace, [0.001, 0.003], target, arguments]], [1, [trace, [1e10], target, arguments]]]
    modules = [["123", "bW9kdWxl"], ["456", "bW9kdWxlMg=="]]
    sample = {
        name: b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        for name, lines in ((WORKLOAD_FILE, modules), (RECORD_FILE, entries))
    }
    return Format(
        name="tvm-database",
        count=TEXT_COUNT,
        samples=lambda: [sample],
        change=change_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=(RecordError,),
    )
