"""Steps of the GPU report run on a CPU as on a GPU; runs resume, keep to a budget, and say what failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.gpu_report import steps
from benchmarks.gpu_report.__main__ import main
from benchmarks.gpu_report.calibration import calibrate
from benchmarks.gpu_report.device import CpuDevice, device_named
from benchmarks.gpu_report.markdown import report
from benchmarks.gpu_report.networks import NETWORKS, TYPES
from benchmarks.gpu_report.runner import run_steps, step_command
from benchmarks.gpu_report.steps import (
    Context,
    ceilings,
    hops,
    launches,
    network,
    schedules,
    steps_for,
    training,
)
from benchmarks.gpu_report.timing import time_in_turn
from cost_model.gpu.typed.kernels import Product
from cost_model.gpu.typed.model import gpu_kernel_us
from cost_model.gpu.typed.sheets import find_sheet
from records.files.exchange import read_records
from tessel.profiles import load_profile
from tests.harness.local_fleet import ROOT, wait_until
from tests.harness.processes import has_ended_by_id
from tuner.errors import TunerError

pytestmark = [pytest.mark.torch, pytest.mark.tvm]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    folder = tmp_path_factory.mktemp("report")
    (folder / "steps").mkdir()
    return Context(device=CpuDevice(), sizes_name="small", folder=folder)


def keep(context: Context, name: str, result: dict[str, Any]) -> dict[str, Any]:
    plain = json.loads(json.dumps(result))
    (context.folder / "steps" / f"{name}.json").write_text(json.dumps({"result": plain}))
    return plain


@pytest.fixture(scope="module")
def ceilings_found(context: Context) -> dict[str, Any]:
    return keep(context, "ceilings", ceilings(context))


def test_ceilings_and_launches_are_rates_of_what_was_done(
    context: Context, ceilings_found: dict[str, Any]
) -> None:
    found = ceilings_found
    for dtype in TYPES:
        latency_us = found["latency_us"][dtype]["median"]
        assert found["tflops"][dtype] == pytest.approx(2 * context.sizes.product**3 / latency_us / 1e6)
    assert found["copy_gb_s"] > 0
    chained = launches(context)
    assert chained["per_kernel_us"]["one by one"] * context.sizes.chain == pytest.approx(
        chained["latency_us"]["one by one"]["median"]
    )


@pytest.mark.slow
def test_a_block_in_training_becomes_a_profile_that_is_planned_against_1f1b(context: Context) -> None:
    found = training(context)
    costs = found["float32"]
    # What a block of width 32 holds: 12 · 32² weights, 13 · 32 biases and norms, all float32.
    assert costs["weight_bytes"] == 4 * (12 * 32**2 + 13 * 32)
    assert costs["boundary_bytes"] == 4 * 16 * 32
    assert costs["saved_bytes"] >= costs["boundary_bytes"]
    assert found["bfloat16"]["weight_bytes"] * 2 == costs["weight_bytes"]
    profile = load_profile(context.folder / "profile.csv")
    assert len(profile.layers) == context.sizes.num_blocks
    keep(context, "hops", hops(context))
    planned = schedules(context)["2"]
    assert planned["best"]["step_ms"] >= planned["best"]["lower_bound_ms"] * (1 - 1e-9)
    (one_f_one_b,) = [row for row in planned["baselines"] if row["name"] == "1f1b"]
    assert planned["best"]["step_ms"] <= one_f_one_b["step_ms"] * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [pytest.param(each, marks=pytest.mark.slow) for each in TYPES])
def test_every_program_of_a_network_gives_torchs_numbers(
    context: Context, ceilings_found: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module: module)  # the compiler takes a minute
    found = network(context, "block", dtype)
    assert {"torch eager", "torch.compile"} <= set(found["latency_us"])
    assert all(error < (1e-5 if dtype == "float32" else 1e-2) for error in found["errors"].values())
    assert found["tflop"] > 0
    for label, each in found["latency_us"].items():
        share = found["least_bytes"] / each["median"] / 1e3 / ceilings_found["copy_gb_s"]
        assert found["share_of_copy"][label] == pytest.approx(share)
    assert "tuner: mix" in found["latency_us"]
    assert found["new_measurements"] > 0


def test_a_wrong_result_shows_as_an_error_and_a_tuner_that_cannot_says_why(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise TunerError("the device is another's\nand more")

    monkeypatch.setattr(torch, "compile", lambda module: lambda *inputs: module(*inputs) + 1)
    monkeypatch.setattr(steps, "start_session", refuse)
    found = network(context, "block", "bfloat16")
    assert found["errors"]["torch.compile"] > 0.1
    assert found["notes"] == {"tuner": "the device is another's"}


@pytest.mark.slow
def test_the_whole_report_on_a_cpu(tmp_path: Path) -> None:
    out = ["--target", "cpu", "--sizes", "small", "--out", str(tmp_path / "report")]
    assert main([*out, "--minutes", "15"]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Everything ran." in text
    assert "tuner: mix" in text
    assert list(read_records(tmp_path / "report" / "records.jsonl"))
    ranks = json.loads((tmp_path / "report" / "steps" / "ranks.json").read_text())["result"]
    assert ranks["max_gradient_error"] < 1e-4
    assert "12 products in bfloat16 were measured" in text


@pytest.mark.slow
def test_the_cost_model_is_nearer_to_a_device_after_a_sweep_of_it() -> None:
    """One that takes twice as long for everything as its data sheet lets expect."""
    sheet = find_sheet("h100")

    def measure_us(product: Product) -> float:
        return 2 * gpu_kernel_us(product, "h100").latency_us

    found = calibrate(sheet.device.name, largest=4096, count=40, measure_us=measure_us)
    before, after = found["mean_error"].values()
    assert before == pytest.approx(0.5, abs=0.05)
    assert after < 0.1
    asked, others = ({tuple(row[:3]) for row in found[name]} for name in ("swept", "held"))
    assert (len(asked), len(others)) == (40, 20)
    assert not asked & others


def test_steps_resume_and_a_failure_costs_only_itself(tmp_path: Path) -> None:
    commands = {
        "good": script("print('noise'); print('{\"value\": 1}')"),
        "bad": script("raise RuntimeError('no device answered')"),
        "silent": script(""),
        "late": script("print('{\"value\": 2}')"),
    }
    started: list[str] = []

    def command(name: str) -> list[str]:
        started.append(name)
        return commands[name]

    first = run_steps(list(commands), tmp_path, command=command, budget_s=120, say=lambda line: None)
    assert first["good"]["result"] == {"value": 1}
    assert "no device answered" in first["bad"]["failure"]
    assert first["silent"]["failure"] == "printed no result"
    assert first["late"]["result"] == {"value": 2}
    started.clear()
    again = run_steps(list(commands), tmp_path, command=command, budget_s=120, say=lambda line: None)
    assert started == ["bad", "silent"]
    assert again["good"] == first["good"]


def test_a_step_that_hangs_is_ended_with_the_budget_and_no_other_begun(tmp_path: Path) -> None:
    commands = {"hangs": script("import time; time.sleep(600)"), "next": script("print('{}')")}
    found = run_steps(
        list(commands), tmp_path, command=commands.__getitem__, budget_s=6, say=lambda line: None
    )
    assert found["hangs"]["failure"].startswith("ended after 2 s")
    assert found["next"]["failure"].startswith("not begun")


def test_what_a_step_has_started_ends_with_it(tmp_path: Path) -> None:
    """Such as the tuner's command, whose kernels would disturb the step that comes next."""
    sleeps = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    starts = f"import subprocess, sys; made = subprocess.Popen({sleeps})"
    noted = f"import pathlib; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(made.pid))"
    hangs = script(f"{starts}; {noted}; made.wait()")
    found = run_steps(["hangs"], tmp_path, command=lambda name: hangs, budget_s=30, say=lambda line: None)
    assert "ended after 10 s" in found["hangs"]["failure"]
    started = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended_by_id(started))


def test_a_step_ends_with_who_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    """It would go on to use the device beside the next call's steps, in its session of its own."""
    noted = f"import os, pathlib; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    runner = "from benchmarks.gpu_report import runner; from pathlib import Path"
    step = script(f"{runner}; runner.end_with_starter(); {noted}; import time; time.sleep(600)")
    runs = f"runner.run_steps(['step'], Path({str(tmp_path)!r}), command=lambda name: {step!r}, budget_s=600)"
    with subprocess.Popen(script(f"{runner}; {runs}"), cwd=ROOT) as starter:
        wait_until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
        starter.kill()
    wait_until(lambda: has_ended_by_id(int((tmp_path / "pid").read_text())))


def test_clocks_temperatures_and_who_runs_what_stand_beside_timings() -> None:
    timed = {
        "latency_us": {"torch eager": {"median": 2.0, "low": 1.0, "high": 3.0}},
        "state": {"before": {"temperature_c": 40.0}, "after": {"temperature_c": 48.0}},
        "share_of_ceiling": {},
        "share_of_copy": {},
        "errors": {"torch eager": 0.0},
        "notes": {},
        "parts": {"tvm": 3, "torch": 2},
        "single_backends_us": {"tvm": 7.0},
        "launch_penalty_us": 1.5,
        "new_measurements": 11,
    }
    latency_us = dict.fromkeys(
        ("forward", "backward", "backward_input", "backward_weight"), timed["latency_us"]["torch eager"]
    )
    block = {"latency_us": latency_us, "state": timed["state"], "saved_bytes": 1, "peak_bytes": 2}
    text = report(
        {"device": "NVIDIA H200"},
        {"network-gpt2-float32": {"result": timed}, "training": {"result": {"bfloat16": block}}},
    )
    assert "Device before → after, gpt2-float32: temperature_c 40 → 48." in text
    assert "Device before → after, bfloat16: temperature_c 40 → 48." in text
    assert (
        "gpt2-float32, tuner: parts of torch 2, tvm 3; whole programs, as it measured them, us: tvm 7.0"
        in text
    )


def test_results_of_another_device_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "configuration.json").write_text('{"device": "another"}')
    with pytest.raises(SystemExit):
        main(["--target", "cpu", "--sizes", "small", "--out", str(tmp_path)])
    assert "give another --out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--target", "cpu", "--sizes", "small", "--only", "nothing", "--out", str(tmp_path)])
    assert "there is no step nothing" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do() -> None:
    with pytest.raises(SystemExit, match=r"install a CUDA build of torch, or try .* --target cpu"):
        device_named("cuda")


def test_programs_run_in_turn_with_flushed_caches_and_the_devices_state() -> None:
    class Counted(CpuDevice):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

        def state(self) -> dict[str, float]:
            return {"temperature_c": 40.0 + self.flushes}

        def time_us(self, run: Any) -> float:
            return float(run())

    device = Counted()
    found = time_in_turn(device, {"a": lambda: 1.0, "b": lambda: 3.0}, rounds=4, seconds=60)
    assert device.flushes == 8
    assert found["latency_us"]["a"] == {"median": 1.0, "low": 1.0, "high": 1.0, "samples": 4.0}
    assert found["latency_us"]["b"]["median"] == 3.0
    assert found["state"]["before"] == {"temperature_c": 40.0}
    assert found["state"]["after"] == {"temperature_c": 48.0}


def test_a_report_names_every_failure() -> None:
    found = {name: {"failure": f"{name} broke"} for name in steps_for("full")}
    text = report({"device": "NVIDIA H200"}, found)
    assert all(f"`{name}`: {name} broke" in text for name in found)
    assert len(found) == 7 + len(TYPES) * len(NETWORKS["full"])
    assert step_command("hops", target="cuda", sizes="full", folder=Path("x"))[-1] == "x"
