"""Steps out of profilers' traces: made-up ranks as Kineto writes them, against the same job's table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.main import main
from tessel.checking.trace_replay import TraceReplay
from tessel.errors import DocumentError
from tessel.profiles.step_trace import read_step_trace
from tessel.profiles.traces.steps import is_profiler_trace, read_profiler_steps
from tests.samples.batches.trace_samples import Job, durations, rows_of, run

JOB = Job(stages=3, micro_batches=5, replicas=3, spread=0.3, slow=(1, 2), factor=1.8, lag_s=0.004)


def event(name: str, category: str, start_s: float, seconds: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "tid": 7, "ts": start_s * 1e6, "dur": seconds * 1e6}


def written(folder: Path, job: Job, *, halves: bool = False, wait_s: float = 0.02) -> Path:
    """Write a trace of each rank; a label begins `wait_s` before its work, which is an operation in it."""
    forward = durations(job)
    events: dict[int, list[dict[str, Any]]] = {}
    for step in range(job.steps):
        for replica in range(job.replicas):
            for (kind, stage, micro_batch), (start, end) in run(job, forward[step, replica]).items():
                own = events.setdefault(stage * job.replicas + replica, [])
                parts = ("backward input", "backward weight") if halves and kind == "backward" else (kind,)
                for number, part in enumerate(parts):
                    begin = 100.0 * step + 1 + start + (end - start) * number / len(parts)
                    took = (end - start) / len(parts)
                    label = f"stage {stage} {part} mb {micro_batch}"
                    waits = wait_s if number == 0 else 0.0
                    own.append(event(label, "user_annotation", begin - waits, took + waits - 1e-6))
                    own.append(event("aten::mm", "cpu_op", begin, took - 2e-6))
    folder.mkdir(parents=True, exist_ok=True)
    for rank, own in events.items():
        document = {"traceEvents": own, "distributedInfo": {"rank": rank, "world_size": len(events)}}
        (folder / f"rank{rank}_trace.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("halves", [False, True])
def test_a_profilers_trace_is_the_same_job_as_its_table(tmp_path: Path, halves: bool) -> None:
    table = tmp_path / "steps.csv"
    table.write_text("\n".join(rows_of(JOB)))
    expected = read_step_trace(table)
    folder = written(tmp_path / "traces", JOB, halves=halves)
    found = read_profiler_steps(folder)
    assert is_profiler_trace(folder)
    assert found.orders == expected.orders
    assert (found.order_of == expected.order_of).all()
    assert found.spans_s == pytest.approx(expected.spans_s, abs=1e-5)
    assert found.pipeline_s == pytest.approx(expected.pipeline_s, abs=1e-5)
    crossing = [edge.source[1:] != edge.target[1:] for edge in found.placement.edges]
    assert found.lags_s[..., crossing] == pytest.approx(JOB.lag_s, abs=1e-5)
    assert (found.lags_s[..., ~np.array(crossing)] == 0).all()
    assert TraceReplay.of(found).pipeline_s == pytest.approx(expected.pipeline_s, rel=1e-3)


def test_check_names_the_straggler_of_a_profilers_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "traces", JOB)
    assert main(["check", "--trace", str(folder), "--work", "0.05", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_steps"], found["replicas"], found["stages"], found["micro_batches"]) == (3, 3, 3, 5)
    assert (found["by_worker"][0]["replica"], found["by_worker"][0]["stage"]) == (1, 2)
    assert found["by_worker"][0]["ratio"] == pytest.approx(1.8, rel=1e-3)
    assert found["by_stage"][0]["stage"] == 2
    assert found["error_worst"] < 1e-3
    assert sum(each["share"] for each in found["path_shares"]) == pytest.approx(1)
    for rank in (6, 7, 8):  # the last stage
        (folder / f"rank{rank}_trace.json").unlink()
    assert main(["check", "--trace", str(folder), "--work", "0.05", "--quiet"]) == 0
    assert "far off, as where a stage is missing" in capsys.readouterr().out


def test_what_cannot_be_replayed_is_left_out_or_refused(tmp_path: Path) -> None:
    job = replace(JOB, replicas=1, stages=2, slow=None)
    folder = written(tmp_path / "cut", job)
    first = folder / "rank0_trace.json"
    document = json.loads(first.read_text())
    document["traceEvents"] = [each for each in document["traceEvents"] if each["ts"] < 200.9e6]
    first.write_text(json.dumps(document))
    found = read_profiler_steps(folder)
    assert len(found.steps) == 2
    assert any("1 of 3 steps are not whole" in note for note in found.notes)
    two = written(tmp_path / "two", replace(job, replicas=2))
    (two / "rank3_trace.json").unlink()
    with pytest.raises(DocumentError, match="stage 1 was run by 1 ranks, and others by 2"):
        read_profiler_steps(two)
    apart = written(tmp_path / "apart", replace(job, steps=1), halves=True)
    text = (apart / "rank0_trace.json").read_text()
    # The first backward's weight half and the second's input half change places.
    one, other = "stage 0 backward weight mb 0", "stage 0 backward input mb 1"
    text = text.replace(one, "HELD").replace(other, one).replace("HELD", other)
    (apart / "rank0_trace.json").write_text(text)
    with pytest.raises(DocumentError, match="ran other blocks between the parts of the backward of stage 0"):
        read_profiler_steps(apart)
