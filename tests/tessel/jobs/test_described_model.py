"""A plan from a config and a GPU's name, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tessel
from scripts.main import main
from tessel.architectures import gpu_sheets
from tessel.errors import DocumentError, UsageError
from tessel.jobs.described_model import names_config, profile_of_config
from tessel.jobs.inputs import config_options
from tessel.jobs.inputs.config_options import DISPATCHES, DTYPES, GPUS
from tessel.jobs.inputs.plan_options import PlanOptions
from tessel.profiles import load_profile

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
LLAMA = CONFIGS / "llama-3.1-8b.json"
MOE = CONFIGS / "qwen3-30b-a3b.json"
GEMMA = CONFIGS / "gemma-3-27b.json"
QWEN_VL = CONFIGS / "qwen2.5-vl-7b.json"
ASKED = {"gpu": "h100", "devices": 8, "global_batch": 16, "pipeline": 2, "work": 0.05, "progress": False}


@pytest.fixture(scope="module")
def found() -> tessel.Plan:
    return tessel.plan(LLAMA, **ASKED)


def test_a_plan_of_a_config_is_predicted_and_says_so(found: tessel.Plan) -> None:
    assert found.planned is not None
    assert found.planned.profile.device == "h100 (predicted)"
    assert found.planned.profile.is_predicted
    text = str(found.explain())
    assert "llama-3.1-8b on h100 (predicted): 35 layers, 8 devices" in text
    assert "predicted " in text
    (note,) = found.planned.profile.notes
    assert note.startswith("times are predicted, not measured: h100 in bf16, 4096 tokens")
    assert "8.03 billion parameters" in note


def test_cluster_optimizer_and_sharding_are_the_sheets_unless_given(found: tessel.Plan) -> None:
    assert found.planned is not None
    cluster, job = found.planned.cluster, found.planned.job
    assert cluster.memory_bytes == int(79.6 * 2**30)
    assert cluster.hop.bytes_per_s == 50e9
    assert cluster.devices_per_node == 8
    assert cluster.intra_node is not None
    assert (job.optimizer.name, job.sharding) == ("adam-mixed", "optimizer")
    given = PlanOptions(
        devices=8,
        gpu="h100",
        memory="40GiB",
        link="10GB/s",
        node_devices=4,
        node_link="1TB/s",
        optimizer="sgd",
        sharding="none",
    )
    own = given.cluster()
    assert own.memory_bytes == 40 * 2**30
    assert (own.hop.bytes_per_s, own.devices_per_node) == (10e9, 4)
    assert (given.chosen_optimizer, given.chosen_sharding) == ("sgd", "none")
    plain = PlanOptions(devices=8)
    assert (plain.chosen_optimizer, plain.chosen_sharding) == ("adam", "none")
    assert plain.cluster().memory_bytes is None


def test_the_saved_table_gives_the_same_plan(found: tessel.Plan, tmp_path: Path) -> None:
    table = found.save_table(tmp_path / "timings.csv")
    assert "# device: h100 (predicted)" in table.read_text()
    assert found.planned is not None
    again = load_profile(table)
    for read, kept in zip(again.tables, found.planned.profile.tables, strict=True):
        assert read.degrees == kept.degrees
        assert [cost.weight_bytes for cost in read.costs] == [cost.weight_bytes for cost in kept.costs]
        assert [cost.forward_us for cost in read.costs] == pytest.approx(
            [cost.forward_us for cost in kept.costs]
        )


@pytest.mark.parametrize(
    "option",
    [
        {"gpu": "b200"},
        {"seq": 2048},
        {"dtype": "fp8"},
        {"mfu": 0.4},
        {"efficiency": 0.5},
        {"recompute": "mlp"},
        {"overlap_tensor": True, "tensor_parallel": 4},
    ],
)
def test_every_option_of_a_config_changes_its_table(option: dict[str, Any]) -> None:
    base = PlanOptions(devices=8, gpu="h100", **{k: v for k, v in option.items() if k == "tensor_parallel"})
    changed = replace(base, **option)
    assert profile_of_config(LLAMA, base).tables != profile_of_config(LLAMA, changed).tables


@pytest.mark.parametrize("option", [{"imbalance": 1.3}, {"dispatch": "nccl"}])
def test_every_option_of_experts_changes_their_table(option: dict[str, Any]) -> None:
    base = PlanOptions(devices=64, gpu="h100", expert_parallel=32)
    one, other = profile_of_config(MOE, base), profile_of_config(MOE, replace(base, **option))
    assert one.tables != other.tables


def test_degrees_are_those_that_the_model_and_the_devices_allow() -> None:
    profile = profile_of_config(MOE, PlanOptions(devices=16, gpu="h100", seq=8192, global_batch=6))
    found = {table.degrees for table in profile.tables}
    assert {each.micro_batch for each in found} == {1, 2}  # of 6 samples
    assert {each.tensor_parallel for each in found} == {1, 2, 4, 8}
    assert {each.context_parallel for each in found} == {1, 2}  # of 4096 tokens at least
    assert {each.expert_parallel for each in found} == {1, 2, 4, 8, 16}
    assert all(16 % (each.tensor_parallel * each.expert_parallel) == 0 for each in found)
    assert profile.has_experts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu": None}, "describes a model, and its times depend on the GPU; give --gpu"),
        ({"gpu": "h1000"}, "--gpu 'h1000' is not known; did you mean h100"),
        ({"tensor_parallel": 3, "devices": 9}, "--tensor-parallel 3 does not divide the 32 attention heads"),
        ({"expert_parallel": 2}, "--expert-parallel 2 has nothing to divide, as llama-3.1-8b has no"),
        ({"mfu": 1.5}, "--mfu is 1.5"),
        ({"efficiency": 0.0}, "--efficiency is 0"),
        ({"pictures": -1}, "--pictures is -1; give the pictures of a sequence"),
        ({"pictures": 2}, "--pictures 2: llama-3.1-8b has no tower of a kind that is known"),
        ({"dtype": "fp8", "gpu": "a100"}, "--dtype fp8: a100 has no products in fp8"),
        ({"dtype": "fp4"}, "--dtype"),
        ({"dispatch": "mpi"}, "--dispatch"),
        ({"recompute": "all"}, "--recompute has 'all'"),
    ],
)
def test_what_does_not_go_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        tessel.plan(LLAMA, **{"devices": 8, "gpu": "h100", "progress": False, **options})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_gpu_is_refused_where_times_were_given(tmp_path: Path) -> None:
    table = CONFIGS.parent / "profiles" / "eight_layers.csv"
    with pytest.raises(UsageError, match=r"--gpu is for a model's config\.json"):
        tessel.plan(table, devices=2, gpu="h100", progress=False)
    assert main(["plan", str(table), "--devices", "2", "--gpu", "h100", "--quiet"]) == 2


def test_configs_are_told_from_other_files(tmp_path: Path) -> None:
    assert names_config(str(LLAMA))
    assert not names_config(str(tmp_path))
    (tmp_path / "config.json").write_bytes(LLAMA.read_bytes())
    assert names_config(str(tmp_path))
    for text in ("[]", "{", '{"layers": []}'):
        (tmp_path / "other.json").write_text(text)
        assert not names_config(str(tmp_path / "other.json"))
    (tmp_path / "config.json").write_text('{"model_type": "mambo"}')
    with pytest.raises(DocumentError, match=r"'mambo' is not known; known are deepseek_v2"):
        tessel.plan(tmp_path, devices=2, gpu="h100", progress=False)


def test_the_command_prints_the_prediction(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    arguments = (
        "--gpu h100 --devices 8 --pipeline 2 --global-batch 16 --work 0.05 --json --quiet --save-table"
    )
    assert main(["plan", str(LLAMA), *arguments.split(), str(table)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["interval_ms"][0] < document["best"]["step_ms"] < document["interval_ms"][1]
    assert "predicted, not measured" in document["notes"][0]
    assert load_profile(table).device == "h100 (predicted)"


def test_lists_of_names_are_the_real_ones() -> None:
    assert tuple(gpu_sheets.GPU_SHEETS) == GPUS
    assert DTYPES == ("bf16", "fp8")
    assert DISPATCHES == ("nccl", "deepep")
    assert config_options.DEFAULT_SEQ == 4096


@pytest.mark.parametrize(
    "option", [{"pictures": 2}, {"frozen_tower": True}, {"picture_tokens": 512, "source": QWEN_VL}]
)
def test_every_option_of_pictures_changes_the_table(option: dict[str, Any]) -> None:
    source = option.pop("source", GEMMA)
    base = PlanOptions(devices=8, gpu="h100", pictures=1, picture_tokens=256)
    assert profile_of_config(source, base).tables != profile_of_config(source, replace(base, **option)).tables


def test_without_pictures_text_alone_is_planned_and_said() -> None:
    text = profile_of_config(GEMMA, PlanOptions(devices=8, gpu="h100"))
    assert text.layers[0].name == "embed"
    assert any("--pictures says how many its tower sees" in note for note in text.notes)
    seen = profile_of_config(GEMMA, PlanOptions(devices=8, gpu="h100", pictures=1))
    assert seen.layers[0].name == "vision.patches"
    assert not any("--pictures" in note for note in seen.notes)
    assert {table.tensor_parallel for table in seen.tables} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (GEMMA, {"picture_tokens": 300}, "--picture-tokens 300: every picture of gemma-3-27b has 256"),
        (GEMMA, {"pictures": 17}, "--pictures 17 of 256 tokens each are more than the 4096 of --seq"),
        (QWEN_VL, {}, "how many tokens a picture of qwen2.5-vl-7b has depends on its size; give --picture-"),
        (
            QWEN_VL,
            {"tensor_parallel": 7, "devices": 7, "picture_tokens": 64},
            "--tensor-parallel 7 does not divide the 16 attention heads of the tower",
        ),
    ],
)
def test_pictures_that_do_not_go_with_a_model_are_refused(
    source: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        profile_of_config(source, PlanOptions(**{"devices": 8, "gpu": "h100", "pictures": 1} | options))
