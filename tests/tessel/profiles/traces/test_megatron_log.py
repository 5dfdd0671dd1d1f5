"""Timers of Megatron in a log: stages, and layers where they can be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tessel.errors import DocumentError
from tessel.profiles import load_profile
from tessel.profiles.load import detect_format

ARGUMENTS: Mapping[str, object] = {
    "data_parallel_size": 2,
    "global_batch_size": 32,
    "micro_batch_size": 2,
    "num_layers": 8,
    "pipeline_model_parallel_size": 4,
    "pipeline_model_parallel_layout": None,
    "recompute_granularity": None,
    "tensor_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
}
EMBEDDING_MS, LAYER_MS, HEAD_MS = 3.0, 10.0, 7.0


def log(
    path: Path, forward: Sequence[float], *, arguments: Mapping[str, object] = ARGUMENTS, prefix: str = ""
) -> Path:
    """Write a log with milliseconds of an iteration by rank; backwards take twice as long."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    for factor in (9.0, 1.0, 1.1, 0.9):
        lines += [" [2026-11-29 10:00:00] iteration        1/       4 | consumed samples: 32 |"]
        lines += ["times across ranks (ms):"]
        for name, times in (
            ("forward-backward", [999.0] * len(forward)),
            ("forward-compute", [factor * time for time in forward]),
            ("backward-compute", [factor * 2 * time for time in forward]),
            ("optimizer", [5.0] * len(forward)),
        ):
            lines += [f"  {name}:"]
            lines += [f"     rank {rank:2d}: {time:.2f}" for rank, time in enumerate(times)]
    path.write_text("".join(f"{prefix}{line}\n" for line in lines))
    return path


def forwards() -> list[float]:
    """Milliseconds of 8 micro-batches, of 4 stages on 2 replicas each."""
    layers = [2 * LAYER_MS] * 4
    layers[0] += EMBEDDING_MS
    layers[-1] += HEAD_MS
    return [8 * each for each in layers for _ in range(2)]


@pytest.mark.parametrize("prefix", ["", "[rank7]: ", "7: "])
def test_layers_are_what_the_middle_stages_take(tmp_path: Path, prefix: str) -> None:
    path = log(tmp_path / "job.log", forwards(), prefix=prefix)
    assert detect_format(path, path.read_bytes()) == "log"
    profile = load_profile(path)
    assert [layer.name for layer in profile.layers] == ["embedding", *(f"layer{n}" for n in range(8)), "head"]
    assert profile.micro_batches == (2,)
    expected = [EMBEDDING_MS, *[LAYER_MS] * 8, HEAD_MS]
    costs = profile.tables[0].costs
    assert [cost.forward_us / 1e3 for cost in costs] == pytest.approx(expected)
    assert [(cost.backward_us or 0.0) / 1e3 for cost in costs] == pytest.approx([2 * ms for ms in expected])


def test_chunks_share_a_ranks_time(tmp_path: Path) -> None:
    chunked = {**ARGUMENTS, "virtual_pipeline_model_parallel_size": 2}
    costs = load_profile(log(tmp_path / "job.log", forwards(), arguments=chunked)).tables[0].costs
    expected = [EMBEDDING_MS, *[LAYER_MS] * 8, HEAD_MS]
    assert [cost.forward_us / 1e3 for cost in costs] == pytest.approx(expected)


@pytest.mark.parametrize(
    "changed",
    [
        {"pipeline_model_parallel_layout": "Ett|tt|tt|ttL"},
        {"account_for_loss_in_pipeline_split": True},
        {"num_layers": 9},
        {"mtp_num_layers": 1},
    ],
)
def test_stages_are_rows_where_layers_cannot_be_told_apart(
    tmp_path: Path, changed: Mapping[str, object]
) -> None:
    profile = load_profile(log(tmp_path / "job.log", forwards(), arguments=ARGUMENTS | changed))
    assert [layer.name for layer in profile.layers] == ["stage0", "stage1", "stage2", "stage3"]
    found = [cost.forward_us / 1e3 for cost in profile.tables[0].costs]
    assert found == pytest.approx([2 * LAYER_MS + EMBEDDING_MS, 20.0, 20.0, 2 * LAYER_MS + HEAD_MS])
    assert any("could not be told apart" in note for note in profile.notes)


def test_full_recomputation_is_taken_off_backwards(tmp_path: Path) -> None:
    full = {**ARGUMENTS, "recompute_granularity": "full", "num_layers": 9}
    profile = load_profile(log(tmp_path / "job.log", forwards(), arguments=full))
    for cost in profile.tables[0].costs:
        assert cost.backward_us == pytest.approx(cost.forward_us)
    assert any("recomputes in full" in note for note in profile.notes)


def test_logs_without_single_ranks_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(
        "(min, max) time across ranks (ms):\n    forward-compute ......................: (10.00, 12.00)\n"
    )
    with pytest.raises(
        DocumentError, match="of each rank; log with --timing-log-level 2 --timing-log-option"
    ):
        load_profile(path)
    short = {name: value for name, value in ARGUMENTS.items() if name != "micro_batch_size"}
    with pytest.raises(DocumentError, match="does not list the argument micro_batch_size"):
        load_profile(log(path, forwards(), arguments=short))
    with pytest.raises(DocumentError, match="33 is no multiple of 2 samples on 2 replicas"):
        load_profile(log(path, forwards(), arguments={**ARGUMENTS, "global_batch_size": 33}))
