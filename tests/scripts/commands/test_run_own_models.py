"""Models of one's own, tuned for CPU ranks and run there for real.

An encoder–decoder with tied embeddings, for two and for four ranks; and a model with dropout, rows of padding
and an operator without a gradient, whose losses and gradients are the module's own, in train mode.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from document_schemas import check_printed

pytest.importorskip("torch")

pytestmark = [pytest.mark.tvm, pytest.mark.torch, pytest.mark.slow]

MODEL = f"{Path(__file__).parents[3] / 'examples' / 'encoder_decoder.py'}:build"

SOURCE = """
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 12), nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x):
        pooled = functional.max_pool1d(self.up(x), 3, 1, dilation=2)
        return x + self.drop(self.down(pooled))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Embedding(5, 8, padding_idx=2), nn.Dropout(0.3)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 5)

    def forward(self, ids):
        x = self.drop(self.table(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build():
    return Language(), (torch.randint(5, (2, 6)),)
"""


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


def test_masks_rows_of_padding_and_calls_of_torch_are_those_of_the_module(
    tessel: Callable[..., object], tmp_path: Path
) -> None:
    (tmp_path / "dropping.py").write_text(SOURCE)
    model = f"{tmp_path / 'dropping.py'}:build"
    measured = ("--threads", 1, "--backends", "tvm,torch", "--hop-us", 50, "--records", tmp_path / "r.db")
    searched = ("--devices", 2, "--micro-batches", 4, "--time-limit", "2s", "--out", tmp_path)
    tuned = tessel("tune", model, *measured, *searched)
    assert tuned.status == 0, tuned.stderr
    plan = json.loads((tmp_path / "plan.json").read_bytes())
    assert len(plan["torch_calls"]) == 2
    assert any("its masks are inputs" in note for note in plan["notes"])
    assert any("nn.max_pool1d has no gradient here" in note for note in plan["notes"])
    run = ("--repeats", 1, "--overheads", "none", "--trust-model", "--json")
    done = tessel("run", tmp_path / "plan.json", *run)
    assert done.status == 0, done.stderr
    report = check_printed(["run"], done.stdout)
    assert 0 < report["max_gradient_error"] < 1e-5
    assert report["loss_error"] < 1e-5
