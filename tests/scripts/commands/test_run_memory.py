"""`tessel run` says what each rank's process holds, and predicts it from the functions' own plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from saved_plans import save_planned

from tessel.engine.ranks.held_memory import forget_peak

pytestmark = [pytest.mark.tvm, pytest.mark.torch, pytest.mark.slow]

MODELS = {
    "weights": "Wide(3072, 6), (torch.zeros(64, 64),)",
    "activations": "Wide(64, 8), (torch.zeros(30000, 64),)",
}
"""A model whose weights take most, and one whose saved tensors do: a third of a gigabyte a rank."""

TOLERANCE = {"weights": 0.1, "activations": 0.15}
"""A tenth is the target; the second misses it, as the report of rank memory says."""

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

def build():
    torch.manual_seed(0)
    return """


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_processes_hold_what_is_predicted(
    kind: str, tessel: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not forget_peak():
        pytest.skip("this system does not count the largest resident set anew")
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    code = tmp_path / f"wide_{kind}.py"
    code.write_text(CODE + MODELS[kind] + "\n")
    model = f"{code}:build"
    path = save_planned(model, "layers.2", tmp_path / "plan.json")
    done = tessel("run", path, "--model", model, "--repeats", 1, "--overheads", "none", "--json")
    assert done.status == 0, done.stderr
    for rank in json.loads(done.stdout)["memory"]:
        assert rank["predicted_bytes"] > 200 << 20
        assert abs(rank["held_bytes"] / rank["predicted_bytes"] - 1) < TOLERANCE[kind]
