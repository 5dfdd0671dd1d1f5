"""What is to run first on a real GPU is rehearsed here: pieces, their report, and going on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day.__main__ import SIZES, main, report
from benchmarks.gpu_report.steps import steps_for
from scripts.app import app
from tests.software_gpu.test_commands import probed

__all__ = ["probed"]

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def test_pieces_name_what_there_is() -> None:
    commands = {str(each.name or getattr(each.callback, "__name__", "")) for each in app.registered_commands}
    for sizes, pieces in SIZES.items():
        for piece in pieces.values():
            for name, *given in piece:
                assert name in ("report", *commands)
                if name == "report":
                    assert set(given[0].split(",")) <= set(steps_for(sizes))


def test_an_unknown_piece_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nothing"])
    assert "there is no piece nothing" in capsys.readouterr().err


def test_the_report_says_what_failed_and_what_was_found() -> None:
    text = report({"tune": {"result": [{"step_us": 5}], "seconds": 3.0}, "ranks": {"failure": "no torch"}})
    assert "| tune | 3.0 | done |" in text
    assert "| ranks |  | no torch |" in text
    assert '"step_us": 5' in text


@pytest.mark.slow
def test_the_day_is_rehearsed_on_the_software_gpu(
    software_gpu: dict[str, str], probed: Path, tmp_path: Path
) -> None:
    """All but what needs torch's CUDA runs whole; a second call has nothing left to do but that."""
    out = tmp_path / "day"
    out.mkdir()
    shutil.copy(probed, out / "records.db")
    reports = tmp_path / "reports"
    argv = [
        sys.executable,
        "-m",
        "benchmarks.gpu_day",
        "--sizes",
        "small",
        "--minutes",
        "60",
        "--out",
        str(out),
    ]
    for said in ("done (", "done before"):
        done = subprocess.run(
            argv,
            env={**os.environ, **software_gpu, "SOFTWARE_GPU_REPORTS": str(reports)},
            capture_output=True,
            text=True,
            check=False,
        )
        for piece in ("tune", "metaschedule", "calibration"):
            assert f"{piece}: {said}" in done.stderr, done.stderr
        assert done.returncode == 1  # torch reaches no GPU here
        assert "ranks: done" not in done.stderr
    assert not reports.exists(), reports.read_text()
    tuned = json.loads((out / "steps" / "tune.json").read_text())["result"][0]
    assert tuned["max_gradient_error"] < 1e-5
