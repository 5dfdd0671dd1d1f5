"""A fixed sample of the comparison of torch's operators with their import; all are a benchmark."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.converter_fuzz import gradients  # noqa: E402
from benchmarks.converter_fuzz.check import Finding, check  # noqa: E402
from benchmarks.converter_fuzz.gradients import check_gradients_of  # noqa: E402
from benchmarks.converter_fuzz.operators import Applied, operators, samples  # noqa: E402
from benchmarks.converter_fuzz.tables import as_table  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

SAMPLE = (("cumsum", "int32"), ("std", "float32"), ("index_put", "float32"), ("logsumexp", "int64"))


@pytest.mark.parametrize(("name", "dtype"), SAMPLE)
def test_an_operator_is_torchs_or_refused(name: str, dtype: str) -> None:
    found = [check(name, dtype, number, each) for number, each in samples(operators()[name], dtype, 3)]
    assert found
    wrong = [each for each in found if each is not None and each.outcome == "wrong"]
    assert not wrong, wrong
    assert any(each is not None and each.outcome == "equal" for each in found)


def test_a_wrong_result_is_found(monkeypatch) -> None:
    applied = Applied(torch.add, ((torch.ones(2), 1), {}))
    monkeypatch.setattr("benchmarks.converter_fuzz.check.run", lambda model, inputs: [inputs[0]])
    finding = check("add", "float32", 0, applied)
    assert finding is not None
    assert finding.outcome == "wrong"
    assert "off by" in finding.reason


def test_what_stays_a_call_of_torch_is_told_apart() -> None:
    applied = Applied(torch.cummax, ((torch.rand(2, 3), 1), {}))
    finding = check("cummax", "float32", 0, applied)
    assert finding is not None
    assert (finding.outcome, finding.reason) == ("called", "torch call aten.cummax")


def test_what_draws_random_numbers_is_left_out() -> None:
    assert check("rand_like", "float32", 0, Applied(torch.rand_like, ((torch.ones(9),), {}))) is None


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
    assert "in some use as calls of torch\n\n`cummax`\n" in table
    assert "| `sort` | float32 | bool | it has none |" in table
    assert "| `fft` |  | float32 | it has none |" in table


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
