"""An encoder–decoder with tied embeddings: tuned for two and for four CPU ranks, and run there for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from document_schemas import check_printed

pytest.importorskip("torch")

pytestmark = [pytest.mark.tvm, pytest.mark.torch, pytest.mark.slow]

MODEL = f"{Path(__file__).parents[3] / 'examples' / 'encoder_decoder.py'}:build"


@pytest.mark.parametrize("devices", [2, 4])
def test_tied_gradients_are_exact_on_real_ranks(
    devices: int, tessel: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("plan")
    # Both numbers of devices share what was measured.
    stored = tmp_path_factory.getbasetemp() / "encoder_decoder.db"
    measured = ("--threads", 1, "--backends", "tvm", "--hop-us", 50, "--records", stored)
    searched = ("--devices", devices, "--micro-batches", 4, "--time-limit", "2s", "--out", out)
    tuned = tessel("tune", MODEL, *measured, *searched)
    assert tuned.status == 0, tuned.stderr
    (tied,) = json.loads((out / "plan.json").read_bytes())["tied"]
    assert {member["name"] for member in tied} == {"shared.weight"}
    assert {tied[0]["stage"], tied[-1]["stage"]} == {0, devices - 1}
    for stages in ("compiled", "torch"):
        run = ("--stages", stages, "--repeats", 1, "--overheads", "none", "--trust-model", "--json")
        done = tessel("run", out / "plan.json", *run)
        assert done.status == 0, done.stderr
        report = check_printed(["run"], done.stdout)
        assert report["max_gradient_error"] < 1e-4
        assert report["loss_error"] < 1e-5
        assert set(report) >= {"searched", "1f1b"}
