"""What is to run first on a real GPU is rehearsed here: pieces, their report, and going on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_day.__main__ import SIZES, main, report
from benchmarks.gpu_day.archives import pack, unpack
from benchmarks.gpu_report.steps import steps_for
from records import open_store
from tests.harness.local_fleet import wait_until
from tests.harness.software_gpu.build import ROOT
from tests.software_gpu.test_commands import probed

__all__ = ["probed"]

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def test_pieces_name_what_there_is() -> None:
    commands = {path.stem for path in (ROOT / "scripts" / "commands").iterdir()}
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


def test_a_call_has_its_own_time_and_begins_with_what_was_not_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets_s: dict[str, float] = {}

    def done_before(names: list[str], *_: object, budget_s: float, **__: object) -> dict[str, object]:
        budgets_s[names[0]] = budget_s
        return {names[0]: {"result": [], "seconds": 1e9}}

    monkeypatch.setattr("benchmarks.gpu_day.__main__.run_steps", done_before)
    (tmp_path / "tries.json").write_text('{"ranks": 2, "tune": 1}')
    where = ["--target", "cpu", "--sizes", "small", "--out", str(tmp_path)]
    assert main([*where, "--minutes", "100"]) == 0
    first, *others = SIZES["small"]
    assert first == "ranks"
    assert list(budgets_s) == [*others, first]
    assert min(budgets_s.values()) > 0


def test_wheels_are_carried_in_archives_of_a_limited_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    given = {f"w{size}.whl": rng.bytes(size) for size in (400_000, 10, 90_000)}
    for name, content in given.items():
        (wheels / name).write_bytes(content)
    written = pack(wheels, tmp_path / "archives", most_bytes=150_000)
    assert len(written) > 4
    assert all(path.stat().st_size <= 150_000 for path in written)
    found = unpack(tmp_path / "archives", tmp_path / "there")
    assert {path.name: path.read_bytes() for path in found} == given

    changed = bytearray(written[1].read_bytes())
    changed[3000] ^= 1
    written[1].write_bytes(changed)
    with pytest.raises(ValueError, match=r"part-01.tar was changed"):
        unpack(tmp_path / "archives", tmp_path / "again")
    written[1].unlink()
    with pytest.raises(ValueError, match=r"lacks part-01.tar"):
        unpack(tmp_path / "archives", tmp_path / "again")


def measured(out: Path) -> list[tuple[str, str, str]]:
    """Return what the records of a day name as measured, in order."""
    with open_store(f"sqlite:///{out / 'records.db'}") as store:
        found = [each.measurement for each in store.iterate()]
    return [(each.workload_fingerprint, each.backend, each.settings) for each in found]


@pytest.mark.slow
def test_what_needs_torch_is_rehearsed_on_a_processor(tmp_path: Path) -> None:
    """Two ranks with exact gradients, and kernels for the cost model: a report that says so."""
    where = ["--target", "cpu", "--sizes", "small", "--minutes", "60", "--out", str(tmp_path)]
    assert main([*where, "--only", "ranks,calibration"]) == 0
    text = (tmp_path / "gpu-report" / "report.md").read_text()
    assert "Largest gradient error" in text  # of a piece before the last
    assert "12 products in bfloat16 were measured" in text
    steps = tmp_path / "gpu-report" / "steps"
    found = {name: json.loads((steps / f"{name}.json").read_text()) for name in ("ranks", "calibration")}
    assert found["ranks"]["result"]["max_gradient_error"] < 1e-4
    assert len(found["calibration"]["result"]["swept"]) == 12
    text = (tmp_path / "report.md").read_text()
    assert "| ranks |" in text
    assert "| calibration |" in text


@pytest.mark.slow
def test_the_day_is_rehearsed_on_the_software_gpu(
    software_gpu: dict[str, str], probed: Path, tmp_path: Path
) -> None:
    """All but what needs torch's CUDA runs whole, after a kill too; a third call has only that left."""
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
    environment = {**os.environ, **software_gpu, "SOFTWARE_GPU_REPORTS": str(reports)}
    with subprocess.Popen(argv, env=environment, start_new_session=True) as killed:
        wait_until(lambda: len(measured(out)) > 20, timeout_s=3600)
        os.killpg(killed.pid, signal.SIGKILL)
    kept = measured(out)
    for said in ("done (", "done before"):
        done = subprocess.run(
            argv,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        for piece in ("tune", "metaschedule", "kernels"):
            assert f"{piece}: {said}" in done.stderr, done.stderr
        assert done.returncode == 1  # torch reaches no GPU here
        for piece in ("ranks", "calibration"):
            assert f"{piece}: done" not in done.stderr
    assert not reports.exists(), reports.read_text()
    tuned = json.loads((out / "steps" / "tune.json").read_text())["result"][0]
    assert tuned["max_gradient_error"] < 1e-5
    again = measured(out)
    assert again[: len(kept)] == kept
    assert not set(again[len(kept) :]) & set(kept), "measured again"
