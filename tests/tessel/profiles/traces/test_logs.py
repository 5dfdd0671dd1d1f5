"""Logs of DeepSpeed and torchtitan, and what they cannot show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel.errors import DocumentError
from tessel.profiles import load_profile
from tessel.profiles.load import detect_format

LINE = (
    "[2026-11-29 10:00:0{n},000] [INFO] [logging.py:128:log_dist] [Rank 0] time (ms) | fwd_microstep: "
    "{forward:.2f} | bwd_microstep: 31.00 | bwd_inner_microstep: {backward:.2f}"
    " | bwd_allreduce_microstep: 4.00 | step_microstep: {update:.2f}\n"
)
TITAN = (
    "[titan] 2026-11-29 - root - INFO - step:  10  loss:  7.1  memory:  1.2GiB(3%)  tps: 1,234  mfu: 30%\n"
)


def deepspeed(path: Path) -> Path:
    lines = [LINE.format(n=0, forward=500, backward=900, update=0)]
    lines += [LINE.format(n=n, forward=9 + n, backward=20 + n, update=6 * (n % 2)) for n in range(1, 4)]
    path.write_text("".join(lines))
    return path


def test_deepspeed_shows_a_whole_model(tmp_path: Path) -> None:
    path = deepspeed(tmp_path / "job.log")
    assert detect_format(path, path.read_bytes()) == "log"
    profile = load_profile(path, micro_batch=4)
    (cost,) = profile.tables[0].costs
    assert (cost.forward_us, cost.backward_us, cost.update_us) == (11_000.0, 22_000.0, 6_000.0)
    assert profile.micro_batches == (4,)
    assert any("no pipeline can be cut from" in note for note in profile.notes)


def test_one_rank_of_a_pipeline_is_refused(tmp_path: Path) -> None:
    path = deepspeed(tmp_path / "job.log")
    path.write_text(path.read_text().replace("| fwd_", "| batch_input: 0.20 | fwd_"))
    with pytest.raises(DocumentError, match=r"of a pipeline.*trace each rank with torch\.profiler"):
        load_profile(path)


def test_whole_steps_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(TITAN * 3)
    assert detect_format(path, path.read_bytes()) == "log"
    with pytest.raises(DocumentError, match=r"whole steps alone.*enable_profiling"):
        load_profile(path)
    path.write_text("time (ms) | other: 3.0\n")
    with pytest.raises(DocumentError, match="wall_clock_breakdown"):
        load_profile(path)
