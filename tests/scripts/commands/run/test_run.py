"""`tessel run`: real ranks for compiled and for torch stages, orders as CSV, traces, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from document_schemas import check_printed
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from planned_models import CALLS, ENCODER_DECODER
from random_schedules import draw_schedule
from saved_plans import save_planned
from torch import cuda

from tessel.documents import save_document
from tessel.loading import load_plan
from tessel.shapes import make_shape
from tessel.tuned_plan import save_plan
from tuner.numerical_error import LOSS_SHARE, TOLERANCES

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder–decoder with tied embeddings on two ranks; micro-batches in any order."""
    return save_planned(ENCODER_DECODER, "decoder.0", tmp_path_factory.mktemp("plan") / "plan.json")


@pytest.mark.parametrize(
    ("stages", "target"),
    [("compiled", "cpu"), pytest.param("torch", '{"kind":"cuda"}', marks=pytest.mark.slow)],
)
def test_a_plan_runs_and_its_gradients_are_exact(
    stages: str,
    target: str,
    plan: Path,
    tessel: Callable[..., object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's stages run on the CPU even where the plan was made for a GPU."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    path = tmp_path / "plan.json"
    save_plan(msgspec.structs.replace(load_plan(plan), target=target), path)
    trace = tmp_path / "trace.json"
    picture = tmp_path / "real.svg"
    wanted = ("--trace", trace, "--picture", picture, "--overheads", "none", "--model", ENCODER_DECODER)
    done = tessel("run", path, "--stages", stages, "--device", "cpu", "--repeats", 2, *wanted, "--json")
    assert done.status == 0, done.stderr
    report = check_printed(["run"], done.stdout)
    assert report["max_gradient_error"] < 1e-5
    assert report["loss_error"] < 1e-5
    assert (report["is_right"], report["failures"]) == (True, [])
    assert (
        report["reference"]
        == {
            "compiled": "the uncut torch module under plain torch",
            "torch": "the uncut model under plain torch",
        }[stages]
    )
    assert report["checked"]["losses"] == 8  # Four micro-batches of two schedules.
    assert report["worst_gradient"]["tolerance"] == 1e-3
    assert set(report) >= {"searched", "1f1b", "ranks_per_core"}
    assert report["ranks_per_gpu"] == 0
    events = json.loads(trace.read_bytes())["traceEvents"]
    ran = [event for event in events if event.get("cat") == "real"]
    assert len(ran) == len(load_plan(plan).schedule.starts)
    assert min(event["ts"] for event in ran) >= 0
    assert "as it ran" in picture.read_text()


@pytest.mark.slow
def test_weights_in_bfloat16_run_and_are_compared_within_their_own_tolerance(
    plan: Path, tessel: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy has no bfloat16, in which the ranks and the reference both compute."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    location, _, function = ENCODER_DECODER.rpartition(":")
    code = tmp_path / "halves.py"
    code.write_text(
        f"from {location} import {function} as whole\n\n"
        "def build():\n"
        "    module, inputs = whole()\n"
        "    return module.bfloat16(), tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)\n"
    )
    model, path = f"{code}:build", tmp_path / "plan.json"
    save_plan(msgspec.structs.replace(load_plan(plan), model=model), path)
    wanted = ("--stages", "torch", "--model", model, "--repeats", 1, "--overheads", "none", "--json")
    done = tessel("run", path, *wanted)
    assert done.status == 0, done.stderr
    report = check_printed(["run"], done.stdout)
    assert report["worst_gradient"]["tolerance"] == TOLERANCES["bfloat16"]
    assert 0 < report["max_gradient_error"] < TOLERANCES["bfloat16"]
    assert report["loss_error"] < LOSS_SHARE * TOLERANCES["bfloat16"]


@pytest.mark.slow  # overheads of ranks are measured
def test_a_schedule_alone_runs_on_stages_that_sleep_and_keeps_the_overheads(
    tessel: Callable[..., object], tmp_path: Path
) -> None:
    schedule = draw_schedule(make_shape("mshape", 2), 2, np.random.default_rng(0))
    path, stored = tmp_path / "m.json", str(tmp_path / "records.db")
    save_document(path, schedule.to_json())
    options = ("--step", "1ms", "--repeats", 1, "--records", stored)
    done = tessel("run", path, *options, "--json")
    assert done.status == 0, done.stderr
    assert "overheads of 2 ranks measured, and kept in" in done.stderr
    report = check_printed(["run"], done.stdout)
    searched = report["searched"]
    assert searched["simulated_ms"] == schedule.makespan
    assert searched["simulated_ms"] < searched["with_overheads_ms"]
    assert searched["simulated_ms"] < searched["real_ms"]


OWN = Path(__file__).parents[4] / "examples" / "vocabulary_parallel.py"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The file of a schedule without a plan."""
    schedule = draw_schedule(make_shape("mshape", 2), 2, np.random.default_rng(0))
    save_document(tmp_path / "m.json", schedule.to_json())
    return tmp_path / "m.json"


@pytest.mark.slow  # tests/tessel/engine/ranks/test_executor.py runs the same stages
def test_a_schedule_alone_runs_on_stages_of_ones_own(alone: Path, tessel: Callable[..., object]) -> None:
    wanted = ("--stages", f"{OWN}:stages", "--repeats", 1, "--overheads", "none", "--json")
    done = tessel("run", alone, *wanted)
    assert done.status == 0, done.stderr
    assert check_printed(["run"], done.stdout)["max_gradient_error"] < 1e-5


def test_stages_that_a_schedule_cannot_run_on_are_refused(alone: Path, tessel: Callable[..., object]) -> None:
    for stages, message in (
        (f"{OWN}:nothing", "nothing' cannot be imported"),
        ("torch", "needs a plan, and this document is a schedule"),
    ):
        done = tessel("run", alone, "--stages", stages)
        assert done.status in (1, 2)
        assert message in done.stderr


@pytest.mark.slow
def test_torch_calls_of_a_saved_plan_run_on_real_ranks_and_are_exact(
    tessel: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    path = save_planned(CALLS, "layers.0", tmp_path / "plan.json")
    done = tessel(
        *("run", path, "--repeats", 1, "--overheads", "none", "--model", CALLS, "--json"),
    )
    assert done.status == 0, done.stderr
    report = check_printed(["run"], done.stdout)
    assert report["is_right"]
    assert report["max_gradient_error"] < 1e-5
    assert report["loss_error"] < 1e-5


def test_orders_are_written_as_csv_without_a_run(
    plan: Path, tessel: Callable[..., object], tmp_path: Path
) -> None:
    path = tmp_path / "orders.csv"
    assert tessel("run", plan, "--csv", path).status == 0
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert [{cell[0] for cell in row} for row in rows] == [{"0"}, {"1"}]
    assert [cell for cell in rows[1] if cell[1] == "F"] == ["1F0", "1F1", "1F2", "1F3"]
    assert sorted(cell for cell in rows[0] if cell[1] == "F") == ["0F0", "0F1", "0F2", "0F3"]


def test_orders_are_read_back_without_loss_and_a_dead_lock_is_refused(
    plan: Path, tessel: Callable[..., object], tmp_path: Path
) -> None:
    path, again = tmp_path / "orders.csv", tmp_path / "again.csv"
    assert tessel("run", plan, "--csv", path).status == 0
    assert tessel("run", plan, "--orders", path, "--csv", again).status == 0
    assert again.read_text() == path.read_text()
    path.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    done = tessel("run", plan, "--orders", path, "--trust-model")
    assert done.status == 1
    assert "the ranks would wait for each other" in done.stderr
    path.write_text("0F0,0B0\n1F0\n")
    done = tessel("run", plan, "--orders", path, "--trust-model")
    assert "rank 1 runs 1F0 of stage 1, micro-batch 0, but it must run" in done.stderr


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--repeats", "0"], 2, "at least one step"),
        (["--timeout", "soon"], 2, "soon"),
        (["--stages", "onnx"], 2, "onnx"),
        (["--picture", "real.gif"], 2, "real.gif is none of .svg"),
    ],
)
def test_bad_options_are_one_clear_line(
    options: list[str], status: int, message: str, plan: Path, tessel: Callable[..., object]
) -> None:
    done = tessel("run", plan, *options)
    assert done.status == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_torch_stages_of_a_plan_for_another_model_are_refused(
    plan: Path, tessel: Callable[..., object], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    save_plan(msgspec.structs.replace(load_plan(plan), model="mlp:tiny"), path)
    done = tessel("run", path, "--stages", "torch")
    assert done.status == 1
    assert "the plan was made for" in " ".join(done.stderr.split())


@pytest.mark.skipif(cuda.is_available(), reason="is about a machine without a GPU")
def test_without_a_gpu_whatever_asks_for_one_is_one_clear_line(
    plan: Path, tessel: Callable[..., object], tmp_path: Path
) -> None:
    path, csv = tmp_path / "plan.json", tmp_path / "orders.csv"
    for_gpu = {"target": '{"arch":"sm_90a","kind":"cuda"}', "device_model": "NVIDIA H200"}
    save_plan(msgspec.structs.replace(load_plan(plan), **for_gpu), path)
    trusted = [path, "--trust-model"]
    for options in (
        trusted,
        [*trusted, "--stages", "torch"],
        [plan, "--device", "cuda", "--stages", "sleep"],
    ):
        done = tessel("run", *options)
        assert done.status == 1
        assert "no CUDA device: this run is for GPUs" in done.stderr
        assert "Traceback" not in done.stderr
    assert tessel("run", path, "--csv", csv).status == 0
    assert csv.exists()
    done = tessel("run", *trusted, "--device", "cpu")
    assert done.status == 2
    assert "this plan was compiled for NVIDIA H200" in " ".join(done.stderr.split())
