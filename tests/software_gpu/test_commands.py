"""Whole commands on the software GPU, each in a process of its own: what a user of a GPU would type."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from records import open_store
from tests.harness.local_fleet import LocalFleet, wait_until
from tests.harness.software_gpu.build import ROOT
from tuner.fleet.task_queue import TaskQueue
from tuner.frontend.zoo import MODELS

pytestmark = pytest.mark.tvm

Command = Callable[..., subprocess.CompletedProcess[str]]

NETWORKS = [f"{name}:tiny" for name in MODELS]

_KEEP_SPEED = (
    "import sys; from tests.samples.known_speed import keep_made_up_speed as keep; keep(sys.argv[1], 'cuda')"
)


@pytest.fixture(scope="module")
def probed(software_gpu: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return records that know the device's speed: its probe is 2 GFLOP, an hour's work here."""
    path = tmp_path_factory.mktemp("probed") / "records.db"
    environment = {**os.environ, **software_gpu}
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests' / 'samples'}"
    subprocess.run([sys.executable, "-c", _KEEP_SPEED, f"sqlite:///{path}"], env=environment, check=True)
    return path


@pytest.fixture
def command(software_gpu: dict[str, str], tmp_path: Path) -> Command:
    """Return what runs a command on the device and asserts that nothing was reported."""

    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "reports"
        done = subprocess.run(
            [sys.executable, "-m", "scripts", *arguments],
            env={**os.environ, **software_gpu, "SOFTWARE_GPU_REPORTS": str(path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr[-3000:]
        assert not path.exists(), path.read_text()
        return done

    return run


@pytest.fixture
def measured(command: Command, probed: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return what runs a command that measures, by TVM alone, and returns its document."""
    records = shutil.copy(probed, tmp_path / "records.db")

    def run(*arguments: str) -> Any:
        where = ("--target", "cuda", "--backends", "tvm", "--records", f"sqlite:///{records}")
        return json.loads(command(*arguments, *where, "--json").stdout)

    return run


@pytest.mark.slow  # device_probe.py says what kernels and torch find
def test_doctor_finds_the_device_and_no_torch_for_it(command: Command) -> None:
    findings = {each["name"]: each for each in json.loads(command("doctor", "--json").stdout)["findings"]}
    assert findings["gpu"]["detail"] == "NVIDIA Software GPU, 580.0"
    assert findings["gpu by tvm"] | {"fix": ""} == {
        "name": "gpu by tvm",
        "status": "ok",
        "detail": "NVIDIA Software GPU compute 9.0",
        "fix": "",
    }
    assert findings["gpu by torch"]["status"] == "missing"


@pytest.mark.slow
def test_a_network_is_partitioned_and_its_records_say_where(
    measured: Callable[..., Any], tmp_path: Path
) -> None:
    first = measured("partition", "mlp:tiny")
    assert first["max_relative_error"] < 1e-5
    assert first["new_measurements"] > 4
    again = measured("partition", "mlp:tiny")
    assert again["new_measurements"] == 0
    with open_store(f"sqlite:///{tmp_path / 'records.db'}") as store:
        kept = [each.measurement for each in store.iterate()]
    assert len(kept) >= first["new_measurements"]
    assert {each.environment.device_model for each in kept} == {"NVIDIA Software GPU"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_of_the_zoo_is_partitioned(name: str, measured: Callable[..., Any]) -> None:
    assert measured("partition", name)["max_relative_error"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "placement"),
    [*((name, "vshape") for name in NETWORKS), ("gpt2:tiny", "mshape"), ("gpt2:tiny", "auto")],
)
def test_a_whole_training_step_is_tuned(
    name: str, placement: str, measured: Callable[..., Any], tmp_path: Path
) -> None:
    """Forward and all gradients, two stages, over shards where M-shape divides them."""
    given = ("--devices", "2", "--micro-batches", "4", "--hop-us", "5", "--link", "10GB/s", "--work", "1")
    plan = measured("tune", name, *given, "--placement", placement, "--out", str(tmp_path / "out"))
    assert plan["max_relative_error"] < 1e-5
    assert plan["max_gradient_error"] < 1e-5
    saved = json.loads(Path(plan["plan"]).read_bytes())
    assert saved["device_model"] == "NVIDIA Software GPU"
    by_name = {each["schedule"]: each["makespan"] for each in plan["comparison"]}
    assert by_name["searched"] <= by_name["1f1b"]


@pytest.mark.slow
def test_kernels_are_tuned_by_trials(command: Command, probed: Path, tmp_path: Path) -> None:
    records = shutil.copy(probed, tmp_path / "records.db")
    where = ("--target", "cuda", "--backends", "tvm,metaschedule", "--trials", "4")
    done = command("partition", "mlp:tiny", *where, "--records", f"sqlite:///{records}", "--json")
    assert json.loads(done.stdout)["max_relative_error"] < 1e-5


@pytest.mark.slow
@pytest.mark.torch
def test_a_language_model_learns_from_trials_and_proposes(
    command: Command, probed: Path, tmp_path: Path
) -> None:
    records, model = shutil.copy(probed, tmp_path / "records.db"), str(tmp_path / "model")
    where = ("--target", "cuda", "--records", f"sqlite:///{records}")
    collect = ("--kernels", "product:1x16x16x16 dense:16x16x32,relu", "--random", "17", "--rounds", "0")
    found = json.loads(command("language", "collect", *where, *collect, "--json").stdout)
    assert found["new_trials"] == 34
    small = ("--distilled", "2", "--epochs", "3", "--layers", "1", "--width", "16")
    command("language", "train", *where, *small, "--out", model)
    written = json.loads(
        command("language", "generate", "product:1x16x32x16", *where, "--model", model, "--json").stdout
    )
    assert written["schedules"]
    tuned = ("--backends", "tvm,metaschedule", "--trials", "3", "--proposer", "language")
    done = command("partition", "mlp:tiny", *where, *tuned, "--language-model", model, "--json")
    assert json.loads(done.stdout)["max_relative_error"] < 1e-5


@pytest.mark.slow
def test_a_program_for_the_device_is_compiled_into_a_file(
    measured: Callable[..., Any], tmp_path: Path
) -> None:
    document = measured("compile", "mlp:tiny", "--out", str(tmp_path / "net.tessel"))
    assert document["max_relative_error"] < 1e-5
    assert document["latency_us"]["program"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_stages_are_cut_and_measured(name: str, measured: Callable[..., Any]) -> None:
    document = measured("stages", name, "--devices", "2", "--train")
    assert document["max_error"] < 1e-5
    assert all(stage["forward_us"] > 0 and stage["backward_us"] > 0 for stage in document["stages"])


@pytest.mark.slow
def test_a_fleets_machine_measures_for_one_that_has_no_gpu(
    software_gpu: dict[str, str], probed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    reports = tmp_path / "reports"
    variables = {**software_gpu, "SOFTWARE_GPU_REPORTS": str(reports)}
    records = shutil.copy(probed, tmp_path / "records.db")
    with LocalFleet() as fleet:
        fleet.start_device_worker("--target", "cuda", **variables)
        tasks = TaskQueue(fleet.address)
        wait_until(lambda: bool(tasks.workers()))
        tasks.close()
        where = ("--target", "cuda", "--backends", "tvm", "--records", f"sqlite:///{records}", "--json")
        done = subprocess.run(
            [sys.executable, "-m", "scripts", "partition", "mlp:tiny", *where, "--fleet", fleet.address],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["max_relative_error"] < 1e-5
    assert not reports.exists(), reports.read_text()
