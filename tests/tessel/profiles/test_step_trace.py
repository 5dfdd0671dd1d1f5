"""Traces of steps: what is read, in which form, and what is refused in one line."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from tessel.errors import DocumentError
from tessel.profiles.step_trace import read_step_trace
from tests.samples.batches.trace_samples import Job, durations, one_f_one_b, rows_of

JOB = Job(spread=0.3, stages=3, micro_batches=5)


def written(folder: Path, rows: list[str], name: str = "steps.csv") -> Path:
    path = folder / name
    text = "\n".join(rows) + "\n"
    if name.endswith(".parquet"):
        reader = pytest.importorskip("pyarrow.csv", reason="needs the extra `parquet`")
        pytest.importorskip("pyarrow.parquet").write_table(reader.read_csv(io.BytesIO(text.encode())), path)
        return path
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["steps.csv", "steps.csv.gz", "steps.parquet"])
def test_durations_orders_and_transfers_are_read(tmp_path: Path, name: str) -> None:
    trace = read_step_trace(written(tmp_path, rows_of(JOB), name))
    assert (trace.steps, trace.replicas, trace.stages, trace.micro_batches) == ((10, 11, 12), (0, 1), 3, 5)
    forward = durations(JOB)
    assert np.allclose(trace.spans_s[..., :3], forward, atol=3e-6)
    assert np.allclose(trace.spans_s[..., 3:], 2 * forward, atol=3e-6)
    crossing = [edge.source[1:] != edge.target[1:] for edge in trace.placement.edges]
    assert np.allclose(trace.lags_s[..., crossing], JOB.lag_s, atol=3e-6)
    assert not trace.lags_s[..., ~np.array(crossing)].any()
    (orders,) = trace.orders
    names = [block.name for block in trace.placement.blocks]
    for stage, order in enumerate(orders):
        expected = [(f"{kind[0]}{stage}", each) for kind, each in one_f_one_b(stage, 3, 5)]
        assert [(names[task.block_index], task.micro_batch) for task in order] == expected
    assert not trace.notes
    assert (trace.step_s > trace.pipeline_s.max(axis=1)).all()


def test_rows_in_any_order_are_the_same_trace(tmp_path: Path) -> None:
    header, *rows = rows_of(JOB)
    rng = np.random.default_rng(0)
    shuffled = [rows[each] for each in rng.permutation(len(rows))]
    one = read_step_trace(written(tmp_path, [header, *rows], "one.csv"))
    other = read_step_trace(written(tmp_path, [header, *shuffled], "other.csv"))
    assert (one.spans_s == other.spans_s).all()
    assert (one.lags_s == other.lags_s).all()
    assert one.orders == other.orders


def test_transfers_that_are_missing_are_noted_and_count_nothing(tmp_path: Path) -> None:
    rows = [row for row in rows_of(JOB) if "backward-recv" not in row]
    trace = read_step_trace(written(tmp_path, rows))
    assert trace.notes == ("2 borders have not one transfer a micro-batch; they count nothing",)
    assert trace.lags_s[..., :2].all()
    assert not trace.lags_s[..., 2:4].any()


def test_several_chunks_of_a_worker_are_told_apart(tmp_path: Path) -> None:
    rows = ["dp_rank,stage,step,optype,start_ts,duration,mb_id,gmc"]
    at = 0.0
    for kind, chunks in (("forward", (0, 1, 2, 3)), ("backward", (3, 2, 1, 0))):
        for chunk in chunks:
            rows.append(f"0,{chunk % 2},1,{kind}-compute,{at},1,0,{chunk}")
            at += 1
    trace = read_step_trace(written(tmp_path, rows))
    assert trace.stages == 4
    assert trace.placement.devices == 2
    assert trace.notes == ("a worker has several chunks: transfers count nothing",)


def change(row: int, column: int, value: str) -> list[str]:
    rows = rows_of(JOB)
    cells = rows[row].split(",")
    cells[column] = value
    rows[row] = ",".join(cells)
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "empty"),
        (["a,b"], "no column dp_rank"),
        ([*rows_of(JOB)[:3], "1,2"], "2 values in row 4 and 8 columns"),
        (change(1, 5, "-1"), "duration -1 in row 2"),
        (change(1, 5, "long"), "'long' in column duration of row 2"),
        (change(1, 4, "nan"), "'nan' in column start_ts of row 2"),
        (change(1, 7, "0.5"), "0.5 in column mb_id of row 2; give a whole number"),
        (change(1, 7, "999999"), "numbers micro-batches up to 999999"),
        (change(1, 7, "-3"), "negative mb_id"),
        (change(1, 7, "1"), "forward-compute of stage 0 and micro-batch 0 0 times in step 10 of replica 0"),
        ([row for row in rows_of(JOB) if "compute" not in row], "none of forward-compute"),
        ([row for row in rows_of(JOB) if row.split(",")[1] != "2"], "no computation of a stage 2"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, rows: list[str], says: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(rows))
    with pytest.raises(DocumentError) as raised:
        read_step_trace(path)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        read_step_trace(tmp_path / "missing.csv")
    cut = written(tmp_path, rows_of(JOB), "cut.csv.gz")
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(DocumentError, match="no whole gzip file"):
        read_step_trace(cut)
    monkeypatch.setattr("tessel.profiles.step_trace.MAX_BYTES", 1000)
    with pytest.raises(DocumentError, match="give a trace of fewer steps"):
        read_step_trace(written(tmp_path, rows_of(JOB), "large.csv.gz"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DocumentError, match="no reader is installed"):
        read_step_trace(tmp_path / "steps.parquet")
