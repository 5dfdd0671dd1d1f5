"""Files of one kind given where another is wanted are named, with what takes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from records.own_files import FileKind, kind_of_file, other_files_named

CONTENTS: dict[str, tuple[bytes, FileKind | None]] = {
    "net.tessel": (b"tessel program\r\n" + bytes(range(256)), FileKind.PROGRAM),
    "records.jsonl": (b'{"digest": "a", "measurement": {}, "workload": {}}\n' * 2, FileKind.RECORDS),
    "table.csv": (b"layer,forward_us\n", FileKind.TABLE),
    "table.json": (b'{"layers": [], "model": "m"}', FileKind.TABLE),
    "net.onnx": (b"\x08\x0a\x80", FileKind.MODEL),
    "config.json": (b'{"model_type": "llama"}', FileKind.CONFIG),
    "plan.json": (b'{"layout": {}, "schedule": {"starts": []}}', FileKind.PLAN),
    "schedule.json": (b'{"placement": {"blocks": []}, "starts": []}', FileKind.SCHEDULE),
    "placement.json": (b'{"blocks": [], "devices": 1}', FileKind.PLACEMENT),
    "trace.json": (b'{"displayTimeUnit": "ms", "traceEvents": []}', FileKind.TRACE),
    "printed.json": (b'{"layers": [], "best": {}}', None),
    "torn.json": (b'{"starts": [', None),
    "empty.json": (b"", None),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_are_told_by_what_they_hold(name: str, tmp_path: Path) -> None:
    content, kind = CONTENTS[name]
    (tmp_path / name).write_bytes(content)
    assert kind_of_file(tmp_path / name) == kind


def test_only_errors_about_another_kind_are_said_anew(tmp_path: Path) -> None:
    file = tmp_path / "net.tessel"
    file.write_bytes(CONTENTS["net.tessel"][0])
    with (
        pytest.raises(KeyError, match="is a compiled program, and a plan is wanted; tessel"),
        other_files_named(file, "a plan", KeyError),
    ):
        raise KeyError("as it was")
    for path, error_type, taken in (
        (file, OSError, ()),
        (file, KeyError, (FileKind.PROGRAM,)),
        (tmp_path / "missing", KeyError, ()),
    ):
        with pytest.raises(KeyError, match="as it was"), other_files_named(path, "a plan", error_type, taken):
            raise KeyError("as it was")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert kind_of_file(tmp_path / "pipe") is None
