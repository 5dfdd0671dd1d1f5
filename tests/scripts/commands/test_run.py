"""`tessel run`: real ranks for compiled and for torch stages, orders as CSV, traces, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from document_schemas import check_printed
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from planned_models import CALLS, ENCODER_DECODER, plan_on_tvm
from random_schedules import draw_schedule
from torch import cuda

from tessel.comparison import compare_schedules
from tessel.documents import save_document
from tessel.plan import Plan, load_plan, save_plan
from tessel.shapes import make_shape
from tuner.errors import TunerError
from tuner.numerical_error import LOSS_SHARE, TOLERANCES
from tuner.plan import ModelPlan
from tuner.programs.compiled_stages import ProgramSpec, check_spec, load_programs, reference_step
from tuner.programs.torch_programs import TorchProgramSpec, provide_programs

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder–decoder with tied embeddings on two ranks; micro-batches in any order."""
    return save_planned(ENCODER_DECODER, "decoder.0", tmp_path_factory.mktemp("plan") / "plan.json")


def save_planned(model: str, cut: str, path: Path) -> Path:
    tuned = plan_on_tvm(model, [cut])
    placement = make_shape("vshape", 2, choose_backward=True)
    schedule = draw_schedule(placement, 4, np.random.default_rng(0))
    save_plan(
        Plan(
            **{name: getattr(tuned, name) for name in tuned.__struct_fields__},
            step_us=1000.0,
            memory_limit_bytes=None,
            static_bytes=(0, 0),
            optimizer="sgd",
            placement=placement,
            schedule=schedule,
            comparison=compare_schedules(schedule).rows,
        ),
        path,
    )
    return path


@pytest.mark.parametrize(("stages", "target"), [("compiled", "cpu"), ("torch", '{"kind":"cuda"}')])
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
            "compiled": "the uncut, unpartitioned program that was imported from the model",
            "torch": "the uncut torch module under plain torch",
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


def test_a_schedule_alone_runs_on_stages_of_ones_own(tessel: Callable[..., object], tmp_path: Path) -> None:
    schedule = draw_schedule(make_shape("mshape", 2), 2, np.random.default_rng(0))
    path = tmp_path / "m.json"
    save_document(path, schedule.to_json())
    own = Path(__file__).parents[3] / "examples" / "vocabulary_parallel.py"
    done = tessel("run", path, "--stages", f"{own}:stages", "--repeats", 1, "--overheads", "none", "--json")
    assert done.status == 0, done.stderr
    assert check_printed(["run"], done.stdout)["max_gradient_error"] < 1e-5
    for stages, message in (
        (f"{own}:nothing", "nothing' cannot be imported"),
        ("torch", "needs a plan, and this document is a schedule"),
    ):
        done = tessel("run", path, "--stages", stages)
        assert done.status in (1, 2)
        assert message in done.stderr


@dataclass(frozen=True)
class Case:
    """A fault, the tensor that must be named, and what must be said of it."""

    fault: dict[str, object]
    place: str
    said: str
    options: tuple[str, ...] = ()


WRONG = {
    "a loss is NaN": Case(
        {"place": "loss", "kind": "NaN", "stage": 1, "micro_batch": 1},
        "the loss of micro-batch 1 (stage 1, searched)",
        "is NaN in 1 of 1 values, where the reference is finite",
    ),
    "a gradient is NaN": Case(
        {"place": "gradient", "kind": "NaN", "stage": 0, "weight": "linear.bias"},
        "the gradient of linear.bias (stage 0, searched)",
        "is NaN in 8 of 8 values, where the reference is finite",
        ("--json",),
    ),
    "a gradient is doubled": Case(
        {"place": "gradient", "kind": "doubled", "stage": 1, "weight": "linear.weight"},
        "the gradient of linear.weight (stages 0 + 1, searched)",
        "of its largest value, more than the tolerance 1e-03",
        ("--json",),
    ),
    "a gradient is missing": Case(
        {"place": "gradient", "kind": "missing", "stage": 0, "weight": "linear.bias"},
        "the gradient of linear.bias (stage",
        "of its largest value, more than the tolerance",
    ),
    "gradients go back of another sign": Case(
        {"place": "returned", "kind": "other sign", "stage": 1},
        "the gradient of linear.weight (stages 0 + 1, searched)",
        "of its largest value, more than the tolerance",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if index < 2 else [pytest.mark.slow], id=name)
        for index, name in enumerate(WRONG)
    ],
)
def test_wrong_results_of_real_ranks_end_with_status_1_and_name_the_tensor(
    name: str, tessel: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ended with status 0 whatever its errors; NaN was no error, or a bare exception."""
    case = WRONG[name]
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("FAULT", json.dumps(case.fault))
    path = tmp_path / "v.json"
    save_document(path, draw_schedule(make_shape("vshape", 2), 2, np.random.default_rng(0)).to_json())
    wanted = ("--stages", "faulty_stages:stages", "--repeats", 1, "--overheads", "none")
    done = tessel("run", path, *wanted, *case.options)
    said = " ".join(done.stderr.split())
    assert done.status == 1
    assert "the results are not those of faulty_stages:reference" in said
    assert case.place in said
    assert case.said in said
    assert "Traceback" not in said
    if case.options:
        report = json.loads(done.stdout)
        assert report["is_right"] is False
        assert report["searched"]["real_ms"] > 0
        assert report["failures"][0]["tensor"] == case.fault["weight"]
        assert report["worst_gradient"] == report["failures"][0]
        assert (report["max_gradient_error"] is None) == (case.fault["kind"] == "NaN")


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "place"),
    [
        (None, ""),
        ({"place": "sent", "kind": "stale", "stage": 0}, "the loss of micro-batch 1 (stage 1, searched)"),
        (
            {"place": "gradient", "kind": "NaN", "stage": 0, "weight": "encoder.weight"},
            "the gradient of encoder.weight (stage 0, searched) is NaN",
        ),
    ],
    ids=["right", "stale", "NaN"],
)
def test_compiled_stages_of_real_ranks_are_checked_alike(
    fault: dict[str, object] | None,
    place: str,
    plan: Path,
    tessel: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("FAULTY_PLAN", str(plan))
    if fault is not None:
        monkeypatch.setenv("FAULT", json.dumps(fault))
    done = tessel("run", plan, "--stages", "faulty_stages:stages", "--repeats", 1, "--overheads", "none")
    assert done.status == (0 if fault is None else 1), done.stderr
    assert place in " ".join(done.stderr.split())


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


def test_torch_stages_of_a_model_of_the_zoo_are_refused(
    plan: Path, tessel: Callable[..., object], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    save_plan(msgspec.structs.replace(load_plan(plan), model="gpt2:tiny"), path)
    done = tessel("run", path, "--stages", "torch")
    assert done.status == 1
    assert "is not a torch module of yours" in done.stderr


TOUCHES = "from pathlib import Path\nPath({marker!r}).touch()\ndef build(): pass\n"


@pytest.mark.parametrize("stages", ["compiled", "torch"])
def test_code_that_a_plan_names_is_run_only_where_the_user_names_it_too(
    stages: str, plan: Path, tessel: Callable[..., object], tmp_path: Path
) -> None:
    path, code, marker = tmp_path / "plan.json", tmp_path / "theirs.py", tmp_path / "marker"
    code.write_text(TOUCHES.format(marker=str(marker)))
    save_plan(msgspec.structs.replace(load_plan(plan), model=f"{code}:build"), path)
    options = ("run", path, "--stages", stages, "--device", "cpu", "--overheads", "none")
    done = tessel(*options)
    assert done.status == 2
    message = " ".join(done.stderr.split())
    assert f"this plan names the Python code '{code}:build'" in message
    assert "--trust-model" in message
    done = tessel(*options, "--model", "other.py:build")
    assert done.status == 2
    assert "was tuned for" in " ".join(done.stderr.split())
    assert tessel("run", path, "--csv", tmp_path / "orders.csv").status == 0
    for command in (("draw", path, "--out", tmp_path / "page.html"), ("compare", path)):
        assert tessel(*command).status == 0
    assert not marker.exists()
    done = tessel(*options, "--model", f"{code}:build")
    assert done.status in (1, 2)  # the code runs, and returns no model
    assert marker.exists()


def test_a_plan_is_not_trusted_by_those_who_run_it_without_the_command(plan: Path) -> None:
    tuned = ModelPlan(**{name: getattr(load_plan(plan), name) for name in ModelPlan.__struct_fields__})
    spec = ProgramSpec(plan=tuned)
    of_torch = msgspec.json.encode(TorchProgramSpec(plan=tuned)).decode()
    runs = (
        lambda: check_spec(spec),
        lambda: load_programs(spec, [0]),
        lambda: reference_step(spec, 1),
        lambda: provide_programs(of_torch, [0]),
    )
    for run in runs:
        with pytest.raises(TunerError, match="names the Python code 'planned_models:encoder_decoder'"):
            run()


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
