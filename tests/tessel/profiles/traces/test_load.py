"""Files and folders of traces, plain and compressed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tessel.errors import DocumentError
from tessel.profiles import load_profile
from tessel.profiles.traces import load, load_trace


def written(path: Path, rank: int) -> Path:
    """Write the trace of one rank, a forward and a backward of its stage."""
    events = [
        {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
        for kind, ts in (("F", 0), ("B", 100))
        for category, name, ts, dur in (
            ("user_annotation", f"PP:{rank}{kind}0", ts, 50),
            ("cpu_op", "aten::mm", ts + 10, 20 + rank),
        )
    ]
    text = json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    "names", [("a.json", "b.json"), ("a.pt.trace.json.gz", "b.json"), ("1.json.gz", "0.json.gz")]
)
def test_a_folder_has_one_trace_of_each_rank(tmp_path: Path, names: tuple[str, str]) -> None:
    for rank, name in enumerate(names):
        written(tmp_path / name, rank)
    (tmp_path / "readme.txt").write_text("not a trace")
    profile = load_profile(tmp_path)
    assert [cost.forward_us for cost in profile.tables[0].costs] == [20.0, 21.0]


def test_a_file_is_one_rank(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path / "job.trace.json", 0))
    assert [each.rank for each in trace.ranges] == [0, 0]
    assert any("traces of 1 of 2 ranks" in note for note in trace.notes)


def test_what_cannot_be_read_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DocumentError, match="has no file that ends with"):
        load_trace(tmp_path)
    with pytest.raises(DocumentError, match="cannot be read"):
        load_trace(tmp_path / "missing.json")
    (tmp_path / "latin.json.gz").write_bytes(gzip.compress(b'{"name": "\xe9"}'))
    with pytest.raises(DocumentError, match="is not UTF-8"):
        load_trace(tmp_path / "latin.json.gz")
    monkeypatch.setattr(load, "MAX_TRACE_BYTES", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * (1 << 21)))
    with pytest.raises(DocumentError, match="more than 1 MiB when decompressed"):
        load_trace(tmp_path / "bomb.json.gz")
