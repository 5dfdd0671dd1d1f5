"""`tessel run` says what each rank's process holds, and predicts it from the functions' own plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from planned_models import m_shape_on_tvm, plan_on_tvm
from saved_plans import run_compiled, save_planned

from tessel.engine.ranks.held_memory import reset_peak
from tessel.engine.run import RankMemory
from tessel.tuned_model.recomputation import recomputing
from tuner.plan import ModelPlan

pytestmark = [pytest.mark.tvm, pytest.mark.torch, pytest.mark.slow]

MODELS = {
    "weights": "Wide(3072, 6), (torch.zeros(64, 64),)",
    "activations": "Wide(64, 8), (torch.zeros(30000, 64),)",
}
"""A model whose weights take most, and one whose saved tensors do: a third of a gigabyte a rank."""

WORDS = "Words(40_001, 256, 4), (torch.arange(128).reshape(1, 128),)"
"""A language model whose head, and what it saves, are most of a rank."""

TOLERANCE = 0.1

CODE = """
import torch
from torch import nn

class Wide(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.first = nn.Linear(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.last = nn.Linear(width, 16)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.last(x)

class Words(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)

def build():
    torch.manual_seed(0)
    return """


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return what writes a module that builds a model, and names it."""
    if not reset_peak():
        pytest.skip("this system does not count the largest resident set anew")
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)

    def write(expression: str) -> str:
        code = tmp_path / "measured_model.py"
        code.write_text(CODE + expression + "\n")
        return f"{code}:build"

    return write


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_processes_hold_what_is_predicted(
    kind: str, model: Callable[[str], str], tessel: Callable[..., object], tmp_path: Path
) -> None:
    name = model(MODELS[kind])
    path = save_planned(name, "layers.2", tmp_path / "plan.json")
    done = tessel("run", path, "--model", name, "--repeats", 1, "--overheads", "none", "--json")
    assert done.status == 0, done.stderr
    for rank in json.loads(done.stdout)["memory"]:
        check(RankMemory(**rank))


def test_ranks_of_divided_ends_hold_what_is_predicted(model: Callable[[str], str]) -> None:
    run(m_shape_on_tvm(model(WORDS), 2))


def test_ranks_that_recompute_hold_what_is_predicted_and_less(model: Callable[[str], str]) -> None:
    plan = plan_on_tvm(model(MODELS["activations"]), ["layers.2"])
    kept, again = run(plan), run(recomputing(plan, (0, 1)))
    for one, other in zip(kept, again, strict=True):
        assert (other.held_bytes or 0) < 0.9 * (one.held_bytes or 0)


def run(plan: ModelPlan) -> tuple[RankMemory, ...]:
    """Run a plan, and hold what each rank takes against what was predicted."""
    report = run_compiled(plan, 4)
    assert not report.check.failures
    for rank in report.memory:
        check(rank)
    return report.memory


def check(rank: RankMemory) -> None:
    assert rank.predicted_bytes is not None
    assert rank.held_bytes is not None
    assert rank.predicted_bytes > 100 << 20
    assert abs(rank.held_bytes / rank.predicted_bytes - 1) < TOLERANCE
