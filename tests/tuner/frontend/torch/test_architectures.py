"""Public architectures with random weights: imported, partitioned and trained, they give what torch gives."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.architectures.check import STEPS, Size, _beside_float64, check
from benchmarks.architectures.finding import Finding
from benchmarks.architectures.models import ARCHITECTURES
from benchmarks.architectures.packaged import PACKAGED, with_drawn_weights
from benchmarks.architectures.results import Row, check_all, load_results, save_results
from benchmarks.architectures.table import ARCHITECTURES_TABLE, PACKAGED_TABLE, as_table, marks_of, with_table
from tuner.frontend.torch.program import import_module

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

PAGE = Path(__file__).parents[4] / "benchmarks" / "reports" / "architectures_2026-11.md"

QUICK = ("graph-network",)
"""Those that run by default: what is like no network of the zoo."""

WHOLE = ("graph-network",)
"""Those that are partitioned and trained in one test."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in ARCHITECTURES]
)
def test_an_architecture_is_torchs(name: str) -> None:
    ((_, _, finding),) = check(name, ARCHITECTURES[name])
    assert finding.outcome == "equal", f"{name}: {finding.reason}"


def test_no_weight_of_a_published_model_hides_what_stands_before_it() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    drawn = module[0].weight.clone()
    torch.nn.init.zeros_(module[2].weight)
    torch.nn.init.constant_(module[1].bias, 1e-6)
    with_drawn_weights(module)
    assert torch.equal(module[0].weight, drawn)
    assert all(weight.std() > 0.02 for weight in module.parameters())
    assert module[1].bias.min() >= 0.3


class _InBfloat16(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        coarse = x.to(torch.bfloat16) * 2
        return super().forward((coarse / 2).to(self.weight.dtype)).float()


def test_where_torch_itself_is_off_float64_decides() -> None:
    module = torch.nn.Linear(8, 4).eval()
    inputs = (torch.randn(2, 8),)
    model = import_module(module, inputs, "linear")
    off = [module(*inputs).detach().numpy() * np.float32(1.0001)]
    found = _beside_float64(module, inputs, model, off)
    assert found is not None
    assert found.outcome == "equal"
    assert found.reason == "beside the module in float64, from which torch's float32 is 1.0e-04 off"
    assert _beside_float64(module, inputs, model, [off[0] * np.float32("nan")]) is None
    narrow = _InBfloat16(8, 4).eval()
    assert _beside_float64(narrow, inputs, import_module(narrow, inputs, "narrow"), off) is None
    other = torch.nn.Linear(8, 4)
    other.weight.data = module.weight.detach() * 1.001
    other.bias.data = module.bias.detach()
    assert _beside_float64(other, inputs, model, off) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", PACKAGED or [pytest.param("", marks=pytest.mark.skip("torchvision and timm are not installed"))]
)
def test_a_published_model_is_torchs(name: str) -> None:
    ((_, _, finding),) = check(name, PACKAGED[name])
    assert finding.outcome == "equal", f"{name}: {finding.reason}"


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS[1:])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_does_what_the_page_says(name: str, step: str) -> None:
    row = next((line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |")), None)
    if row is None:
        pytest.skip("the page has no such row yet")
    told = row.split("|")[6 + STEPS.index(step) - 1].strip()
    if not told:
        pytest.skip("the page says nothing of this step")
    (*_, (_, _, finding)) = check(name, ARCHITECTURES[name], [step])
    is_number = told[:1].isdigit()
    assert (finding.outcome == "equal") == is_number, f"{name} {step}: {finding.reason}"


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_an_architecture_is_partitioned_and_trained_as_torchs(name: str) -> None:
    found = {step: finding for step, _, finding in check(name, ARCHITECTURES[name], ("partition", "train"))}
    assert list(found) == ["partition", "train"]
    assert {step: each.outcome for step, each in found.items()} == dict.fromkeys(found, "equal"), found


def test_the_table_tells_errors_and_refusals(tmp_path: Path) -> None:
    rows = {
        "gpt2": Row(
            parameters=1234,
            operators=56,
            findings={
                "import": Finding(outcome="equal", error=1e-6, date="2026-01-01"),
                "train": Finding(outcome="inapplicable", reason="it has no loss", date="2026-01-02"),
            },
        ),
        "opt": Row(
            parameters=7, findings={"import": Finding(outcome="refused", reason="a | b", date="2026-01-01")}
        ),
    }
    save_results(tmp_path / "results.json", rows)
    assert load_results(tmp_path / "results.json") == rows
    table = as_table(rows)
    assert "Equal to torch, of those compared: import 1 of 2.\n" in table
    assert "| gpt2 | 1,234 | 56 |  | 1e-06 |  |  |  | – |  |  | 2026-01-02 |" in table
    assert "- opt, import: a / b" in table
    begin, end = marks_of(ARCHITECTURES_TABLE)
    other = "".join(marks_of(PACKAGED_TABLE))
    page = with_table(f"before\n{other}{begin}old\n{end}after\n", table)
    assert page == f"before\n{other}{begin}{table}{end}after\n"
    with pytest.raises(ValueError, match="no place for the table"):
        with_table("before\nafter\n", table)


def test_what_is_known_is_not_found_again() -> None:
    row = Row(findings={"import": Finding(outcome="equal", error=0.0)})
    ((name, found),) = check_all(["gpt2"], ["import"], {"gpt2": row}, limit_s=1.0)
    assert (name, found) == ("gpt2", row)


def test_a_step_that_takes_too_long_is_refused(monkeypatch) -> None:
    def endless(name, build, steps):
        yield "import", Size(parameters=1), Finding(outcome="equal", error=0.0)
        time.sleep(600)

    monkeypatch.setattr("benchmarks.architectures.results.check", endless)
    *_, (_, row) = check_all(["gpt2"], ["import", "train"], {}, limit_s=5.0)
    assert row.parameters == 1
    assert row.findings["import"].outcome == "equal"
    assert row.findings["train"].reason == "it takes too long"
