"""A torch module is tuned, explained, compared and run from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tessel
from tessel.errors import ScheduleError, UsageError

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Net(torch.nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.second(torch.relu(self.first(x))), target)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    records = tmp_path_factory.mktemp("records") / "records.db"
    return {
        "devices": 2,
        "micro_batches": 4,
        "backends": ["tvm"],
        "hop_us": 5,
        "cut": ["first"],
        "work": 0.2,
        "records": f"sqlite:///{records}",
        "progress": False,
    }


@pytest.fixture(scope="module")
def module() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def plan(module: Net, asked: dict[str, Any]) -> tessel.Plan:
    return tessel.tune(module, (torch.ones(2, 8), torch.zeros(2, 4)), **asked)


@pytest.mark.slow  # as by the command, in tests/scripts/documents/test_documents_printed.py
def test_a_module_is_tuned_with_its_inputs(plan: tessel.Plan) -> None:
    tuned = plan.tuned
    assert tuned is not None
    assert [stage.layers for stage in tuned.stages] == [("first",), ("second",)]
    assert tuned.import_error is not None
    assert tuned.import_error < 1e-5
    assert tuned.max_gradient_error is not None
    assert tuned.max_gradient_error < 1e-4
    assert plan.step_ms >= plan.lower_bound_ms
    assert plan.compare().rows[0].schedule == "searched"


@pytest.mark.slow
def test_a_tuned_plan_explains_itself_and_comes_back(plan: tessel.Plan, tmp_path: Path) -> None:
    text = str(plan.explain())
    assert "Stages (per micro-batch)" in text
    assert "ratio to 1F1B" in text
    loaded = tessel.load_plan(plan.save(tmp_path / "plan.json"))
    assert loaded.to_json() == plan.to_json()
    assert plan.draw(tmp_path / "plan.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_second_call_measures_nothing(plan: tessel.Plan, module: Net, asked: dict[str, Any]) -> None:
    again = tessel.tune(module, (torch.ones(2, 8), torch.zeros(2, 4)), **asked)
    assert again.tuned is not None
    assert again.tuned.new_measurements == 0


@pytest.mark.slow
def test_a_plan_runs_on_ranks(plan: tessel.Plan) -> None:
    report = plan.run(stages="sleep", repeats=1, overheads="none", progress=False)
    assert set(report.figures) == {"searched", "1f1b"}
    with pytest.raises(UsageError, match="a module Net, which each rank would have to load by a name"):
        plan.run(repeats=1, overheads="none", progress=False)


def test_what_a_module_lacks_is_named(asked: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="give example_inputs"):
        tessel.tune(Net(), **asked)
    with pytest.raises(ScheduleError, match="no model can be placed as 'zigzag'"):
        tessel.tune("mlp:tiny", **{**asked, "placement": "zigzag"})
    with pytest.raises(UsageError, match="--micro-batches is 0"):
        tessel.tune("mlp:tiny", **{**asked, "micro_batches": 0})
