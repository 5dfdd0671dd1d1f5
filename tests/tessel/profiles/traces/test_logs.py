"""Logs of DeepSpeed and torchtitan, and what they cannot show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel.errors import DocumentError
from tessel.profiles import load_profile
from tessel.profiles.load import detect_format

DEEPSPEED = Path(__file__).parents[3] / "samples" / "traces" / "deepspeed.log"
TITAN = (
    "[titan] 2026-11-29 - root - INFO - step:  10  loss:  7.1  memory:  1.2GiB(3%)  tps: 1,234  mfu: 30%\n"
)


def test_one_rank_of_a_pipeline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(DEEPSPEED.read_text().replace("| fwd_", "| batch_input: 0.20 | fwd_"))
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
