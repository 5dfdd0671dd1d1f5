"""The language model from the command line: trained without measurements, asked, and refused in words."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cost_model.draft.draft_model import load_draft_model
from scripts.main import main

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

TRAINING = "--families dense --random 1 --samples 4 --epochs 2 --layers 1 --width 16 --quiet"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="needs the extra `language`")
    pytest.importorskip("transformers", reason="needs the extra `language`")
    folder = tmp_path_factory.mktemp("language")
    words = f"language train --records {folder}/records.db --out {folder}/model {TRAINING}"
    assert main(words.split()) == 0
    return folder / "model"


def test_a_model_writes_legal_schedules(tessel: Callable[..., Any], model: Path) -> None:
    arguments = ("language", "generate", "dense:6x34x60", "--model", model, "--count", 3)
    outcome = tessel(*arguments, "--json")
    assert outcome.status == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert (document["kernel"], document["legal_ratio"]) == ("dense:6x34x60", 1.0)
    assert len(document["proposals"]) == 3
    assert all(each["legal"] and each["decisions"] for each in document["proposals"])
    table = tessel(*arguments)
    assert table.status == 0
    assert "100% legal" in " ".join(table.stdout.split())


def test_training_goes_on_from_a_model(tessel: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    outcome = tessel(
        *("language", "train", "--resume", "--out", model, "--records", tmp_path / "none.db", "--json")
    )
    assert outcome.status == 0, outcome.stderr
    manifest = json.loads(outcome.stdout)["manifest"]
    assert (manifest["num_texts"], manifest["num_trials"]) == (4, 0)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("generate", "sparse:1x2"), 2, "no kernel family 'sparse'"),
        (("generate", "dense:1x2"), 2, "dense has rows×inner×columns"),
        (("generate", "mlp:tiny"), 2, "give one of mlp:tiny#"),
        (("generate", "dense:1x2x3", "--count", "0"), 2, "--count is 0"),
        (("generate", "dense:1x2x3", "--temperature", "0"), 2, "--temperature is 0.0"),
        (("generate", "dense:1x2x3", "--model", "nowhere"), 2, "holds no language model"),
        (("generate", "dense:1x2x3", "--target", "nvidia/nvidia-a100"), 2, "not this machine's processor"),
        (("train", "--families", "dense,sparse"), 2, "--families names 'sparse'"),
        (("train", "--best", "0"), 2, "--best is a share"),
        (("train", "--kernels", "dense:1x2x3"), 2, "without --trials"),
        (("evaluate", "--trials", "0"), 2, "--trials is 0"),
        (("collect", "--random", "0"), 2, "--random is 0"),
        (("collect", "--kernels", "sparse:1x2"), 2, "no kernel family 'sparse'"),
        (("collect", "--kernels", "dense:1x2x3", "--count", "3"), 2, "no kernel is drawn"),
        (("collect", "--target", "nvidia/nvidia-a100"), 2, "not this machine's processor"),
    ],
)
def test_bad_input_is_one_line(
    tessel: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    pytest.importorskip("transformers", reason="needs the extra `language`")
    out = ("--out", tmp_path / "out") if arguments[0] in ("train", "collect") else ()
    outcome = tessel("language", *arguments, *out, "--quiet")
    assert outcome.status == status
    assert said in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_a_model_of_another_number_of_threads_is_refused(tessel: Callable[..., Any], model: Path) -> None:
    outcome = tessel("language", "generate", "dense:4x8x8", "--model", model, "--threads", "2", "--quiet")
    assert outcome.status == 2
    assert "with 1 threads" in outcome.stderr


def test_without_the_extra_one_is_told_how_to_get_it(
    tessel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "transformers" else known(name, *rest)
    )
    outcome = tessel("language", "train")
    assert outcome.status == 2
    assert "transformers is not installed" in outcome.stderr
    assert "pip install -c constraints.txt -e '.[language]'" in outcome.stderr


def test_an_interrupted_training_leaves_a_whole_model(tessel: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra `language`")
    words = f"language train --records {tmp_path}/records.db --out {tmp_path}/model {TRAINING}"
    command = [sys.executable, "-m", "scripts", *words.replace("--epochs 2", "--epochs 100000").split()]
    command.remove("--quiet")
    # A test run in the background ignores SIGINT, and its children would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    for line in process.stderr:
        if "pre-training" in line and ": 0/" not in line:
            break
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == 130
    assert rest.splitlines()[-1] == "tessel: interrupted; finished measurements are kept"
    outcome = tessel("language", "generate", "dense:4x8x8", "--model", tmp_path / "model", "--json")
    assert outcome.status == 0, outcome.stderr
    # How many distinct ones it finds depends on how far training came.
    proposals = json.loads(outcome.stdout)["proposals"]
    assert 1 <= len(proposals) <= 8
    assert all(each["legal"] for each in proposals)


@pytest.mark.slow
def test_collected_trials_become_a_draft_model_once(tessel: Callable[..., Any], tmp_path: Path) -> None:
    arguments = (
        *("language", "collect", "--kernels", "dense:4x8x12 dense:6x8x16", "--random", 12, "--rounds", 1),
        *("--batch", 4, "--records", tmp_path / "records.db", "--out", tmp_path / "draft", "--json"),
    )
    outcome = tessel(*arguments)
    assert outcome.status == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert (document["kernels"], document["trials"], document["new_trials"]) == (2, 32, 32)
    assert len(document["mean_quality"]) == 2
    assert load_draft_model(tmp_path / "draft").manifest.num_samples == 32
    again = json.loads(tessel(*arguments).stdout)
    assert (again["new_trials"], again["mean_quality"]) == (0, [None, None])
