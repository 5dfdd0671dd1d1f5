"""A fixed sample of the comparison of torch's operators with their import; all are a benchmark."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.converter_fuzz import __main__ as command  # noqa: E402
from benchmarks.converter_fuzz import gradients  # noqa: E402
from benchmarks.converter_fuzz.check import Finding, check  # noqa: E402
from benchmarks.converter_fuzz.gradients import check_gradients_of  # noqa: E402
from benchmarks.converter_fuzz.operators import Applied, Several, chosen_numbers, operators, samples  # noqa: E402
from benchmarks.converter_fuzz.tables import as_table  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

SAMPLE = (
    ("cumsum", "int32"),
    ("std", "float32"),
    ("index_put", "float32"),
    ("logsumexp", "int64"),
    ("nn.functional.avg_pool2d", "int64"),
)


@pytest.mark.slow  # torch's table of operators is imported
@pytest.mark.parametrize(("name", "dtype"), SAMPLE)
def test_an_operator_is_torchs_or_refused(name: str, dtype: str) -> None:
    found = [check(name, dtype, number, each) for number, each in samples(operators()[name], dtype, 8)]
    assert found
    wrong = [each for each in found if each is not None and each.outcome == "wrong"]
    assert not wrong, wrong
    assert any(each is not None and each.outcome == "equal" for each in found)


def give(monkeypatch, results, *lowerings) -> None:
    """Let lowerings give results of our own, TVM's and this project's unless one is named."""
    for name in lowerings or ("run", "run_lowered"):
        monkeypatch.setattr(f"benchmarks.converter_fuzz.check.{name}", results)


@pytest.mark.parametrize(("lowerings", "outcome"), [((), "wrong"), (("run",), "mended")])
def test_a_wrong_result_is_found(lowerings, outcome, monkeypatch) -> None:
    applied = Applied(torch.add, ((torch.ones(2), 1), {}))
    give(monkeypatch, lambda model, inputs: [inputs[0]], *lowerings)
    finding = check("add", "float32", 0, applied)
    assert finding is not None
    assert finding.outcome == outcome
    assert "off by" in finding.reason


def test_a_lowering_that_tvm_has_wrong_is_told_apart() -> None:
    """Its maximum of infinities is the lowest finite number, and NaN gets lost."""
    x = torch.tensor([[-torch.inf, -torch.inf], [torch.nan, 1.0]])
    finding = check("amax", "float32", 0, Applied(torch.amax, ((x, 1), {})))
    assert finding is not None
    assert finding.outcome == "mended", finding


@pytest.mark.parametrize(("places", "outcome"), [([0, 1], "equal"), ([1, 1], "equal"), ([1, 2], "wrong")])
def test_of_equal_values_either_may_be_named(places, outcome, monkeypatch) -> None:
    x = torch.tensor([[2, 2, 7], [7, 3, 4]])
    applied = Applied(torch.kthvalue, ((x, 1), {}))
    give(monkeypatch, lambda *_: [np.array([2, 3]), np.array(places)])
    finding = check("kthvalue", "int64", 0, applied)
    assert finding is not None
    assert finding.outcome == outcome, finding


@pytest.mark.parametrize(
    ("num_drawn", "count", "numbers"), [(5, 8, [0, 1, 2, 3, 4]), (9, 3, [0, 4, 8]), (4, 1, [0]), (0, 8, [])]
)
def test_samples_reach_from_the_first_to_the_last(num_drawn: int, count: int, numbers: list[int]) -> None:
    assert chosen_numbers(num_drawn, count) == numbers


def test_samples_side_by_side_are_compared_each(monkeypatch) -> None:
    side_by_side = Several([Applied(torch.mul, ((torch.arange(3.0) + n, 2.0), {})) for n in range(2)])
    finding = check("mul", "float32", 0, side_by_side)
    assert finding is not None
    assert finding.outcome == "equal", finding
    give(monkeypatch, lambda *_: [side_by_side.tensors[0].numpy() * 2] * 2)
    finding = check("mul", "float32", 0, side_by_side)
    assert finding is not None
    assert finding.outcome == "wrong"


def test_what_stays_a_call_of_torch_is_told_apart() -> None:
    applied = Applied(torch.cummax, ((torch.rand(2, 3), 1), {}))
    finding = check("cummax", "float32", 0, applied)
    assert finding is not None
    assert (finding.outcome, finding.reason) == ("called", "torch call aten.cummax")


def test_what_draws_random_numbers_is_left_out() -> None:
    assert check("rand_like", "float32", 0, Applied(torch.rand_like, ((torch.ones(9),), {}))) is None


def test_what_no_array_holds_is_left_out() -> None:
    x = torch.eye(3).to_sparse_csr()
    assert check("to_dense", "float32", 0, Applied(torch.Tensor.to_dense, ((x,), {}))) is None


def test_an_interrupted_comparison_goes_on_and_what_was_wrong_is_checked_again(monkeypatch, tmp_path) -> None:
    asked = []

    def fuzz(name, operator, dtype, count, checked, comparable):
        asked.append((name, dtype))
        yield Finding(name, dtype, 0, "wrong" if len(asked) == 2 else "equal")

    monkeypatch.setattr(command, "fuzz", fuzz)
    monkeypatch.setattr(command, "warm_up", lambda: None)
    monkeypatch.setattr(command, "operators", lambda: {"abs": None, "add": None, "sub": None})
    path = tmp_path / "findings.jsonl"
    given = ["--types", "float32", "--json", str(path)]
    assert command.main(["abs", "add", *given]) == 1
    path.write_text(path.read_text() + '{"operator": "sub", "dty')  # ended while it wrote
    assert command.main(given) == 1
    assert asked == [("abs", "float32"), ("add", "float32"), ("sub", "float32")]
    assert command.main([*given, "--again"]) == 0
    assert command.main(given) == 0
    assert asked[3:] == [("add", "float32")]
    assert command.main([*given, "--samples", "2"]) == 0
    assert len(asked) == 7


def test_the_table_tells_what_is_refused_and_why() -> None:
    reason = "x cannot be imported: operator a (b) is the first, because it has none; write"
    findings = [
        Finding("abs", "float32", 0, "equal"),
        Finding("cummax", "float32", 0, "equal"),
        Finding("cummax", "int64", 0, "called", "torch call aten.cummax"),
        Finding("fft", "float32", 0, "refused", reason),
        Finding("sort", "float32", 0, "equal"),
        Finding("sort", "bool", 1, "refused", reason),
    ]
    table = as_table(findings, 8)
    assert (
        "4 operators: 1 equal throughout, 1 equal with calls of torch, 1 refused in part, 1 refused" in table
    )
    assert "of 6 samples 3 equal, 1 called, 2 refused, 0 wrong" in table
    assert "--gradients" in as_table(findings, 8, gradients=True)
    assert "in some use as calls of torch\n\n`cummax`\n" in table
    assert "| `sort` | float32 | bool | it has none |" in table
    assert "| `fft` |  | float32 | it has none |" in table


@pytest.mark.slow  # likewise
def test_gradients_are_torchs_and_a_wrong_one_is_found(monkeypatch) -> None:
    applied = Applied(torch.nn.functional.pad, ((torch.rand(2, 3), (1, 2)), {"mode": "reflect"}))
    finding = check_gradients_of("pad", "float32", 0, applied)
    assert finding is not None
    assert finding.outcome == "equal", finding
    right = gradients.run_module
    monkeypatch.setattr(gradients, "run_module", lambda *given: [1.1 * each for each in right(*given)])
    finding = check_gradients_of("pad", "float32", 0, applied)
    assert finding is not None
    assert finding.outcome == "wrong"
    assert "the gradient of weights.0 is off by" in finding.reason
