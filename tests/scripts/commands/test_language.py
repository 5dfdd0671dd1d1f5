"""The language model from the command line: trained without measurements, asked, and refused in words."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernel_spaces import cpu, space_of

from benchmarks.trials.in_process import builder_and_runner
from cost_model.language.model_files import load_network
from records import open_store
from scripts.main import main
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
from tuner.language.collecting import CollectionPlan, collect_schedules
from tuner.language.machine import Machine

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

TRAINING = "--distilled 2 --epochs 2 --layers 1 --width 16"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model beside records of two kernels' trials."""
    pytest.importorskip("torch", reason="needs the extra `language`")
    folder = tmp_path_factory.mktemp("language")
    builder, runner = builder_and_runner()
    collect_schedules(
        [(name, space_of(name).module) for name in ("dense:4x8x12", "dense:6x8x16")],
        CollectionPlan(random=20, rounds=0),
        machine=Machine(cpu(), tuning_target(cpu()), environment_of(cpu(), MetaSchedule())),
        records_url=str(folder / "records.db"),
        builder=builder,
        runner=runner,
        on_progress=lambda *each: None,
    )
    words = f"language train --records {folder}/records.db --out {folder}/model {TRAINING} --quiet"
    assert main(words.split()) == 0
    return folder / "model"


@pytest.mark.slow
def test_a_model_writes_schedules_that_are_ranked(tessel: Callable[..., Any], model: Path) -> None:
    known = ("--model", model, "--records", model.parent / "records.db", "--count", 3)
    outcome = tessel("language", "generate", "dense:6x34x60", *known, "--json")
    assert outcome.status == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert (document["kernel"], document["legal_ratio"], len(document["schedules"])) == (
        "dense:6x34x60",
        1,
        3,
    )
    speeds = [each["relative_speed"] for each in document["schedules"]]
    assert speeds == sorted(speeds, reverse=True)
    table = tessel("language", "generate", "dense:6x34x60", *known)
    assert "100% taken as written" in " ".join(table.stdout.split())


@pytest.mark.slow
def test_training_goes_on_from_a_model_without_what_is_held_out(
    tessel: Callable[..., Any], model: Path
) -> None:
    outcome = tessel(
        *("language", "train", "--resume", "--out", model, "--records", model.parent / "records.db"),
        *("--epochs", 1, "--distilled", 2, "--hold-out", "dense:8x8x12 product", "--json"),
    )
    assert outcome.status == 0, outcome.stderr
    manifest = json.loads(outcome.stdout)["manifest"]
    assert (manifest["num_distilled"], manifest["num_kernels"], manifest["shape"]["width"]) == (2, 2, 16)
    lines = (model / "distilled.jsonl").read_text().splitlines()
    assert not any('"product:' in line for line in lines[2:])


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("generate", "sparse:1x2"), 2, "no kernel family 'sparse'"),
        (("generate", "dense:1x2"), 2, "dense has rows×inner×columns"),
        (("generate", "mlp:tiny"), 2, "give one of mlp:tiny#"),
        (("generate", "dense:1x2x3", "--count", "0"), 2, "--count is 0"),
        (("generate", "dense:1x2x3", "--temperature", "0"), 2, "--temperature is 0.0"),
        (("generate", "dense:1x2x3", "--model", "nowhere"), 2, "holds no language model"),
        (("generate", "dense:1x2x3", "--target", "nvidia/nvidia-a100"), 1, "cannot be measured here"),
        (("train", "--hold-out", "dense product convolution depthwise"), 2, "every kind of kernel"),
        (("train", "--learning-rate", "2"), 2, "--learning-rate is 2.0"),
        (("train", "--layers", "40"), 2, "at most 500,000"),
        (("train", "--batch", "3"), 2, "without --rounds"),
        (("train", "--records", "none.db"), 1, "0 trials to learn from"),
        (("evaluate", "--trials", "0"), 2, "--trials is 0"),
        (("evaluate", "--proposers", "random,nobody"), 2, "--proposers names 'nobody'"),
        (("evaluate", "--proposers", "random", "--model", "nowhere"), 2, "does not propose"),
        (("collect", "--random", "-1"), 2, "--random is -1"),
        (("collect", "--kernels", "sparse:1x2"), 2, "no kernel family 'sparse'"),
        (("collect", "--kernels", "dense:1x2x3", "--count", "3"), 2, "no kernel is drawn"),
        (("collect", "--target", "nvidia/nvidia-a100"), 1, "cannot be measured here"),
    ],
)
def test_bad_input_is_one_line(
    tessel: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    out = ("--out", tmp_path / "out") if arguments[0] == "train" else ()
    outcome = tessel("language", *arguments, *out, "--quiet")
    assert said in outcome.stderr
    assert outcome.status == status
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_model_of_another_number_of_threads_is_refused(tessel: Callable[..., Any], model: Path) -> None:
    outcome = tessel("language", "generate", "dense:4x8x8", "--model", model, "--threads", "2", "--quiet")
    assert outcome.status == 2
    assert "with 1 threads" in outcome.stderr


def test_without_torch_one_is_told_how_to_get_it(
    tessel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "torch" else known(name, *rest)
    )
    outcome = tessel("language", "train")
    assert outcome.status == 2
    assert "torch is not installed" in outcome.stderr
    assert "pip install -c constraints.txt -e '.[language]'" in outcome.stderr


def interrupted(words: str, *, after: str) -> str:
    """Start a command, interrupt it once it says something, and return the rest of what it said."""
    command = [sys.executable, "-m", "scripts", *words.split()]
    # A test run in the background ignores SIGINT, and its children would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(after, line):
            break
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == 130
    return rest


@pytest.mark.slow
@pytest.mark.slow
def test_an_interrupted_training_leaves_a_whole_model(model: Path, tmp_path: Path) -> None:
    training = TRAINING.replace("--epochs 2", "--epochs 100000")
    rest = interrupted(
        f"language train --records {model.parent}/records.db --out {tmp_path}/model {training}",
        after=r"training.*: [2-9]",
    )
    assert rest.splitlines()[-1] == "tessel: interrupted; finished measurements are kept"
    assert load_network(tmp_path / "model", cpu().text, 1)[1].num_distilled == 2


@pytest.mark.slow
def test_an_interrupted_collection_keeps_its_trials_and_goes_on(
    tessel: Callable[..., Any], tmp_path: Path
) -> None:
    words = (
        "language collect --kernels dense:16x64x96 --random 6 --rounds 40 --batch 6 "
        f"--records {tmp_path}/records.db --out {tmp_path}/draft"
    )
    rest = interrupted(words, after="guided round")
    assert "finished measurements are kept" in rest.splitlines()[-1]
    with open_store(str(tmp_path / "records.db")) as store:
        before = sum(1 for _ in store.iterate(backend="metaschedule"))
    assert 6 <= before < 246
    words = words.replace("--rounds 40", f"--rounds {before // 6 + 1}")
    document = json.loads(tessel(*words.split(), "--json").stdout)
    total = 6 * (before // 6 + 2)
    assert (document["trials"], document["new_trials"]) == (total, total - before)


def test_a_collection_of_no_trials_is_refused(tessel: Callable[..., Any], tmp_path: Path) -> None:
    words = ["language", "collect", "--kernels", "dense:16x64x96", "--random", "0", "--rounds", "0"]
    refused = tessel(*words, "--records", f"{tmp_path}/records.db")
    assert refused.status == 2
    assert "ask for no trial" in refused.stderr


@pytest.mark.slow
def test_trials_are_collected_once(tessel: Callable[..., Any], tmp_path: Path) -> None:
    arguments = (
        *("language", "collect", "--kernels", "dense:4x8x12 dense:6x8x16", "--random", 12, "--rounds", 1),
        *("--batch", 4, "--records", tmp_path / "records.db", "--json"),
    )
    outcome = tessel(*arguments)
    assert outcome.status == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert (document["kernels"], document["trials"], document["new_trials"]) == (2, 32, 32)
    assert len(document["mean_quality"]) == 2
    again = json.loads(tessel(*arguments).stdout)
    assert (again["new_trials"], again["mean_quality"]) == (0, [None, None])
